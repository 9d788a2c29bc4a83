"""The thermostat experiments: what they are made of against closed forms, and their orderings."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor, distributions

from bnmf.experiments import EXPERIMENTS
from bnmf.experiments.base import Result, noise
from bnmf.experiments.thermostats import (
    Bins,
    Data,
    N,
    Noise,
    batch_time,
    mean_slope,
    misfit,
    momentum_square,
    noisy_slope,
    normal_gamma_slope,
    posteriors,
    potential,
    settled,
    subset_sums,
    well_bins,
)
from tests import oracles
from tests.oracles import SEED, assert_uniform


def _column(result: Result, name: str, *keys: str | float) -> float:
    """The entry of the row that begins with ``keys``."""
    for row in zip(*result.table.values(), strict=True):
        if row[: len(keys)] == keys:
            return float(row[list(result.table).index(name)])
    raise KeyError(keys)


def test_all_subsets_are_equally_likely() -> None:
    values = 2.0 ** torch.arange(6, dtype=torch.float64)[:, None]  # a sum names its subset
    sums = subset_sums(values, 3, 40_000, oracles.noise(1))[:, 0].long()
    subsets = [sum(2**k for k in chosen) for chosen in combinations(range(6), 3)]
    counts = torch.bincount(sums, minlength=64)[subsets].double().numpy()
    assert counts.sum() == 40_000
    assert_uniform(counts)


def test_the_minibatches_are_unbiased_with_the_stated_variance() -> None:
    data = Data.draw(SEED)
    sums = torch.cat([next(data.sums(8192, oracles.noise(2, k))) for k in range(4)])
    oracles.assert_moments(sums[:, 0], 0.0, data.noise_variance)
    squares = N * (N - 10) / 10 * float((data.x**2).var(ddof=1))
    oracles.assert_moments(sums[:, 1], N - 1.0, squares)


class _Still(Noise):
    def normal(self, like: Tensor, std: float = 1.0) -> Tensor:
        assert std == pytest.approx(math.sqrt(200.0))  # 2 B / h
        return torch.zeros_like(like)


def test_the_slope_of_the_double_well() -> None:
    theta = torch.linspace(-4.0, 4.0, 9, dtype=torch.float64)[:, None].requires_grad_()
    potential(theta).sum().backward()
    assert theta.grad is not None
    torch.testing.assert_close(noisy_slope(theta.detach(), _Still(noise(0).source)), theta.grad)


def test_the_bins_of_the_double_well_hold_everything() -> None:
    for temperature in (0.1, 1.0):
        bins = well_bins(temperature)
        assert float(bins.exact @ np.diff(bins.edges)) == pytest.approx(1.0, abs=1e-9)
    total = integrate.quad(lambda x: math.exp(-potential(x)), -10, 10, limit=200)[0]
    middle = integrate.quad(lambda x: math.exp(-potential(x)), bins.edges[30], bins.edges[31])[0]
    assert bins.exact[30] == pytest.approx(middle / total / np.diff(bins.edges)[30], rel=1e-6)


def test_the_slopes_of_the_normal_models() -> None:
    x = torch.from_numpy(Data.draw(SEED).x)
    sums = torch.stack((x.sum(), x.square().sum()))[None]
    theta = torch.tensor([[0.3, 1.2]], dtype=torch.float64, requires_grad=True)
    mu, gamma = theta[0]
    likelihood = distributions.Normal(mu, gamma**-0.5).log_prob(x).sum()
    prior = distributions.Normal(0.0, gamma**-0.5).log_prob(mu)
    prior = prior + distributions.Gamma(1.0, 1.0).log_prob(gamma)
    (wanted,) = torch.autograd.grad(-likelihood - prior, theta)
    torch.testing.assert_close(normal_gamma_slope(theta.detach(), sums), wanted)

    mean = theta.detach()[:, :1].requires_grad_()
    (wanted,) = torch.autograd.grad(0.5 * (x - mean).square().sum(), mean)
    torch.testing.assert_close(mean_slope(mean.detach(), sums), wanted)


def test_the_posteriors_of_the_normal_model() -> None:
    x = Data.draw(SEED).x[:7]
    nodes, weights = np.polynomial.legendre.leggauss(400)
    mu, gamma = 6.0 * nodes[:, None], 20.0 * (nodes + 1.0)
    log = stats.norm.logpdf(x, mu[..., None], gamma[:, None] ** -0.5).sum(axis=-1)
    log = log + stats.norm.logpdf(mu, 0.0, gamma**-0.5) + stats.gamma.logpdf(gamma, 1.0)
    mass = np.exp(log - log.max()) * weights[:, None] * weights
    mass /= mass.sum()
    for axis, values, law in zip((1, 0), (mu[:, 0], gamma), posteriors(x), strict=True):
        for power in (1, 2):
            moment = mass.sum(axis=axis) @ values**power
            assert moment == pytest.approx(law.moment(power), rel=1e-4)


def test_the_law_of_the_linear_chain() -> None:
    h, c, a, forcing = 0.05, 3.0, 20.0, 11.0
    # covariance of (theta, p) from its own fixed point
    step = np.array([[1 - h * h * a, h * (1 - c * h)], [-h * a, 1 - c * h]])
    shock = h * forcing * np.array([[h * h, h], [h, 1.0]])
    covariance = np.linalg.solve(np.eye(4) - np.kron(step, step), shock.ravel()).reshape(2, 2)
    assert momentum_square(c, forcing, a, h) == pytest.approx(covariance[1, 1])
    xi = settled(forcing, a, h)  # E[p^2] = 1, with h for the variance of xi beside
    assert momentum_square(xi, forcing + h, a, h) == pytest.approx(1.0)


def test_batches_find_the_autocorrelation_time() -> None:
    rng = oracles.numpy_noise(3)
    series = np.zeros((4000, 200))
    for t in range(1, 4000):
        series[t] = 0.8 * series[t - 1] + rng.standard_normal(200)
    # (1 + 0.8) / (1 - 0.8); 16,000 means give 1 % of error, a batch of 50 tells 9 % too little
    assert batch_time(series, 400) == pytest.approx(9.0, rel=0.15)


def test_a_misfit_knows_its_noise() -> None:
    law = stats.norm(0.0, 1.0)
    bins = Bins.of(law)
    rng = oracles.numpy_noise(4)
    right = misfit([bins.densities(rng.standard_normal((50, 400)))], [bins.exact])
    wide = misfit([bins.densities(1.2 * rng.standard_normal((50, 400)))], [bins.exact])
    assert abs(right.square) < oracles.ERRORS * right.error
    assert right.below(wide) and not wide.below(right)
    bias = np.diff(stats.norm(0, 1.2).cdf(bins.edges)) / np.diff(bins.edges) - bins.exact
    assert abs(wide.square - np.mean(bias**2)) < oracles.ERRORS * wide.error


def test_the_double_well() -> None:
    result = EXPERIMENTS["double-well"].run(True, SEED)
    rmse = {name: _column(result, "rmse", name) for name in result.table["method"]}
    # right ones have only their noise, about 0.01; wrong ones 0.14 and 0.2
    for right in ("SGNHT", "friction 1"):
        assert 3 * rmse[right] < min(rmse["friction 0.1"], rmse["friction 10"])
    assert _column(result, "kinetic", "SGNHT") == pytest.approx(0.5, abs=0.01)
    assert _column(result, "kinetic", "friction 0.1") > 2.5
    assert _column(result, "kinetic", "friction 10") < 0.1
    assert all(claim.holds for claim in result.claims), result.claims


def test_the_gaussian_mean() -> None:
    result = EXPERIMENTS["gaussian-mean"].run(True, SEED)
    for friction in (1.0, 10.0):
        at = 0.01, friction
        # 1.04 and 0.30 against 0.04 and 0.07: at least twice as far
        ours, theirs = (_column(result, "rmse", m, *at) for m in ("SGNHT", "SGHMC"))
        assert 2 * ours < theirs
        assert _column(result, "kinetic", "SGNHT", *at) == pytest.approx(0.5, abs=0.015)
        assert _column(result, "kinetic", "SGHMC", *at) > 0.65
    assert all(claim.holds for claim in result.claims), result.claims


def test_the_normal_gamma() -> None:
    result = EXPERIMENTS["normal-gamma"].run(True, SEED)
    for friction in (1.0, 10.0):
        at = 0.01, friction
        # 0.87 and 0.24 against 0.18 and 0.07: at least half as far again
        ours, theirs = (_column(result, "rmse", m, *at) for m in ("SGNHT", "SGHMC"))
        assert 1.5 * ours < theirs
    for method in ("SGNHT", "SGHMC"):
        # A = 10 takes twice to three times as many steps as A = 1
        times = [_column(result, "tau", method, 0.01, a) for a in (1.0, 10.0)]
        assert 1.5 * times[0] < times[1]
