"""Scores by autograd, cells and moments by scipy's distributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bnmf.likelihoods import Gaussian, Likelihood, Poisson
from tests.oracles import ERRORS, numpy_noise

EACH = pytest.mark.parametrize("likelihood", [Gaussian(), Poisson()], ids=["gaussian", "poisson"])
X = torch.tensor([0.5, 1.0, 2.5, 4.0, 5.0], dtype=torch.float64)
MU = torch.tensor([0.7, 2.0, 2.4, 4.9, 3.3], dtype=torch.float64)


@EACH
def test_the_score_is_precision_times_the_residual(likelihood: Likelihood) -> None:
    mu = MU.clone().requires_grad_()
    for precision in (0.4, 3.0):
        (expected,) = torch.autograd.grad(likelihood.log_prob(X, mu, precision).sum(), mu)
        d, _ = likelihood.residuals(X, MU)
        torch.testing.assert_close(precision * d, expected, rtol=1e-12, atol=1e-12)


def test_the_gaussian_learns_its_precision_by_likelihood() -> None:
    level = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    log_prob = Gaussian().log_prob(X, MU, level.exp()).sum()
    (expected,) = torch.autograd.grad(log_prob, level)
    _, q = Gaussian().residuals(X, MU)
    torch.testing.assert_close(
        (0.5 - 0.5 * level.detach().exp() * q).sum(), expected, rtol=1e-12, atol=1e-12
    )


@EACH
def test_squares_have_the_precision_s_inverse_as_their_mean(likelihood: Likelihood) -> None:
    """Over ratings from the likelihood itself; so does the variance that it promises."""
    rng, mu, precision, n = numpy_noise(170), 2.7, 3.0, 200_000
    if isinstance(likelihood, Poisson):
        x = rng.poisson(precision * mu, n) / precision
    else:
        x = rng.normal(mu, precision**-0.5, n)
    _, q = likelihood.residuals(torch.from_numpy(x), torch.full((n,), mu, dtype=torch.float64))
    error = q.std().item() / n**0.5
    assert abs(q.mean().item() - 1 / precision) <= ERRORS * error
    variance = likelihood.variance(np.array([mu]), precision).item()
    squares = (x - mu) ** 2
    assert abs(squares.mean() - variance) <= ERRORS * squares.std() / n**0.5
    assert likelihood.precision(mu, variance) == pytest.approx(precision)
    information = likelihood.information(mu, precision)
    score = precision * likelihood.residuals(torch.from_numpy(x), torch.full((n,), mu))[0]
    squares = score.square().numpy()
    assert abs(squares.mean() - information) <= ERRORS * squares.std() / n**0.5
