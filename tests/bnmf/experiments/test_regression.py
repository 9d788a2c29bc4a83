"""Linear regression: gradients and posterior against autograd and quadrature, and the claims."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import Tensor

from bnmf.experiments import EXPERIMENTS
from bnmf.experiments.regression import INSTANCES, STEP, Posterior
from tests.oracles import SEED, noise


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    return Posterior.make(SEED)


def _somewhere() -> Tensor:
    return torch.randn(20, 3, generator=noise(1), dtype=torch.float64)


def test_the_gradient_is_that_of_the_model_as_written(posterior: Posterior) -> None:
    """The handout's eq. 4.2 prints + d/2 for the prior's log variance."""
    theta = _somewhere()
    exact = torch.func.vmap(torch.func.grad(posterior.negative_log))(theta)
    found = posterior.gradient(theta, posterior.x[None], posterior.y[None])
    torch.testing.assert_close(found, exact)


def test_minibatches_are_unbiased(posterior: Posterior) -> None:
    """The mean over all minibatches of one instance is the whole gradient."""
    theta = _somewhere()[:1]
    each = posterior.gradient(
        theta.expand(INSTANCES, -1), posterior.x[:, None, :], posterior.y[:, None]
    )
    whole = posterior.gradient(theta, posterior.x[None], posterior.y[None])
    torch.testing.assert_close(each.mean(0, keepdim=True), whole)


def test_the_posterior_by_quadrature(posterior: Posterior) -> None:
    """beta | gamma is normal about its mean with e^gamma times a matrix: it integrates out."""
    gammas = np.linspace(-1.5, 0.5, 4001)
    mean = torch.from_numpy(posterior.mean)
    level = np.array(
        [
            float(posterior.negative_log(torch.cat([mean, torch.tensor([g])]))) - g
            for g in gammas.tolist()
        ]
    )
    density = np.exp(level.min() - level)
    density /= integrate.trapezoid(density, gammas)
    of_beta, _, of_gamma = posterior.marginals()
    np.testing.assert_allclose(of_gamma(gammas), density, atol=1e-6 * density.max())

    exact = posterior.deviations()
    centre = gammas @ density / density.sum()
    variance = (gammas - centre) ** 2 @ density / density.sum()
    assert exact[2] == pytest.approx(math.sqrt(variance), rel=1e-6)
    at = posterior.mean[0] + exact[0] * np.linspace(-12.0, 12.0, 4001)
    weights = of_beta(at)
    spread = ((at - posterior.mean[0]) ** 2) @ weights / weights.sum()
    assert exact[0] == pytest.approx(math.sqrt(spread), rel=1e-6)
    share = np.array([0.2, 0.5])
    for at, marginal in zip(posterior.quantiles(share), posterior.marginals(), strict=True):
        between = integrate.quad(lambda x, f=marginal: float(f(np.array(x))), *at)[0]
        assert between == pytest.approx(0.3, rel=1e-6)


def test_the_mode_and_the_mle(posterior: Posterior) -> None:
    mode = torch.from_numpy(posterior.mode())[None]
    slope = posterior.gradient(mode, posterior.x[None], posterior.y[None])
    assert float(slope.abs().max()) < 1e-8
    off = np.abs(posterior.mode() - posterior.mle()) / posterior.deviations()
    assert 0.0 < off.max() < 0.1


def test_the_derived_law_with_the_whole_data(posterior: Posterior) -> None:
    """tau / (a (1 - eps a / 2)) along the eigenvectors of the curvature."""
    a, _ = posterior.curvature()
    values, vectors = np.linalg.eigh(a)
    law = 3.0 / (values * (1.0 - STEP * values / 2.0))
    exact = np.sqrt(np.diag(vectors @ np.diag(law) @ vectors.T))
    np.testing.assert_allclose(posterior.expected(STEP, INSTANCES, 3.0), exact)


def test_batches_and_temperatures() -> None:
    """Figures 4.1 to 4.3; deviations within 8% of the derived ones, 5 Monte Carlo errors."""
    result = EXPERIMENTS["linear-regression"].run(True, SEED)
    *hold, small = result.claims
    assert len(hold) == 4 and all(claim.holds for claim in hold)
    assert not small.holds  # of the variance that minibatches add, the temperature changes nothing
    for name in ("β₁", "β₂", "log σ²"):
        found = np.array(result.table[f"{name}: deviation / exact"], np.float64)
        derived = np.array(result.table[f"{name}: derived"], np.float64)
        known = np.isfinite(derived)
        np.testing.assert_allclose(found[known], derived[known], rtol=0.08)
