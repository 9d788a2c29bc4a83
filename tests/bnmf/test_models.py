"""The Poisson likelihood: scores, densities, cells of the rating scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from bnmf.models import PoissonNMF, RatingScale


@pytest.mark.parametrize("s", [1.0, 4.0, 2.5])
def test_score_is_the_derivative_of_log_prob(s: float) -> None:
    model = PoissonNMF(3, s, 1.0, 1.0)
    x = torch.tensor([0.0, 0.5, 1.0, 3.0, 5.0], dtype=torch.float64)
    mu = torch.tensor([0.3, 2.0, 1.0, 4.5, 1e-3], dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(model.log_prob(x, mu).sum(), mu)
    torch.testing.assert_close(model.score(x, mu.detach()), expected, rtol=1e-12, atol=1e-12)


def test_log_prob_is_poissons() -> None:
    x, mu = np.arange(8.0), np.linspace(0.2, 6.0, 8)
    for s in (1.0, 4.0):
        got = PoissonNMF(1, s, 1.0, 1.0).log_prob(torch.tensor(x), torch.tensor(mu))
        np.testing.assert_allclose(got, stats.poisson.logpmf(s * x, s * mu), rtol=1e-12)


def test_curvature_is_the_expected_second_derivative() -> None:
    mu, s = 3.6, 4.0
    counts = np.arange(200)
    pmf = stats.poisson.pmf(counts, s * mu)
    model = PoissonNMF(1, s, 1.0, 1.0)
    step = 1e-5
    at = [model.score(torch.tensor(counts / s), torch.full((200,), mu + d)) for d in (-step, step)]
    second = (at[1] - at[0]).double().numpy() / (2 * step)
    at64 = -s * (counts / s) / mu**2  # the closed form, as float32 differences are coarse
    assert model.curvature(mu) == pytest.approx(-(pmf * at64).sum(), rel=1e-9)
    assert np.isfinite(second).all()


@pytest.mark.parametrize(("s", "step"), [(1.0, 1.0), (4.0, 1.0), (4.0, 0.5), (3.3, 0.5)])
def test_the_cells_of_the_rating_scale_partition_the_line(s: float, step: float) -> None:
    scale = RatingScale(step, 5.0, step)
    grid = np.arange(step, 5.0 + step / 2, step)
    mu = np.array([[0.01], [0.7], [3.5], [20.0]])
    lower, upper = PoissonNMF(1, s, 1.0, 1.0).cdf(grid, mu, scale)
    assert (lower[:, 0] == 0).all() and (upper[:, -1] == 1).all()
    np.testing.assert_allclose(lower[:, 1:], upper[:, :-1], rtol=1e-12)
    assert (upper >= lower).all()


def test_inner_cells_are_the_pmf_of_whole_counts() -> None:
    """s = 1, d = 1: a cell is one count. s = 4, d = 1: half of 4x - 2, 4x - 1 .. 4x + 1, half."""
    x, mu = np.array([2.0, 3.0, 4.0]), np.array([1.0, 3.2, 6.0])
    lower, upper = PoissonNMF(1, 1.0, 1.0, 1.0).cdf(x, mu, RatingScale(0.0, 9.0, 1.0))
    np.testing.assert_allclose(upper - lower, stats.poisson.pmf(x, mu), rtol=1e-9)
    lower, upper = PoissonNMF(1, 4.0, 1.0, 1.0).cdf(x, mu, RatingScale(0.0, 9.0, 1.0))
    inner = sum(stats.poisson.pmf(4 * x + d, 4 * mu) for d in (-1, 0, 1))
    assert (upper - lower > inner).all()
    assert (upper - lower < inner + stats.poisson.pmf(4 * x - 2, 4 * mu)
            + stats.poisson.pmf(4 * x + 2, 4 * mu)).all()  # fmt: skip
