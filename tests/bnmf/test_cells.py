"""An ordered probit: cells of the normal distribution, and their edges found again."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats

from bnmf.cells import Cells
from bnmf.likelihoods import RatingScale
from tests.oracles import ERRORS, numpy_noise

HALF_STARS = RatingScale(0.5, 5.0, 0.5)
EDGES = np.array([0.9, 1.6, 1.8, 2.6, 2.9, 3.3, 3.6, 4.4, 4.6])


def drawn(n: int, stream: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ratings of cells with EDGES, told spreads that are 1.25 times the true ones."""
    rng = numpy_noise(180, stream)
    mu, std = rng.uniform(0.5, 5.0, n), rng.uniform(0.5, 1.5, n)
    x = 0.5 + 0.5 * np.searchsorted(EDGES, rng.normal(mu, std))
    return x, mu, 1.25 * std


def test_rounding_is_the_normal_distribution_between_half_steps() -> None:
    mu, std = np.array([[-1.0, 2.2, 6.0]]), np.array([[0.8, 1.6, 0.6]])
    x = np.arange(0.5, 5.5, 0.5)
    lower, upper = Cells.rounding(HALF_STARS).distribution(x, mu, std)
    law = stats.norm(mu, std)
    np.testing.assert_allclose(lower[1:], law.cdf(x[1:, None] - 0.25), rtol=1e-12)
    np.testing.assert_allclose(upper[:-1], law.cdf(x[:-1, None] + 0.25), rtol=1e-12)
    np.testing.assert_allclose((upper - lower).sum(0), 1.0, rtol=1e-12)


def test_edges_and_sharpness_are_found_again() -> None:
    """Within the errors of maximum likelihood, by the curvature of the fit itself."""
    x, mu, std = drawn(40_000, 1)
    found = Cells.rounding(HALF_STARS).fitted(x, mu, std)
    true = Cells(HALF_STARS, EDGES, 1.25)

    def log_prob(packed: np.ndarray) -> float:
        cells = Cells(HALF_STARS, packed[:-1], packed[-1])
        lower, upper = cells.distribution(x, mu[:, None], std[:, None])
        return float(np.log(upper - lower).sum())

    at = np.append(true.edges, true.sharpness)
    hessian = -optimize.approx_fprime(at, lambda p: optimize.approx_fprime(p, log_prob, 1e-4), 1e-4)
    errors = np.sqrt(np.diag(np.linalg.inv(hessian)))
    away = np.append(found.edges, found.sharpness) - at
    assert (np.abs(away) < ERRORS * errors).all(), away / errors


@pytest.mark.parametrize("shift", [-0.05, 0.05])
def test_the_fit_is_a_maximum(shift: float) -> None:
    """No edge, nor the sharpness, can be moved for a better posterior."""
    x, mu, std = drawn(3_000, 2)
    found = Cells.rounding(HALF_STARS).fitted(x, mu, std)

    def value(cells: Cells) -> float:
        lower, upper = cells.distribution(x, mu[:, None], std[:, None])
        prior = stats.norm(0, 3).logpdf(np.log(np.diff(cells.edges) / 0.5)).sum()
        return float(np.log(upper - lower).sum() + prior)

    best = value(found)
    for k in range(len(found.edges)):
        moved = found.edges.copy()
        moved[k] += shift * min(np.diff(found.edges))
        assert value(Cells(HALF_STARS, moved, found.sharpness)) < best
    assert value(Cells(HALF_STARS, found.edges, found.sharpness + shift)) < best


def test_ratings_that_nobody_gives_get_narrow_cells() -> None:
    """Whole stars on a half-star scale: finite, ordered, and almost all mass on whole stars."""
    rng = numpy_noise(181)
    mu = rng.uniform(1.0, 5.0, 5_000)
    x = np.clip(np.rint(rng.normal(mu, 1.0)), 1.0, 5.0)
    found = Cells.rounding(HALF_STARS).fitted(x, mu, np.ones(5_000))
    assert np.isfinite(found.edges).all() and (np.diff(found.edges) > 0).all()
    halves = np.arange(1.5, 5.0)
    lower, upper = found.distribution(halves, np.full((4, 1), 3.2), np.ones((4, 1)))
    assert (upper - lower).max() < 0.01


@pytest.mark.parametrize("scale", [RatingScale(3.0, 3.0, 1.0), RatingScale(0.0, 10.0, 0.1)])
def test_one_rating_or_many_are_left_as_they_are(scale: RatingScale) -> None:
    cells = Cells.rounding(scale)
    x = np.full(50, scale.high)
    assert cells.fitted(x, x, np.ones(50)) is cells
    lower, upper = cells.distribution(x, x[:, None], np.ones((50, 1)))
    assert (upper == 1.0).all() and (lower < upper).all()
