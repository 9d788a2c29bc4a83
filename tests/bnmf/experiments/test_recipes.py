"""The recipe's simulated targets: exact parts, one sampler by two ways, the paper's orderings."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import Tensor

from bnmf.domains import CoRV
from bnmf.experiments import EXPERIMENTS
from bnmf.experiments.base import Result, chain
from bnmf.experiments.recipes import ONE_PEAK, PLANE, ROUNDING, TWO_PEAKS, Target, metric
from bnmf.random import Noise
from bnmf.samplers import Sampler
from bnmf.samplers.recipe import Matrix, from_recipe
from bnmf.samplers.sghmc import SGHMC
from bnmf.samplers.sgrhmc import SGRHMC
from bnmf.transforms import Identity
from tests.oracles import SEED, noise

each_target = pytest.mark.parametrize("target", [ONE_PEAK, TWO_PEAKS, PLANE], ids=lambda t: t.name)


def _somewhere(target: Target) -> Tensor:
    return torch.randn(50, len(target.start), generator=noise(1), dtype=torch.float64)


@each_target
def test_slopes_and_metrics_by_autograd(target: Target) -> None:
    theta = _somewhere(target).requires_grad_()
    (slope,) = torch.autograd.grad(target.level(theta).sum(), theta)
    torch.testing.assert_close(slope, target.slope(theta))
    for rounding in (0.0, ROUNDING):
        d, bend = metric(target, rounding)(theta)
        assert d.shape == theta.shape and bool((d > 0).all())
        (derivative,) = torch.autograd.grad(d[:, 0].sum(), theta)
        torch.testing.assert_close(derivative, bend)


def test_the_printed_metric_has_zeros() -> None:
    zeros = torch.tensor([1.0 - 0.5**0.5, 1.0 + 0.5**0.5], dtype=torch.float64).sqrt()[:, None]
    assert bool((metric(TWO_PEAKS)(zeros)[0] < 1e-7).all())
    assert bool((metric(TWO_PEAKS, ROUNDING)(zeros)[0] > 0.4).all())


def test_the_planes_bins_have_their_probabilities() -> None:
    """Given theta_1, theta_2 is normal with a constant deviation: exp(-t^4/10) is a marginal."""
    bins = PLANE.bins()
    truth = bins.truth.reshape(bins.shape)
    edges = bins.edges[0]

    def density(t: float) -> float:
        return math.exp(-(t**4) / 10.0)

    total = integrate.quad(density, -6.0, 6.0)[0]
    exact = [integrate.quad(density, a, b)[0] / total for a, b in itertools.pairwise(edges)]
    np.testing.assert_allclose(truth.sum(1), exact, atol=1e-6)
    place = bins.place(torch.tensor([[-9.0, -9.0], [9.0, 9.0]], dtype=torch.float64))
    assert place.tolist() == [0, len(bins.truth) - 1]


class _Tape(Noise):
    """Numbers drawn before; with ``gap``, zeros for every second draw."""

    def __init__(self, numbers: list[Tensor], gap: bool = False) -> None:
        self._numbers, self._gap, self._draws = numbers, gap, 0

    def normal(self, like: Tensor, std: float = 1.0) -> Tensor:
        draw, self._draws = self._draws, self._draws + 1
        if self._gap:
            return torch.zeros_like(like) if draw % 2 else std * self._numbers[draw // 2]
        return std * self._numbers[draw]


def _matrix(rows: list[list[Tensor]]) -> Tensor:
    return torch.stack([torch.stack(row) for row in rows])


def _in_the_plane(name: str) -> tuple[Sampler, Matrix, Matrix, Matrix]:
    """A built-in sampler, and its D, Q and noise covariance for z = (theta_1, theta_2, r_1, r_2)."""
    friction, estimate = 0.7, 1.0
    curved = metric(PLANE)

    def inverse(z: Tensor) -> Tensor:
        return curved(z[None, :2])[0][0, 0] if name == "gSGRHMC" else torch.ones_like(z[0])

    def diffusion(z: Tensor) -> Tensor:
        o, d = torch.zeros_like(z[0]), friction * inverse(z)
        return _matrix([[o, o, o, o], [o, o, o, o], [o, o, d, o], [o, o, o, d]])

    def curl(z: Tensor) -> Tensor:
        o, s = torch.zeros_like(z[0]), inverse(z).sqrt()
        return _matrix([[o, o, -s, o], [o, o, o, -s], [s, o, o, o], [o, s, o, o]])

    def covariance(z: Tensor) -> Tensor:
        o, d = torch.zeros_like(z[0]), estimate * inverse(z)
        return _matrix([[o, o, o, o], [o, o, o, o], [o, o, d, o], [o, o, o, d]])

    built_in: Sampler = SGHMC(friction, estimate)
    if name == "gSGRHMC":
        built_in = SGRHMC(curved, friction, estimate)
    return built_in, diffusion, curl, covariance


@pytest.mark.parametrize("name", ["SGHMC", "gSGRHMC"])
def test_the_recipe_makes_the_built_in_samplers_chain(name: str) -> None:
    """Step for step, with noise in the gradient: momenta first, then positions."""
    built_in, diffusion, curl, covariance = _in_the_plane(name)
    chains, steps, h, tau = 8, 50, 0.05, 1.3
    numbers = list(torch.randn(steps + 1, chains, 2, generator=noise(2), dtype=torch.float64))
    errors = torch.randn(steps, chains, 2, generator=noise(3), dtype=torch.float64)
    start = torch.tensor(PLANE.start, dtype=torch.float64).repeat(chains, 1)
    now = [0]

    def slope(theta: Tensor) -> Tensor:
        return PLANE.slope(theta) + errors[now[0]]

    run = chain(built_in, CoRV(Identity()), slope, start, h, steps, _Tape(numbers), tau)
    sampler = from_recipe(diffusion, curl, [(2, 3), (0, 1)], covariance)
    z = torch.cat([start, math.sqrt(tau) * numbers[0]], dim=1)  # the first draw is of momenta
    shocks = _Tape(numbers[1:], gap=True)  # positions are given no noise
    for t, (theta, state) in enumerate(run):
        assert state.momentum is not None
        z = sampler.step(
            z, lambda at: torch.cat([slope(at[:, :2]), at[:, 2:]], dim=1), h, tau, shocks
        )
        torch.testing.assert_close(z[:, :2], theta, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(z[:, 2:], state.momentum, rtol=1e-9, atol=1e-9)
        now[0] = min(t + 1, steps - 1)


def _best(result: Result, potential: str) -> dict[str, float]:
    columns = ("potential", "sampler", "best step", "KL of a chain")
    rows = zip(*(result.table[c] for c in columns), strict=True)
    return {str(s): float(kl) for p, s, best, kl in rows if p == potential and best}


def test_on_the_line_momenta_do_better_than_sgld() -> None:
    """The paper's ordering; 5 to 7 standard errors apart in the quick form. gSGRHMC's two peaks
    depend on how far its metric is rounded: it is asked to be within twice SGLD's divergence."""
    result = EXPERIMENTS["recipe-1d"].run(True, SEED)
    one, two = _best(result, ONE_PEAK.name), _best(result, TWO_PEAKS.name)
    assert max(one["SGHMC"], one["gSGRHMC"]) < 1.1 * one["SGLD"]
    assert two["SGHMC"] < 0.8 * two["SGLD"]
    assert two["gSGRHMC"] < 2.0 * two["SGLD"]
    assert two["gSGRHMC, as printed"] > 2.0 * two["gSGRHMC"]


def test_in_the_plane_momenta_explore_better_than_sgld() -> None:
    """The paper's orderings: at their best steps against SGLD, at equal ones between the two."""
    result = EXPERIMENTS["recipe-2d"].run(True, SEED)
    best = _best(result, PLANE.name)
    assert max(best["SGHMC"], best["gSGRHMC"]) < 0.95 * best["SGLD"]
    assert result.claims[-1].holds
