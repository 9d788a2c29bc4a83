"""The Gaussian model: gradients by autograd, conjugate draws, and a chain's known posterior."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bnmf.blocks import RatingBlock
from bnmf.domains import CoRV
from bnmf.models import BlockStatistics, Curvature, GaussianMF, RatingScale, Side
from bnmf.random import Key, Noise
from bnmf.samplers.sgld import SGLD
from bnmf.samplers.sgnht import SGNHT
from bnmf.sweep import FactorBlock, Rule, update_block
from bnmf.transforms import Identity
from tests.oracles import ERRORS, SEED, assert_moments, noise, numpy_noise

K = 3


def model_of(stream: int = 0) -> GaussianMF:
    rng = numpy_noise(150, stream)
    mean = torch.from_numpy(rng.normal(0.0, 0.5, (2, K + 1)))
    mean[1, K] = 0.0
    precision = torch.from_numpy(rng.gamma(3.0, 1.0, (2, K + 1)))
    return GaussianMF(K, torch.tensor(1.7, dtype=torch.float64), mean, precision)


def test_a_cold_visit_goes_down_the_whole_potential() -> None:
    """Likelihood times G, biases and all priors, by autograd; each entry in its own unit."""
    model, rng = model_of(), numpy_noise(151)
    i, j = np.nonzero(rng.random((6, 5)) < 0.6)
    ratings = RatingBlock.from_arrays(i, j, rng.integers(1, 11, len(i)) / 2, (6, 5))
    curvature = Curvature(2.0, 0.3)
    rule = Rule(model, CoRV(Identity()), SGLD(), 3, 0.01, 0.0, None, 1, curvature, curvature)

    def block(n: int) -> FactorBlock:
        position = torch.from_numpy(rng.normal(0.0, 0.5, (n, K + 1)))
        counts = torch.from_numpy(rng.integers(3, 30, (n, 1)).astype(np.float32))
        return FactorBlock(SGLD().init(position, 0.0, Noise(noise(0))), counts)

    row, col = block(6), block(5)
    start = [b.state.position.clone().requires_grad_() for b in (row, col)]
    users = torch.repeat_interleave(torch.arange(6), ratings.by_row.starts.diff())
    items = ratings.by_row.index.long()
    (w, b), (h, c) = ((theta[:, :K], theta[:, K]) for theta in start)
    mu = (w[users] * h[items]).sum(1) + b[users] + c[items]
    x = ratings.ratings.double()
    potential = -3 * model.log_prob(x, mu).sum() + sum(
        (0.5 * model.precision[side] * (theta - model.mean[side]).square()).sum()
        for side, theta in enumerate(start)
    )
    gradients = torch.autograd.grad(potential, start)
    new_row, new_col, misfit = update_block(row, col, ratings, Key(SEED), rule)
    for side, (theta, block_, gradient) in enumerate(
        zip(start, (new_row, new_col), gradients, strict=True)
    ):
        scale = torch.full_like(theta, 0.0)
        scale[:, :K] = 1 / (2.0 + 0.3 * block_.counts)
        scale[:, K:] = 1 / (1.0 + block_.counts)
        expected = theta.detach() - 0.01 * scale * gradient
        torch.testing.assert_close(block_.state.position, expected, rtol=1e-6, atol=1e-7), side
    assert misfit == pytest.approx((x - mu).square().sum().item(), rel=1e-6)


def statistics(theta: Tensor, ratings: float) -> list[BlockStatistics]:
    """Of rows dealt into two blocks of unlike size."""
    return [
        BlockStatistics(len(part), ratings / 2, 0.0, 0.0, part.sum(0), part.square().sum(0))
        for part in (theta[:7], theta[7:])
    ]


def test_hyper_parameters_are_drawn_from_their_conditionals() -> None:
    """Means and precisions against Normal-Gamma, alpha against its Gamma; c's mean stays 0."""
    rng = numpy_noise(152)
    n, ratings, misfit = 40, 300.0, 210.0
    w = torch.from_numpy(rng.normal(0.4, 0.7, (n, K + 1)))
    w[:, K] += 3.0  # the user biases, whose mean has a flat prior
    h = torch.from_numpy(rng.normal(-0.2, 0.5, (n, K + 1)))
    model, source = model_of(), numpy_noise(153)
    draws = [
        model.resample(statistics(w, ratings), statistics(h, ratings), misfit, source)
        for _ in range(4000)
    ]
    alpha = torch.stack([draw.alpha for draw in draws])
    shape, rate = 1 + ratings / 2, 1 + misfit / 2
    assert stats.kstest(alpha.numpy(), stats.gamma(shape, scale=1 / rate).cdf).pvalue > 1e-6
    for side, theta in ((Side.W, w), (Side.H, h)):
        for k in range(K + 1):
            precision = torch.stack([draw.precision[side, k] for draw in draws]).numpy()
            mean = torch.stack([draw.mean[side, k] for draw in draws]).numpy()
            x = theta[:, k].numpy()
            if side == Side.H and k == K:
                assert (mean == 0.0).all()
                law = stats.gamma(1 + n / 2, scale=1 / (1 + 0.5 * np.sum(x**2)))
                assert stats.kstest(precision, law.cdf).pvalue > 1e-6
                continue
            count = n + (1e-6 if k == K else 1.0)
            centre = x.sum() / count
            rest = np.sum(x**2) - count * centre**2
            law = stats.gamma(1 + n / 2, scale=1 / (1 + rest / 2))
            assert stats.kstest(precision, law.cdf).pvalue > 1e-6
            standard = (mean - centre) * np.sqrt(count * precision)
            assert stats.kstest(standard, "norm").pvalue > 1e-6


@pytest.mark.parametrize(("sampler", "step"), [(SGLD(), 0.02), (SGNHT(0.5), 0.05)])
def test_a_chain_finds_the_normal_posterior_of_a_row(sampler: SGLD | SGNHT, step: float) -> None:
    """H and c known, hyper-parameters given: (w, b) of each row is Normal with the same law.

    4 % of the spread is allowed for the step. Rows are independent chains.
    """
    rng = np.random.default_rng(9)
    model = model_of()
    rows, items = 4000, 6
    h = rng.normal(0.0, 0.8, (items, K + 1))
    x = rng.normal(3.0, 1.0, items)
    design = np.concatenate([h[:, :K], np.ones((items, 1))], axis=1)
    alpha = float(model.alpha)
    prior = np.diag(model.precision[0].numpy())
    covariance = np.linalg.inv(prior + alpha * design.T @ design)
    right = prior @ model.mean[0].numpy() + alpha * design.T @ (x - h[:, K])
    centre = covariance @ right
    i, j = np.indices((rows, items)).reshape(2, -1)
    ratings = RatingBlock.from_arrays(i, j, x[j], (rows, items))
    fixed = Curvature(1e30, 1e30)
    rule = Rule(model, CoRV(Identity()), sampler, 1, step, 1.0, None, 1, Curvature(3.0, 1.0), fixed)
    source = Noise(noise(154))
    start = torch.from_numpy(rng.multivariate_normal(centre, covariance, rows)).float()
    row = FactorBlock(sampler.init(start, 1.0, source), torch.full((rows, 1), float(items)))
    known = torch.from_numpy(h).float()
    col = FactorBlock(sampler.init(known.clone(), 0.0, source), torch.full((items, 1), 1e30))
    for t in range(400):
        row, col, _ = update_block(row, col, ratings, Key(SEED, sweep=t), rule)
        col = col._replace(state=col.state._replace(position=known.clone()))
    for k in range(K + 1):
        assert_moments(row.state.position[:, k], centre[k], covariance[k, k], slack=0.04)
    found = row.state.position.double().numpy() @ design.T[:, 0]
    assert_moments(found, design[0] @ centre, design[0] @ covariance @ design[0], slack=0.04)


def test_cells_are_those_of_the_normal_distribution() -> None:
    model, scale = model_of(), RatingScale(0.5, 5.0, 0.5)
    mu = np.array([[-1.0, 2.2, 6.0]])
    x = np.arange(0.5, 5.5, 0.5)[:, None]
    lower, upper = model.cdf(x, mu, scale)
    law = stats.norm(mu, 1 / math.sqrt(1.7))
    inner_low, inner_high = lower[1:], upper[:-1]
    np.testing.assert_allclose(inner_low, law.cdf(x[1:] - 0.25), rtol=1e-12)
    np.testing.assert_allclose(inner_high, law.cdf(x[:-1] + 0.25), rtol=1e-12)
    np.testing.assert_allclose((upper - lower).sum(0), 1.0, rtol=1e-12)
    assert (model.variance(mu) == 1 / 1.7).all()


def test_an_unknown_row_has_the_prior_s_moments() -> None:
    """Of S draws at once, against Monte Carlo over rows drawn from the prior."""
    draws = [model_of(s) for s in range(4)]
    stacked = draws[0].with_state(
        {name: torch.stack([d.state()[name] for d in draws]) for name in draws[0].state()}
    )
    source = Noise(noise(155))
    for side in Side:
        first, second = stacked.prior_moments(side)
        assert first.shape == second.shape == (4, K + 2)
        for s, model in enumerate(draws):
            theta = source.normal(torch.empty(40_000, K + 1, dtype=torch.float64))
            theta = model.mean[side] + theta / model.precision[side].sqrt()
            design = model.design(theta, side)
            for value, of in ((first[s], design), (second[s], design.square())):
                error = of.std(0) / math.sqrt(len(of))
                assert ((of.mean(0) - value).abs() <= ERRORS * error + 1e-12).all()


def test_the_first_rows_are_a_draw_of_the_first_prior() -> None:
    model = GaussianMF.first(20, 3.6)
    theta = model.start(torch.empty(30_000, 1), Side.W, 3.6, Noise(noise(156)))
    assert_moments(theta[:, 0], 0.0, 1 / float(model.precision[0, 0]))
    assert (theta[:, 20] == torch.tensor(3.6)).all()
    other = model.start(torch.empty(10, 1), Side.H, 3.6, Noise(noise(157)))
    assert (other[:, 20] == 0.0).all()
    w, h = (m.design(t, s) for m, t, s in ((model, theta[:10], Side.W), (model, other, Side.H)))
    assert w.shape == h.shape == (10, 22)
    torch.testing.assert_close((w * h)[:, 20:].sum(1), torch.full((10,), 3.6))
    spread = (theta[:, :20] * theta[torch.randperm(30_000), :20]).sum(1)
    assert spread.std().item() == pytest.approx(0.4, rel=0.05)
    assert replace(model, rank=20).columns == 21
