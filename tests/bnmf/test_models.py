"""The Poisson likelihood: scores, densities, cells of the rating scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from bnmf.likelihoods import Poisson
from bnmf.models import PoissonNMF


@pytest.mark.parametrize("s", [1.0, 4.0, 2.5])
def test_score_is_the_derivative_of_log_prob(s: float) -> None:
    model = PoissonNMF(3, s, 1.0, 1.0)
    x = torch.tensor([0.0, 0.5, 1.0, 3.0, 5.0], dtype=torch.float64)
    mu = torch.tensor([0.3, 2.0, 1.0, 4.5, 1e-3], dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(model.log_prob(x, mu, None).sum(), mu)
    score, of_level = model.score(x, mu.detach(), None, True)
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
