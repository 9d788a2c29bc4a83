"""The regression's gradient and posterior, and the ordering that the handout claims."""

from __future__ import annotations

import pytest
import torch
from scipy import integrate

from bnmf.experiments import EXPERIMENTS
from bnmf.experiments.base import noise
from bnmf.experiments.regression import N, Regression
from tests.oracles import ERRORS, SEED


def test_the_gradient_is_autograd_s_and_minibatches_are_unbiased() -> None:
    data = Regression.make(noise(SEED, 0))
    w = data.mode() + 0.1 * noise(SEED, 1).normal(torch.empty(5, 4, dtype=torch.float64))
    w.requires_grad_()
    (expected,) = torch.autograd.grad(data.potential(w).sum(), w)
    torch.testing.assert_close(data.gradient(N, noise(SEED, 2))(w.detach()), expected)
    many = w.detach()[:1].expand(20_000, -1)
    found = data.gradient(20, noise(SEED, 3))(many)
    error = found.std(0) / len(many) ** 0.5
    assert ((found.mean(0) - expected[0]).abs() <= ERRORS * error).all()


def test_the_posterior_is_that_of_the_potential() -> None:
    """Its mode, and beta's marginal by quadrature over gamma and beta's conditional."""
    data = Regression.make(noise(SEED, 0))
    mode = data.mode().requires_grad_()
    (slope,) = torch.autograd.grad(data.potential(mode[None]).sum(), mode)
    assert slope.abs().max() < 1e-6
    mean, covariance, _, _ = data.posterior()
    law = data.marginal(1)
    least = float(data.potential(data.mode()[None]))

    def joint(beta: float, gamma: float) -> float:
        """Of beta_1 and gamma, the other coefficients integrated out in closed form."""
        centre = mean + covariance[:, 1] / covariance[1, 1] * (beta - mean[1])
        w = torch.cat([centre, torch.tensor([gamma], dtype=torch.float64)])
        return float(torch.exp(least - data.potential(w[None]) + gamma * (data.dims - 1) / 2))

    centre = float(data.mode()[-1])
    at = [law.mean(), law.mean() + law.std()]
    two = [
        integrate.quad(lambda g, b=b: joint(b, g), centre - 0.4, centre + 0.4, epsrel=1e-9)[0]
        for b in at
    ]
    assert two[1] / two[0] == pytest.approx(law.pdf(at[1]) / law.pdf(at[0]), rel=1e-6)


def test_batches_and_temperatures_do_what_the_handout_says() -> None:
    """Margins of four standard errors, and 5 % where a Gaussian stands for the posterior."""
    result = EXPERIMENTS["linear-regression"].run(True, SEED)
    for claim in result.claims:
        assert claim.holds, claim
