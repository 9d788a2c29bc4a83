"""Running moments against numpy; coverage of predictions that are right, and of ones that lie."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from bnmf.predictive import LEVELS, RunningMoments, calibration
from tests.oracles import ERRORS, numpy_noise

draws = st.lists(
    st.tuples(st.floats(1e-3, 10.0), st.lists(st.floats(-50.0, 50.0), min_size=3, max_size=3)),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, derandomize=False)
@given(draws=draws)
def test_running_moments_are_numpys(draws: list[tuple[float, list[float]]]) -> None:
    moments = RunningMoments(3)
    for weight, values in draws:
        moments.update(torch.tensor(values, dtype=torch.float64), weight)
    weights, values = np.array([w for w, _ in draws]), np.array([v for _, v in draws])
    mean = np.average(values, axis=0, weights=weights)
    variance = np.average((values - mean) ** 2, axis=0, weights=weights)
    assert moments.weight == pytest.approx(weights.sum(), rel=1e-12)
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moments.variance, variance, rtol=1e-9, atol=1e-9)


def test_no_draws_no_spread() -> None:
    moments = RunningMoments(2)
    assert moments.weight == 0.0 and moments.variance.tolist() == [0.0, 0.0]
    moments.update(torch.tensor([1.5, 2.5]), 0.25)
    assert moments.mean.tolist() == [1.5, 2.5] and moments.variance.tolist() == [0.0, 0.0]


def test_a_small_spread_about_a_large_mean_survives() -> None:
    values = 1e6 + numpy_noise(1).normal(0.0, 1e-3, (500, 1))
    moments = RunningMoments(1)
    for row in values:
        moments.update(torch.from_numpy(row), 1.0)
    np.testing.assert_allclose(moments.variance, values.var(axis=0), rtol=1e-4)


@settings(deadline=None, derandomize=False)
@given(draws=draws, cut=st.integers(0, 12))
def test_going_on_from_saved_tensors_is_exact(
    draws: list[tuple[float, list[float]]], cut: int
) -> None:
    whole, part = RunningMoments(3), RunningMoments(3)
    for at, (weight, values) in enumerate(draws):
        if at == cut:
            saved = {name: tensor.clone() for name, tensor in part.tensors().items()}
            part = RunningMoments.from_tensors(saved)
        for moments in (whole, part):
            moments.update(torch.tensor(values, dtype=torch.float32), weight)
    assert part.weight == whole.weight
    assert torch.equal(part.mean, whole.mean) and torch.equal(part.variance, whole.variance)
    assert all(tensor.dtype == torch.float64 for tensor in part.tensors().values())


@settings(deadline=None, derandomize=False)
@given(draws=draws, cuts=st.lists(st.integers(0, 12), min_size=1, max_size=3).map(sorted))
def test_pooled_moments_are_numpys_over_all_draws(
    draws: list[tuple[float, list[float]]], cuts: list[int]
) -> None:
    """Some parts have taken in nothing."""
    parts = []
    for a, b in pairwise([0, *cuts, len(draws)]):
        part = RunningMoments(3)
        for weight, values in draws[a:b]:
            part.update(torch.tensor(values, dtype=torch.float64), weight)
        parts.append(part)
    before = [part.mean.clone() for part in parts]
    pooled = RunningMoments.pooled(parts)
    weights, values = np.array([w for w, _ in draws]), np.array([v for _, v in draws])
    mean = np.average(values, axis=0, weights=weights)
    variance = np.average((values - mean) ** 2, axis=0, weights=weights)
    assert pooled.weight == pytest.approx(weights.sum(), rel=1e-12)
    np.testing.assert_allclose(pooled.mean, mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(pooled.variance, variance, rtol=1e-9, atol=1e-9)
    assert all(torch.equal(part.mean, old) for part, old in zip(parts, before, strict=True))


def test_one_part_pooled_is_itself_bit_for_bit() -> None:
    part = RunningMoments(3)
    for values in numpy_noise(7).normal(size=(9, 3)):
        part.update(torch.from_numpy(values), 0.3)
    pooled = RunningMoments.pooled([part])
    assert pooled.weight == part.weight
    assert torch.equal(pooled.mean, part.mean) and torch.equal(pooled.variance, part.variance)


# -- calibration ----------------------------------------------------------------------------


def cells(x: np.ndarray, spread: float, width: float) -> tuple[np.ndarray, np.ndarray]:
    """The cell of x on a grid, by the distribution function of N(0, spread^2)."""
    rounded = np.round(x / width) * width
    return (
        special.ndtr((rounded - width / 2) / spread),
        special.ndtr((rounded + width / 2) / spread),
    )


@pytest.mark.parametrize("width", [1e-6, 0.5, 2.0])
def test_the_right_model_covers_at_every_level(width: float) -> None:
    n = 20_000
    coverage = calibration(*cells(numpy_noise(2).normal(size=n), 1.0, width)).coverage
    assert tuple(map(int, coverage)) == LEVELS
    for level, share in coverage.items():
        c = int(level) / 100
        # at most the binomial's error: a rounded rating counts by its expected share
        assert abs(share - c) < ERRORS * math.sqrt(c * (1 - c) / n), level


@pytest.mark.parametrize(("spread", "sign"), [(0.8, -1), (1.2, 1)])
def test_a_spread_wrong_by_a_fifth_is_seen(spread: float, sign: int) -> None:
    n = 20_000
    coverage = calibration(*cells(numpy_noise(3).normal(size=n), spread, 0.1)).coverage
    for level, share in coverage.items():
        c = int(level) / 100
        assert sign * (share - c) > ERRORS * math.sqrt(c * (1 - c) / n), level


def test_a_shifted_mean_lowers_coverage() -> None:
    x = numpy_noise(4).normal(0.7, 1.0, 20_000)
    coverage = calibration(*cells(x, 1.0, 0.1)).coverage
    assert all(share < int(level) / 100 - 0.02 for level, share in coverage.items())


def test_shares_by_hand() -> None:
    """A cell half inside the 50 % interval counts one half; a point inside counts whole."""
    result = calibration(np.array([0.15, 0.4, 0.99]), np.array([0.35, 0.4, 1.0]))
    assert result.coverage["50"] == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert result.coverage["80"] == pytest.approx((1.0 + 1.0 + 0.0) / 3)
    assert result.coverage["95"] == pytest.approx((1.0 + 1.0 + 0.0) / 3)


def test_log_density_is_that_of_the_cell() -> None:
    x = np.arange(6)
    result = calibration(stats.poisson.cdf(x - 1, 2.5), stats.poisson.cdf(x, 2.5))
    expected = stats.poisson.logpmf(x, 2.5).mean()
    assert result.log_predictive_density == pytest.approx(expected, rel=1e-12)


def test_an_impossible_rating_is_finite() -> None:
    result = calibration(np.array([1.0]), np.array([1.0]))
    assert math.isfinite(result.log_predictive_density) and result.log_predictive_density < -700
    assert set(result.coverage.values()) == {0.0}
