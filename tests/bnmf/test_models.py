"""The Poisson likelihood: scores, densities, cells of the rating scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from bnmf.likelihoods import Poisson, RatingScale
from bnmf.models import PoissonNMF


@pytest.mark.parametrize("s", [1.0, 4.0, 2.5])
def test_score_is_the_derivative_of_log_prob(s: float) -> None:
    model = PoissonNMF(3, s, 1.0, 1.0)
    x = torch.tensor([0.0, 0.5, 1.0, 3.0, 5.0], dtype=torch.float64)
    mu = torch.tensor([0.3, 2.0, 1.0, 4.5, 1e-3], dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(model.log_prob(x, mu, None).sum(), mu)
    score, of_level = model.score(x, mu.detach(), None)
    torch.testing.assert_close(score, expected, rtol=1e-12, atol=1e-12)
    assert of_level is None


def test_log_prob_is_poissons() -> None:
    x, mu = np.arange(8.0), np.linspace(0.2, 6.0, 8)
    for s in (1.0, 4.0):
        got = PoissonNMF(1, s, 1.0, 1.0).log_prob(torch.tensor(x), torch.tensor(mu), None)
        np.testing.assert_allclose(got, stats.poisson.logpmf(s * x, s * mu), rtol=1e-12)


def test_information_is_the_expected_second_derivative() -> None:
    mu, s = 3.6, 4.0
    counts = np.arange(200)
    pmf = stats.poisson.pmf(counts, s * mu)
    assert Poisson().information(mu, s) == pytest.approx((pmf * counts / mu**2).sum(), rel=1e-9)


@pytest.mark.parametrize(("s", "step"), [(1.0, 1.0), (4.0, 1.0), (4.0, 0.5), (3.3, 0.5)])
def test_the_cells_of_the_rating_scale_partition_the_line(s: float, step: float) -> None:
    scale = RatingScale(step, 5.0, step)
    grid = np.arange(step, 5.0 + step / 2, step)
    mu = np.array([[0.01], [0.7], [3.5], [20.0]])
    lower, upper = PoissonNMF(1, s, 1.0, 1.0).cdf(grid, mu, None, scale)
    assert (lower[:, 0] == 0).all() and (upper[:, -1] == 1).all()
    np.testing.assert_allclose(lower[:, 1:], upper[:, :-1], rtol=1e-12)
    assert (upper >= lower).all()


def test_inner_cells_are_the_pmf_of_whole_counts() -> None:
    """s = 1, d = 1: a cell is one count. s = 4, d = 1: half of 4x - 2, 4x - 1 .. 4x + 1, half."""
    x, mu = np.array([2.0, 3.0, 4.0]), np.array([1.0, 3.2, 6.0])
    lower, upper = PoissonNMF(1, 1.0, 1.0, 1.0).cdf(x, mu, None, RatingScale(0.0, 9.0, 1.0))
    np.testing.assert_allclose(upper - lower, stats.poisson.pmf(x, mu), rtol=1e-9)
    lower, upper = PoissonNMF(1, 4.0, 1.0, 1.0).cdf(x, mu, None, RatingScale(0.0, 9.0, 1.0))
    inner = sum(stats.poisson.pmf(4 * x + d, 4 * mu) for d in (-1, 0, 1))
    assert (upper - lower > inner).all()
    assert (upper - lower < inner + stats.poisson.pmf(4 * x - 2, 4 * mu)
            + stats.poisson.pmf(4 * x + 2, 4 * mu)).all()  # fmt: skip


STARS = np.arange(1, 11) / 2
RATES = np.array([[0.01], [0.4], [1.3], [3.52], [4.9], [11.0]])


def at_most(stars: np.ndarray, s: int, ties: str) -> np.ndarray:
    """P(rounded rating <= stars) of RATES, (6, 10): Poisson's probabilities of the counts that
    round there, those beyond the ends of the scale to the ends."""
    counts = np.arange(300)
    halves = 2 * counts / s
    nearest = np.ceil(halves - 0.5) if ties == "down" else np.floor(halves + 0.5)
    rounded = np.clip(nearest / 2, 0.5, 5.0)
    return stats.poisson.pmf(counts, s * RATES) @ (rounded[:, None] <= stars)


def cells(s: int) -> tuple[np.ndarray, np.ndarray]:
    lower, upper = PoissonNMF(1, s, 1.0, 1.0).cdf(STARS, RATES, None, RatingScale(0.5, 5.0, 0.5))
    np.testing.assert_allclose((upper - lower).sum(1), 1.0, rtol=1e-12)
    return lower, upper


@pytest.mark.parametrize("s", [2, 6])
def test_half_stars_are_the_counts_that_round_to_them(s: int) -> None:
    """s = 2: one count a half star. s = 6: the count 6 x and those beside it. None lies between."""
    lower, upper = cells(s)
    expected = at_most(STARS, s, "up")
    np.testing.assert_array_equal(expected, at_most(STARS, s, "down"))
    np.testing.assert_allclose(upper, expected, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(lower[:, 1:], expected[:, :-1], rtol=1e-10, atol=1e-14)
    assert (lower[:, 0] == 0.0).all()


def test_a_count_between_two_half_stars_is_shared_by_both() -> None:
    """s = 4: the counts 4 x +- 1 lie halfway between two cells, which share their probability.
    F at such a count n is P(Gamma(n + 1/2) > s mu), by quadrature of the density."""
    s = 4
    lower, upper = cells(s)
    least, most = at_most(STARS, s, "up"), at_most(STARS, s, "down")
    seen = (most - least)[:, :-1] > 1e-12  # else the difference is round-off
    assert seen.sum() > 40
    for edge in (upper[:, :-1], lower[:, 1:]):
        assert (edge[seen] > least[:, :-1][seen]).all()
        assert (edge[seen] < most[:, :-1][seen]).all()
    for row, mu in enumerate(RATES[:, 0]):
        for column, count in enumerate(4 * STARS[:-1] + 1):
            density = stats.gamma(count + 0.5).pdf
            beyond, _ = integrate.quad(density, s * mu, s * mu + 100, points=[s * mu + 20])
            assert upper[row, column] == pytest.approx(beyond, rel=1e-6)
