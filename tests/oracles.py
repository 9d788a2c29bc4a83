"""Targets with known moments: closed forms, and the exact law of a discretised chain.

A Langevin chain with step eps does not leave its target in place but a law nearby. That law is
the fixed point of a known Gaussian kernel, so on the line it can be had to machine precision by
quadrature: tests compare chains with it and need no allowance for the step.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

Vector = NDArray[np.float64]
Function = Callable[[Vector], Vector]

# Statistical tests hold for any seed; this variable tries others.
SEED = int(os.environ.get("BNMF_TEST_SEED", "1"))

# Monte Carlo standard errors: beyond 5, chance would have to be one in 1.7 million.
ERRORS = 5.0


def noise(*stream: int) -> torch.Generator:
    """A generator of its own for each stream of a test."""
    words = np.random.SeedSequence((SEED, len(stream), *stream)).generate_state(2)
    fresh = torch.Generator()
    fresh.manual_seed(int(words[0]) << 31 | int(words[1]) >> 1)
    return fresh


def numpy_noise(*stream: int) -> np.random.Generator:
    """The same for numpy."""
    return np.random.default_rng((SEED, *stream))


def assert_moments(
    samples: Tensor | Vector, mean: float, variance: float, slack: float = 0.0
) -> None:
    """Mean and variance of independent samples, within `ERRORS` of their standard errors.

    ``slack`` widens both by a share of the standard deviation and of the variance.
    """
    x = np.asarray(samples, np.float64).ravel()
    centred = x - x.mean()
    spread = np.mean(centred**2)
    error = math.sqrt(spread / len(x))
    assert abs(x.mean() - mean) <= ERRORS * error + slack * math.sqrt(variance), (
        f"mean {x.mean():.6g}, not {mean:.6g} +- {error:.2g}"
    )
    error = math.sqrt((np.mean(centred**4) - spread**2) / len(x))
    assert abs(spread - variance) <= ERRORS * error + slack * variance, (
        f"variance {spread:.6g}, not {variance:.6g} +- {error:.2g}"
    )


def assert_uniform(counts: Vector) -> None:
    """Chi-square: equally likely outcomes, at the significance of `ERRORS` standard errors."""
    expected = counts.sum() / len(counts)
    statistic = float(np.sum((counts - expected) ** 2) / expected)
    limit = special.chdtri(len(counts) - 1, math.erfc(ERRORS / math.sqrt(2.0)))
    assert statistic <= limit, f"chi-square {statistic:.1f} > {limit:.1f}"


@lru_cache
def _gauss(points: int) -> tuple[Vector, Vector]:
    """Nodes and weights of Gauss and Legendre on (-1, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return nodes, weights


# -- the transforms, once more and in another way -------------------------------------------


def _ein(x: Vector) -> Vector:
    """x - x^2/(2 2!) + x^3/(3 3!) - ... = E1(x) + log x + gamma, by quadrature of its integrand."""
    nodes, weights = _gauss(40)
    small = np.minimum(x, 4.0)
    half = 0.5 * small[..., None]
    t = half * (nodes + 1.0)
    below = np.sum(-np.expm1(-t) / t * half * weights, axis=-1)
    with np.errstate(divide="ignore"):
        above = special.exp1(x) + np.log(x) + np.euler_gamma
    return np.where(x < 4.0, below, above)


FORWARD: dict[str, Function] = {
    "exp": np.exp,
    "softplus": lambda phi: np.logaddexp(0.0, phi),
    "icll": lambda phi: _ein(np.exp(phi)),
}
SLOPE: dict[str, Function] = {
    "exp": np.exp,
    "softplus": special.expit,
    "icll": lambda phi: -np.expm1(-np.exp(phi)),
}
BEND: dict[str, Function] = {
    "exp": np.ones_like,
    "softplus": lambda phi: special.expit(-phi),
    "icll": lambda phi: np.exp(phi - np.exp(phi)) / -np.expm1(-np.exp(phi)),
}


def proxy_gradient(name: str, gradient: Function, temperature: float = 1.0) -> Function:
    """dU/dphi of phi = f^-1(theta) from dU/dtheta."""
    return lambda phi: (
        SLOPE[name](phi) * gradient(FORWARD[name](phi)) - temperature * BEND[name](phi)
    )


# -- exact laws ---------------------------------------------------------------------------


class Law(NamedTuple):
    """A distribution on the line, by quadrature."""

    points: Vector
    weights: Vector  # not negative, sum to 1

    def sample(self, n: int, rng: np.random.Generator) -> Tensor:
        """n independent points, (n, 1) float64."""
        return torch.from_numpy(rng.choice(self.points, (n, 1), p=self.weights))

    def moments(self, of: Function = lambda x: x) -> tuple[float, float]:
        """Mean and variance of a function."""
        values = of(self.points)
        mean = float(self.weights @ values)
        return mean, float(self.weights @ (values - mean) ** 2)


class Langevin:
    """The kernel of x <- x - eps g(x) + sqrt(2 eps tau) eta on an interval, or its reflection."""

    def __init__(
        self,
        interval: tuple[float, float],
        step: float,
        temperature: float = 1.0,
        points: int = 400,
        reflect: bool = False,
    ) -> None:
        nodes, weights = _gauss(points)
        low, high = interval
        self.points = 0.5 * (high - low) * (nodes + 1.0) + low
        self._weights = 0.5 * (high - low) * weights
        self._step, self._variance, self._reflect = step, 2.0 * step * temperature, reflect

    def kernel(self, gradient: Function) -> Vector:
        """P[i, j]: from point i into the neighbourhood of point j; rows sum to 1."""
        to = (self.points - self._step * gradient(self.points))[:, None]

        def density(at: Vector) -> Vector:
            return np.exp(-((at[None, :] - to) ** 2) / (2.0 * self._variance))

        there = density(self.points)
        if self._reflect:
            there = there + density(-self.points)
        there = there * self._weights
        matrix: Vector = there / there.sum(axis=1, keepdims=True)
        return matrix

    def law(self, kernel: Vector) -> Law:
        """The stationary law."""
        # by torch, whose threads a test can hold down; numpy's get in each other's way
        one = torch.zeros(len(kernel), dtype=torch.float64)
        one[0] = 1.0
        system = torch.from_numpy(kernel).T - torch.eye(len(kernel), dtype=torch.float64)
        system[0] = 1.0
        weights = torch.linalg.solve(system, one).clamp_min(0.0)  # round-off is of either sign
        return Law(self.points, (weights / weights.sum()).numpy())


class NoseHoover(NamedTuple):
    """The discretised SGNHT on independent Gaussians, for many parameters.

    With xi constant, p' = (1 - xi h) p - h a theta + N(0, 2 A tau h + h^2 V) and
    theta' = theta + h p' are linear. Stationary second moments of one parameter of precision a:
    E[theta p'] = -h E[p^2] / 2, so E[theta^2] = E[p^2] (1 - xi h / 2) / a, and
    E[p^2] (2 xi - xi^2 h - xi h^2 a / 2) = 2 A tau + h V. The thermostat sets xi so that the
    mean of E[p^2] is tau. Fluctuations: Var[xi] = tau / n to first order.
    """

    thermostat: float
    momentum: Vector  # E[p^2] of each precision
    position: Vector  # E[theta^2] of each precision

    @staticmethod
    def solve(
        precisions: Sequence[float],
        step: float,
        diffusion: float,
        temperature: float = 1.0,
        gradient_variance: float = 0.0,
    ) -> NoseHoover:
        """For equally many parameters of each precision."""
        a = np.asarray(precisions, np.float64)
        forcing = 2.0 * diffusion * temperature + step * gradient_variance

        def momentum(xi: float) -> Vector:
            drag: Vector = forcing / (2 * xi - xi * xi * step - xi * step * step * a / 2)
            return drag

        low, high = 1e-9, 1.0 / step
        for _ in range(200):
            xi = 0.5 * (low + high)
            if momentum(xi).mean() > temperature:
                low = xi
            else:
                high = xi
        return NoseHoover(xi, momentum(xi), momentum(xi) * (1.0 - xi * step / 2) / a)
