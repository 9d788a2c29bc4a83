"""The complete recipe: a sampler from a diffusion and a curl matrix (Ma et al. 2015, eq. 3 to 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnmf.random import Noise

Matrix = Callable[[Tensor], Tensor]  # z (d,) -> (d, d)


@dataclass(frozen=True)
class Recipe:
    """dz = (-(D + Q) grad H + tau Gamma) dt + sqrt(2 tau D) dW, Gamma_i = sum_j d_j (D + Q)_ij.

    It leaves exp(-H / tau) in place for any D(z) positive semidefinite and Q(z) skew-symmetric.
    Made for targets of a few dimensions: n chains side by side are the rows of z (n, d).
    """

    diffusion: Matrix
    curl: Matrix
    groups: tuple[tuple[int, ...], ...] | None
    noise_estimate: Matrix | None

    def drift(self, z: Tensor, gradient: Tensor, temperature: float) -> Tensor:
        """-(D + Q) grad H + tau Gamma, (n, d), of grad H (n, d); the divergence by autograd."""

        def both(one: Tensor) -> Tensor:
            return self.diffusion(one) + self.curl(one)

        def divergence(one: Tensor) -> Tensor:
            return torch.einsum("ijj->i", torch.func.jacrev(both)(one))

        gamma = torch.func.vmap(divergence)(z)
        pulled = torch.einsum("nij,nj->ni", torch.func.vmap(both)(z), gradient)
        return temperature * gamma - pulled

    def step(
        self,
        z: Tensor,
        gradient: Callable[[Tensor], Tensor],
        step_size: float,
        temperature: float,
        noise: Noise,
    ) -> Tensor:
        """One step of n chains z (n, d); ``gradient`` is that of H, (n, d) -> (n, d).

        Raises:
            ValueError: D is not positive semidefinite or Q not skew-symmetric at a z; the groups
                are not a partition of the coordinates, or D couples two of them; h B > 2 tau D.
        """
        groups = self.groups or (tuple(range(z.shape[1])),)
        self._check(z, groups)
        for group in groups:
            at = list(group)
            drift = self.drift(z, gradient(z), temperature)[:, at]
            covariance = 2.0 * temperature * torch.func.vmap(self.diffusion)(z)
            root = _root(step_size * covariance[:, at][:, :, at], "D is not positive semidefinite")
            if self.noise_estimate is not None:
                covariance = covariance - step_size * torch.func.vmap(self.noise_estimate)(z)
                root = _root(
                    step_size * covariance[:, at][:, :, at],
                    "the noise estimate exceeds the noise to inject: lower the step size",
                )
            shock = torch.einsum("nij,nj->ni", root, noise.normal(drift))
            z = z.clone()
            z[:, at] += step_size * drift + shock
        return z

    def _check(self, z: Tensor, groups: tuple[tuple[int, ...], ...]) -> None:
        if sorted(i for group in groups for i in group) != list(range(z.shape[1])):
            raise ValueError(f"groups {groups} must hold each of {z.shape[1]} coordinates once")
        q = torch.func.vmap(self.curl)(z)
        if not torch.allclose(q, -q.mT):
            raise ValueError("Q is not skew-symmetric")
        within = torch.zeros(z.shape[1], z.shape[1], dtype=torch.bool)
        for group in groups:
            within[torch.tensor(group)[:, None], torch.tensor(group)] = True
        if bool((torch.func.vmap(self.diffusion)(z)[:, ~within] != 0).any()):
            raise ValueError("D couples coordinates of two groups: put them into one")


def from_recipe(
    diffusion: Matrix,
    curl: Matrix,
    groups: Sequence[Sequence[int]] | None = None,
    noise_estimate: Matrix | None = None,
) -> Recipe:
    """A sampler from D(z) and Q(z), functions of one z (d,) made of torch operations.

    Args:
        diffusion: D (d, d), positive semidefinite.
        curl: Q (d, d), skew-symmetric.
        groups: coordinates that are updated one group after the other, each seeing the new
            values of those before it: momenta first, then positions, then thermostats is what
            the family's samplers do. None updates all at once (Euler and Maruyama).
        noise_estimate: B (d, d), the covariance of (D + Q) grad H's noise.
    """
    chosen = None if groups is None else tuple(tuple(group) for group in groups)
    return Recipe(diffusion, curl, chosen, noise_estimate)


def _root(covariance: Tensor, problem: str) -> Tensor:
    """The symmetric square roots of (n, d, d).

    Raises:
        ValueError: one has none; says ``problem``.
    """
    values, vectors = torch.linalg.eigh(covariance)
    least = 1e-12 * values.abs().amax(-1, keepdim=True)
    if bool((values < -least).any()):
        raise ValueError(problem)
    return torch.einsum("nij,nj,nkj->nik", vectors, values.clamp_min(0.0).sqrt(), vectors)
