"""Point errors, the biases-only baseline, coverage of predictions that are right and that lie."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from bnmf.cells import Cells
from bnmf.diagnostics import LEVELS, Ratings, accuracy, by_activity, calibration, fit_biases
from bnmf.likelihoods import Gaussian, Likelihood, Poisson, RatingScale
from tests.oracles import ERRORS, numpy_noise


def ratings_of(seed: int, users: int, items: int, share: float) -> Ratings:
    """A random table; at least one rating."""
    rng = np.random.default_rng(seed)
    u, i = np.nonzero(rng.random((users, items)) < share)
    if not len(u):
        u, i = np.array([0]), np.array([0])
    return u, i, (rng.integers(1, 11, len(u)) / 2).astype(np.float32)


def ridge(ratings: Ratings, shape: tuple[int, int]) -> tuple[float, np.ndarray, np.ndarray]:
    """min sum (x - mean - b_u - b_i)^2 + 15 |b_user|^2 + 10 |b_item|^2, by its linear system."""
    users, items, x = ratings
    n = len(x)
    design = np.zeros((n, sum(shape)))
    design[np.arange(n), users] = 1.0
    design[np.arange(n), shape[0] + items] = 1.0
    penalty = np.diag([15.0] * shape[0] + [10.0] * shape[1])
    mean = float(x.astype(np.float64).mean())
    both = np.linalg.solve(design.T @ design + penalty, design.T @ (x.astype(np.float64) - mean))
    return mean, both[: shape[0]], both[shape[0] :]


@settings(deadline=None, derandomize=False, max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    users=st.integers(1, 9),
    items=st.integers(1, 9),
    share=st.floats(0.0, 1.0),
    chunks=st.integers(1, 4),
)
def test_biases_are_the_ridge_solution(
    seed: int, users: int, items: int, share: float, chunks: int
) -> None:
    ratings, shape = ratings_of(seed, users, items, share), (users, items)
    parts = [
        tuple(column[at::chunks] for column in ratings)
        for at in range(chunks)
        if len(ratings[0][at::chunks])
    ]
    biases = fit_biases(lambda: iter(parts), shape, rounds=60)
    mean, user, item = ridge(ratings, shape)
    assert biases.mean == pytest.approx(mean, rel=1e-12)
    np.testing.assert_allclose(biases.user, user, atol=1e-8)
    np.testing.assert_allclose(biases.item, item, atol=1e-8)
    np.testing.assert_allclose(
        biases.predict(ratings[0], ratings[1]), mean + user[ratings[0]] + item[ratings[1]]
    )


def test_ten_rounds_are_enough_for_a_table_with_many_ratings() -> None:
    ratings = ratings_of(1, 60, 40, 0.4)
    biases = fit_biases(lambda: iter([ratings]), (60, 40))
    _, user, item = ridge(ratings, (60, 40))
    np.testing.assert_allclose(biases.user, user, atol=1e-3)
    np.testing.assert_allclose(biases.item, item, atol=1e-3)


def test_users_and_items_without_ratings_have_no_bias() -> None:
    ratings = np.array([1]), np.array([2]), np.array([4.0])
    biases = fit_biases(lambda: iter([ratings]), (3, 4))
    assert biases.mean == 4.0
    assert not biases.user.any() and not biases.item.any()


@settings(deadline=None, derandomize=False)
@given(st.lists(st.tuples(st.floats(0.0, 9.0), st.floats(0.0, 9.0)), min_size=1, max_size=30))
def test_accuracy_is_its_definition(pairs: list[tuple[float, float]]) -> None:
    x, prediction = np.array(pairs).T
    found = accuracy(x, prediction)
    assert found.rmse**2 == pytest.approx(sum((a - b) ** 2 for a, b in pairs) / len(pairs))
    assert found.mae == pytest.approx(sum(abs(a - b) for a, b in pairs) / len(pairs))


def test_accuracy_sums_in_double_precision() -> None:
    x = np.full(10, 16_777_216.0, np.float32)
    assert accuracy(x, np.full(10, 16_777_217.0)).rmse == 1.0


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


def simulated(likelihood: Likelihood, factor: float) -> tuple[dict[str, float], int]:
    """Coverage of ratings from the likelihood, told that their spread is ``factor`` times it."""
    n, scale = 20_000, RatingScale(0.5, 5.0, 0.5)
    rng = numpy_noise(20)
    mu = rng.uniform(1.5, 4.0, (n, 1)) + rng.normal(0.0, 0.2, (n, 3))  # under three draws
    precision = np.exp(rng.normal(1.2, 0.3, (n, 1)))  # of each its own
    weights = np.array([0.5, 0.3, 0.2])
    rate = mu[np.arange(n), rng.choice(3, n, p=weights)]
    x = rng.normal(rate, np.sqrt(likelihood.variance(rate, precision[:, 0])))
    x = np.clip(np.round(x / scale.step) * scale.step, scale.low, scale.high)
    std = np.sqrt(likelihood.variance(mu, precision / factor**2))
    edges = Cells.rounding(scale).distribution(x, mu, std)
    lower, upper = (edge @ weights for edge in edges)
    return calibration(lower, upper).coverage, n


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.2])
@pytest.mark.parametrize("likelihood", [Gaussian(), Poisson()])
def test_a_model_whose_noise_is_wrong_by_a_fifth_is_flagged(
    likelihood: Likelihood, factor: float
) -> None:
    coverage, n = simulated(likelihood, factor)
    for level, share in coverage.items():
        c = int(level) / 100
        away = (share - c) / math.sqrt(c * (1 - c) / n)
        if factor == 1.0:
            assert abs(away) < ERRORS, level
        else:
            assert (away if factor > 1.0 else -away) > ERRORS, level


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


# -- by activity ----------------------------------------------------------------------------


@settings(deadline=None, derandomize=False, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    users=st.integers(1, 60),
    n=st.integers(1, 200),
    most=st.integers(0, 30),
)
def test_tenths_of_users_by_brute_force(seed: int, users: int, n: int, most: int) -> None:
    """A user is in tenth k who is at least as active as the one at k tenths of the ranking."""
    rng = np.random.default_rng(seed)
    activity, user = rng.integers(0, most + 1, users), rng.integers(0, users, n)
    x, mean = rng.normal(size=n), rng.normal(size=n)
    lower, upper = np.sort(rng.random((2, n)), axis=0)
    held = sorted(activity[one] for one in set(user.tolist()))
    rows: dict[int, list[int]] = {}
    for row, one in enumerate(user):
        tenth = sum(activity[one] >= held[k * len(held) // 10] for k in range(1, 10))
        rows.setdefault(tenth, []).append(row)
    found = by_activity(activity, user, x, mean, lower, upper)
    assert len(found) == len(rows) and sum(part["count"] for part in found) == n
    for part, (_, mine) in zip(found, sorted(rows.items()), strict=True):
        own = [activity[user[row]] for row in mine]
        assert part["training_ratings"] == [min(own), max(own)]
        assert part["rmse"] == accuracy(x[mine], mean[mine]).rmse
        expected = calibration(lower[mine], upper[mine])
        assert part["coverage"] == expected.coverage and part["count"] == len(mine)
        assert part["log_predictive_density"] == expected.log_predictive_density


def test_tenths_of_many_users_hold_a_tenth_each() -> None:
    activity = numpy_noise(5).permutation(1000)
    n = np.zeros(1000)
    found = by_activity(activity, np.arange(1000), n, n, n, n + 1.0)
    ends = [part["training_ratings"] for part in found]
    assert ends == [[100 * k, 100 * k + 99] for k in range(10)]
