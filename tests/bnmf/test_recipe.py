"""The recipe makes the family's samplers, step for step, and leaves its targets in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bnmf.random import Noise
from bnmf.samplers import Sampler, State
from bnmf.samplers.recipe import Recipe, from_recipe
from bnmf.samplers.sghmc import SGHMC
from bnmf.samplers.sgld import SGLD
from bnmf.samplers.sgnht import SGNHT
from bnmf.samplers.sgrhmc import SGRHMC
from bnmf.samplers.sgrld import SGRLD
from tests.oracles import assert_moments, noise

ONE = torch.ones(1, 1, dtype=torch.float64)
N, H, C, TAU = 6, 0.07, 0.8, 0.6


def gradient(theta: Tensor) -> Tensor:
    """Of U = (t1^2 - 1)^2 / 4 + t1 t2 / 2 + t2^2, rows apart."""
    a, b = theta[:, :1], theta[:, 1:]
    return torch.cat([a * (a * a - 1) + 0.5 * b, 0.5 * a + 2 * b], dim=1)


def metric(theta: Tensor) -> tuple[Tensor, Tensor]:
    return 1 + 0.5 * torch.sin(theta), 0.5 * torch.cos(theta)


def zeros(z: Tensor, d: int) -> Tensor:
    return z.new_zeros(d, d)


def block(parts: list[list[Tensor]]) -> Tensor:
    return torch.cat([torch.cat(row, dim=1) for row in parts])


class Drawn(Noise):
    """The same numbers for a sampler's fused scale and the recipe's square root."""

    def normal(self, like: Tensor, std: float = 1.0) -> Tensor:
        return super().normal(like) * std


def eye(z: Tensor) -> Tensor:
    return torch.eye(2, dtype=z.dtype)


def sgrhmc_curl(z: Tensor) -> Tensor:
    root = torch.diag(metric(z[:2])[0].sqrt())
    nil = zeros(z, 2)
    return block([[nil, -root], [root, nil]])


def sgnht_curl(z: Tensor) -> Tensor:
    nil, p = zeros(z, 2), z[2:4].view(2, 1) / 2
    side = z.new_zeros(2, 1)
    return block([[nil, -eye(z), side], [eye(z), nil, p], [side.T, -p.T, z.new_zeros(1, 1)]])


def momentum_diffusion(z: Tensor, c: Tensor, rest: int = 0) -> Tensor:
    return torch.block_diag(zeros(z, 2), c, z.new_zeros(rest, rest))


def hamiltonian_curl(z: Tensor) -> Tensor:
    return block([[zeros(z, 2), -eye(z)], [eye(z), zeros(z, 2)]])


Energy = Callable[[Tensor], Tensor]


def of_position(z: Tensor) -> Tensor:
    return gradient(z)


def of_phase(z: Tensor) -> Tensor:
    return torch.cat([gradient(z[:, :2]), z[:, 2:4]], dim=1)


def of_thermostat(z: Tensor) -> Tensor:
    """H = U + p.p / 2 + n (xi - A)^2 / 2."""
    return torch.cat([gradient(z[:, :2]), z[:, 2:4], 2 * (z[:, 4:] - C)], dim=1)


PHASE = ((2, 3), (0, 1))
CASES: dict[str, tuple[Sampler, Recipe, Energy]] = {
    "sgld": (SGLD(), from_recipe(eye, lambda z: zeros(z, 2)), of_position),
    "sgrld": (
        SGRLD(metric),
        from_recipe(lambda z: torch.diag(metric(z)[0]), lambda z: zeros(z, 2)),
        of_position,
    ),
    "sghmc": (
        SGHMC(C),
        from_recipe(lambda z: momentum_diffusion(z, C * eye(z)), hamiltonian_curl, PHASE),
        of_phase,
    ),
    "sghmc, noise estimate": (
        SGHMC(C, noise_estimate=2.0),
        from_recipe(
            lambda z: momentum_diffusion(z, C * eye(z)),
            hamiltonian_curl,
            PHASE,
            lambda z: momentum_diffusion(z, 2.0 * eye(z)),
        ),
        of_phase,
    ),
    "sgnht": (
        SGNHT(C, per="row"),
        from_recipe(lambda z: momentum_diffusion(z, C * eye(z), 1), sgnht_curl, (*PHASE, (4,))),
        of_thermostat,
    ),
    "sgrhmc": (
        SGRHMC(metric, C),
        from_recipe(
            lambda z: momentum_diffusion(z, C * torch.diag(metric(z[:2])[0])), sgrhmc_curl, PHASE
        ),
        of_phase,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_recipe_makes_the_same_chain(name: str) -> None:
    sampler, recipe, slope = CASES[name]
    start = Noise(noise(140)).normal(torch.empty(N, 2, dtype=torch.float64))
    state = sampler.init(start, TAU, Noise(noise(141)))
    z = torch.cat([part.clone() for part in state if part is not None], dim=1)
    one = Drawn(noise(142))
    for _ in range(12):
        state = sampler.step(state, gradient(state.position), H, ONE, TAU, one)
    other = Drawn(noise(142))
    if recipe.groups is None:
        for _ in range(12):
            z = recipe.step(z, slope, H, TAU, other)
    else:
        # a group without diffusion has no use for its numbers: leave them to the next step
        groups = recipe.groups
        for _ in range(12):
            z = recipe.step(z, slope, H, TAU, Only(other, len(groups)))
    found = torch.cat([part for part in state if part is not None], dim=1)
    torch.testing.assert_close(z, found, rtol=1e-9, atol=1e-11)


class Only(Noise):
    """Noise for the first group alone, the momenta; the others have no diffusion."""

    def __init__(self, source: Noise, groups: int) -> None:
        self._of, self._groups, self._asked = source, groups, 0

    def normal(self, like: Tensor, std: float = 1.0) -> Tensor:
        self._asked += 1
        return self._of.normal(like, std) if self._asked == 1 else torch.full_like(like, 1e9)


def test_all_at_once_is_euler_and_maruyama() -> None:
    """Without groups the new momentum does not reach the position in the same step."""
    recipe = from_recipe(lambda z: momentum_diffusion(z, C * eye(z)), hamiltonian_curl)
    z = Noise(noise(143)).normal(torch.empty(N, 4, dtype=torch.float64))
    moved = recipe.step(z, of_phase, H, 0.0, Drawn(noise(144)))
    torch.testing.assert_close(moved[:, :2], z[:, :2] + H * z[:, 2:])
    force = -gradient(z[:, :2]) - C * z[:, 2:]
    torch.testing.assert_close(moved[:, 2:], z[:, 2:] + H * force)


def test_a_new_sampler_leaves_a_correlated_gaussian_in_place() -> None:
    """D full and dependent on the state, Q too: made up here, right by the theorem."""
    precision = torch.tensor([[2.0, -0.8], [-0.8, 1.0]], dtype=torch.float64)

    def diffusion(z: Tensor) -> Tensor:
        root = torch.stack([torch.stack([1 + 0.3 * torch.sin(z[1]), 0.2 * z[0].tanh()]),
                            torch.stack([z.new_zeros(()), 1 + 0.2 * torch.cos(z[0])])])  # fmt: skip
        return root @ root.T

    def curl(z: Tensor) -> Tensor:
        q = 0.7 * torch.cos(z[0] - z[1])
        return torch.stack([torch.stack([z.new_zeros(()), q]), torch.stack([-q, z.new_zeros(())])])

    recipe, source = from_recipe(diffusion, curl), Noise(noise(145))
    covariance = torch.linalg.inv(precision)
    z = (
        source.normal(torch.empty(20_000, 2, dtype=torch.float64))
        @ torch.linalg.cholesky(covariance).T
    )
    for _ in range(60):
        z = recipe.step(z, lambda x: x @ precision, 0.02, 1.0, source)
    # 4 % of the variance is allowed for the step
    for i in range(2):
        assert_moments(z[:, i], 0.0, covariance[i, i].item(), slack=0.04)
    assert_moments(z.sum(1), 0.0, covariance.sum().item(), slack=0.04)
    without = torch.func.vmap(lambda one: diffusion(one) + curl(one))(z[:3])
    plain = -torch.einsum("nij,nj->ni", without, z[:3] @ precision)
    assert not torch.allclose(recipe.drift(z[:3], z[:3] @ precision, 1.0), plain)


def test_a_noise_estimate_that_is_too_large_is_refused() -> None:
    recipe = from_recipe(eye, lambda z: zeros(z, 2), noise_estimate=lambda z: 100 * eye(z))
    with pytest.raises(ValueError, match="noise estimate"):
        recipe.step(torch.zeros(2, 2, dtype=torch.float64), gradient, 0.1, 1.0, Noise(noise(146)))


@pytest.mark.parametrize(
    ("diffusion", "curl", "groups", "words"),
    [
        (lambda z: -eye(z), lambda z: zeros(z, 2), None, "D is not positive"),
        (eye, lambda z: 0.9 * eye(z).flip(0), None, "skew"),
        (lambda z: eye(z) + 0.5 * eye(z).flip(0), lambda z: zeros(z, 2), ((0,), (1,)), "couples"),
        (eye, lambda z: zeros(z, 2), ((0,),), "each of 2 coordinates once"),
        (eye, lambda z: zeros(z, 2), ((0, 1), (1,)), "each of 2 coordinates once"),
    ],
)
def test_what_samples_another_law_is_refused(
    diffusion: Energy, curl: Energy, groups: tuple[tuple[int, ...], ...] | None, words: str
) -> None:
    z = torch.zeros(3, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match=words):
        from_recipe(diffusion, curl, groups).step(z, gradient, 0.1, 1.0, Noise(noise(147)))


def test_state_is_what_the_recipe_moves() -> None:
    assert State._fields == ("position", "momentum", "thermostat")  # the order of z above
