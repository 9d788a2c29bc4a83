"""Sampled priors: gradients by autograd, conjugate draws, implicit weights, known posteriors."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bnmf.blocks import RatingBlock, column_block, strata
from bnmf.domains import CoRV
from bnmf.hierarchical import ALIVE, FLAT, HierarchicalMF
from bnmf.implicit import Implicit, moved
from bnmf.likelihoods import Gaussian, Poisson
from bnmf.models import Curvature, Side, levels
from bnmf.random import Key, Noise, Role, generator
from bnmf.samplers import Sampler, State
from bnmf.samplers.sgld import SGLD
from bnmf.samplers.sgnht import SGNHT
from bnmf.sweep import FactorBlock, Rule, update_block
from bnmf.transforms import HALF_LINE, Identity
from tests.oracles import ERRORS, SEED, assert_moments, noise, numpy_noise

K = 3
KINDS = ["gaussian", "non-negative gaussian", "poisson"]
each_kind = pytest.mark.parametrize("kind", KINDS)


def model_of(kind: str = "gaussian", stream: int = 0) -> HierarchicalMF:
    rng = numpy_noise(150, stream)
    gaussian = kind != "poisson"
    link = Identity() if kind == "gaussian" else HALF_LINE["softplus"]
    likelihood = Gaussian() if gaussian else Poisson()
    model = HierarchicalMF.first(
        K, likelihood, link, biases=gaussian, implicit=True, mean=3.5, unit=1.1
    )
    shape = (2, model.columns)
    mean = torch.from_numpy(rng.normal(0.0, 0.5, shape))
    mean[1, K:] = 0.0
    precision, weights = (torch.from_numpy(rng.gamma(3.0, 1.0, shape)) for _ in range(2))
    return replace(model, mean=mean, precision=precision, weight_precision=weights)


@each_kind
@pytest.mark.parametrize("warm", [True, False])
def test_a_cold_visit_goes_down_the_whole_potential(kind: str, warm: bool) -> None:
    """Likelihood times G, levels and all priors around their centres, by autograd.

    Before a chain is warm, ratings weigh by the level's mean.
    """
    model, rng = model_of(kind), numpy_noise(151)
    i, j = np.nonzero(rng.random((6, 5)) < 0.6)
    ratings = RatingBlock.from_arrays(i, j, rng.integers(1, 11, len(i)) / 2, (6, 5))
    curvature = Curvature(tuple(rng.gamma(3.0, 1.0, model.columns)), 0.3)
    rule = Rule(model, CoRV(Identity()), SGLD(), 3, 0.01, 0.0, None, 1, curvature, curvature,
                warm=warm)  # fmt: skip

    def block(n: int) -> FactorBlock:
        position = torch.from_numpy(rng.normal(0.4, 0.5, (n, model.columns)))
        counts = torch.from_numpy(rng.integers(3, 30, (n, 1)).astype(np.float64))
        state = SGLD().init(position, 0.0, Noise(noise(0)))
        beside = Implicit.start(position, SGLD(), 0.0, Noise(noise(0)))
        centre = torch.from_numpy(rng.normal(0.0, 0.5, position.shape))
        return FactorBlock(state, counts, beside._replace(centre=centre))

    row, col = block(6), block(5)
    theta = [b.state.position.clone().requires_grad_() for b in (row, col)]
    w, h = (model.design(t, side) for t, side in zip(theta, Side, strict=True))
    users = torch.repeat_interleave(torch.arange(6), ratings.by_row.starts.diff())
    items = ratings.by_row.index.long()
    mu, level = (w[users] * h[items]).sum(1), levels(w[users], h[items])
    x = ratings.ratings.double()
    d, q = model.likelihood.residuals(x, mu.detach())
    weight = level.exp().detach() if warm else model.mean[0, -1].exp()
    # the score of mu, and of the levels that of a Gaussian with variance 1 / precision
    likelihood = (weight * d * mu).sum() + (
        0.5 * level - 0.5 * level.exp() * (q + model.floor)
    ).sum()
    potential = -3 * likelihood + sum(
        (0.5 * model.precision[side] * (t - model.mean[side] - b.implicit.centre).square()).sum()
        for side, t, b in zip(Side, theta, (row, col), strict=True)
    )
    gradients = torch.autograd.grad(potential, theta)
    before = [t.detach().clone() for t in theta]
    found = update_block(row, col, ratings, Key(SEED), rule)
    for start, block_, gradient in zip(before, found, gradients, strict=True):
        scale = 1 / (torch.tensor(curvature.base) + 0.3 * block_.counts)
        expected = start - 0.01 * scale * gradient
        torch.testing.assert_close(block_.state.position, expected, rtol=1e-6, atol=1e-7)


@each_kind
def test_designs_multiply_to_rates_and_levels(kind: str) -> None:
    model, rng = model_of(kind), numpy_noise(158)
    theta = [torch.from_numpy(rng.normal(size=(4, model.columns))) for _ in Side]
    w, h = (model.design(t, side) for t, side in zip(theta, Side, strict=True))
    factors = [model.link.forward(t[:, :K]) for t in theta]
    expected = (factors[0] * factors[1]).sum(1)
    if model.biases:
        expected = expected + theta[0][:, K] + theta[1][:, K]
    torch.testing.assert_close((w * h).sum(1), expected)
    torch.testing.assert_close(levels(w, h), theta[0][:, -1] + theta[1][:, -1])
    assert kind == "gaussian" or all((f > 0).all() for f in factors)


def blocks_of(model: HierarchicalMF, theta: Tensor, centre: Tensor, weights: Tensor) -> list:
    """Statistics of rows dealt into two blocks of unlike size."""
    counts = torch.arange(1.0, len(theta) + 1, dtype=torch.float64)[:, None]
    return [
        model.statistics(theta[part], counts[part], centre[part], weights[part])
        for part in (slice(0, 7), slice(7, None))
    ]


@each_kind
def test_hyper_parameters_are_drawn_from_their_conditionals(kind: str) -> None:
    """Normal-Gamma around the centres; parts share a precision; c and v have mean 0."""
    rng, model, source = numpy_noise(152), model_of(kind), numpy_noise(153)
    n, columns = 40, model.columns
    theta = [torch.from_numpy(rng.normal(m, 0.7, (n, columns))) for m in (0.4, -0.2)]
    centre = [torch.from_numpy(rng.normal(0.0, 0.4, (n, columns))) for _ in Side]
    weights = [torch.from_numpy(rng.normal(0.0, 0.3, (n, columns))) for _ in Side]
    stats_of = [blocks_of(model, *x) for x in zip(theta, centre, weights, strict=True)]
    draws = [model.resample(*stats_of, source) for _ in range(4000)]
    rate = np.ones(columns)
    if kind == "gaussian":
        rate[:K] *= 1.1
    if model.biases:
        rate[K] *= 1.1**2

    def of_gamma(values: np.ndarray, shape: float, rate: float) -> None:
        assert stats.kstest(values, stats.gamma(shape, scale=1 / rate).cdf).pvalue > 1e-6

    for side in Side:
        precision = torch.stack([draw.precision[side] for draw in draws]).numpy()
        mean = torch.stack([draw.mean[side] for draw in draws]).numpy()
        away = (theta[side] - centre[side]).numpy()
        count = n + FLAT
        middle, free = away.sum(0) / count, np.full(columns, True)
        if side == Side.H:
            free[K:], middle[K:] = False, 0.0
        rest = np.sum(away**2, 0) - count * middle**2
        for k in range(columns):
            if kind != "gaussian" and k < K:
                prior = ALIVE * K * n
                of_gamma(precision[:, k], 1 + prior + K * n / 2, 1 + prior + rest[:K].sum() / 2)
                assert (precision[:, k] == precision[:, 0]).all()
            else:
                of_gamma(precision[:, k], 1 + n / 2, rate[k] + rest[k] / 2)
            standard = (mean[:, k] - middle[k]) * np.sqrt(count * precision[:, k])
            assert (
                (stats.kstest(standard, "norm").pvalue > 1e-6)
                if free[k]
                else (mean[:, k] == 0.0).all()
            )
            drawn = np.array([float(draw.weight_precision[side, k]) for draw in draws])
            square = float(weights[1 - side][:, k].square().sum())
            of_gamma(drawn, 1 + n / 2, rate[k] + square / 2)


def test_curvatures_are_those_of_the_expected_potential() -> None:
    """In factors, biases and levels, a rating's second derivatives averaged over the other side."""
    rng, model = numpy_noise(160), model_of("non-negative gaussian")
    theta = [torch.from_numpy(rng.normal(0.2, 0.5, (11, model.columns))) for _ in Side]
    none = torch.zeros_like(theta[0])
    w, h = model.curvatures(*(blocks_of(model, t, none, none) for t in theta), 3.5)
    counts = np.arange(1.0, 12.0)
    dispersions = [np.average(np.exp(-t[:, -1].numpy()), weights=counts) for t in theta]
    typical = 1 / np.prod(dispersions)  # were rows and columns met independently
    for found, own, other, side in ((w, *theta, Side.W), (h, *theta[::-1], Side.H)):
        met = np.average(model.link.forward(other[:, :K]).numpy() ** 2, axis=0, weights=counts)
        slope = (model.link.slopes(own[:, :K])[0].numpy() ** 2).mean(0)
        expected = [*(typical * met * slope), typical, 0.5]
        present = model.present(found, side)
        np.testing.assert_allclose(present.per_rating, expected, rtol=1e-9)
        assert present.base == tuple(model.precision[side].tolist())
        # a level that rises later, by one, takes the curvature with it, e-fold
        risen = model.mean.clone()
        risen[0, -1] += 1.0
        later = replace(model, mean=risen).present(found, side)
        np.testing.assert_allclose(
            later.per_rating, [*np.e * np.array(expected[:-1]), 0.5], rtol=1e-9
        )


@pytest.mark.parametrize(("sampler", "step"), [(SGLD(), 0.02), (SGNHT(0.5), 0.05)])
def test_a_chain_finds_the_normal_posterior_of_a_row(sampler: Sampler, step: float) -> None:
    """H, c, v and hyper-parameters given, u held: (w, b) of each row is Normal with the same law.

    4 % of the spread is allowed for the step. Rows are independent chains.
    """
    rng, held = np.random.default_rng(9), 1e12
    model = model_of()
    model.precision[0, -1], model.mean[0, -1] = held, 0.5
    rows, items = 4000, 6
    h = rng.normal(0.0, 0.8, (items, K + 2))
    x = rng.normal(3.0, 1.0, items)
    centre = rng.normal(0.0, 0.5, K + 2)
    centre[-1] = 0.0
    design = np.concatenate([h[:, :K], np.ones((items, 1))], axis=1)
    alpha = np.exp(0.5 + h[:, -1])
    prior = np.diag(model.precision[0, : K + 1].numpy())
    covariance = np.linalg.inv(prior + design.T @ (alpha[:, None] * design))
    right = prior @ (model.mean[0].numpy() + centre)[: K + 1]
    middle = covariance @ (right + design.T @ (alpha * (x - h[:, K])))
    i, j = np.indices((rows, items)).reshape(2, -1)
    ratings = RatingBlock.from_arrays(i, j, x[j], (rows, items))
    moving = Curvature((3.0,) * (K + 1) + (held,), 1.0)
    fixed = Curvature(1e30, 1e30)
    rule = Rule(model, CoRV(Identity()), sampler, 1, step, 1.0, None, 1, moving, fixed,
                warm=True)  # fmt: skip
    source = Noise(noise(154))
    start = torch.from_numpy(rng.multivariate_normal(middle, covariance, rows)).float()
    start = torch.cat([start, torch.full((rows, 1), 0.5)], 1)
    row, col = (
        FactorBlock(
            sampler.init(position, tau, source),
            torch.full((len(position), 1), count),
            Implicit.start(position, sampler, tau, source),
        )
        for position, tau, count in (
            (start, 1.0, float(items)),
            (torch.from_numpy(h).float(), 0.0, 1e30),
        )
    )
    row.implicit.centre.add_(torch.from_numpy(centre))
    known = torch.from_numpy(h).float()
    for t in range(400):
        row, col = update_block(row, col, ratings, Key(SEED, sweep=t), rule)
        col = col._replace(state=col.state._replace(position=known.clone()))
    for k in range(K + 1):
        assert_moments(row.state.position[:, k], middle[k], covariance[k, k], slack=0.04)
    found = row.state.position[:, : K + 1].double().numpy() @ design.T[:, 0]
    assert_moments(found, design[0] @ middle, design[0] @ covariance @ design[0], slack=0.04)


@pytest.mark.parametrize("blocks", [1, 2])
def test_two_sweeps_centre_rows_and_move_weights_by_whole_gradients(blocks: int) -> None:
    """Against dense matrices: centre = X y, and a cold step down the weights' potential."""
    rng, model = numpy_noise(161), model_of()
    n, step, columns = 6, 0.01, model.columns
    seen = rng.random((n, n)) < 0.5
    seen |= np.eye(n, dtype=bool)
    groups = np.array_split(np.arange(n), blocks)
    x = torch.from_numpy(seen / np.sqrt(np.maximum(seen.sum(1, keepdims=True), 1)))
    x_t = torch.from_numpy(seen.T / np.sqrt(np.maximum(seen.sum(0)[:, None], 1)))
    counts = [torch.from_numpy(seen.sum(axis)[:, None].astype(float)) for axis in (1, 0)]
    theta = [torch.from_numpy(rng.normal(size=(n, columns))) for _ in Side]
    weights = [torch.from_numpy(rng.normal(size=(n, columns))) for _ in Side]
    # rows stay where they are
    still = [Curvature(tuple(model.precision[side].tolist()), 1e30) for side in Side]
    rule = Rule(model, CoRV(Identity()), SGLD(), blocks, step, 0.0, None, 1, *still,
                warm=True)  # fmt: skip

    def block(side: Side, group: np.ndarray) -> FactorBlock:
        zero = torch.zeros(len(group), columns, dtype=torch.float64)
        beside = Implicit(zero, State(weights[side][group].clone()), zero.clone())
        return FactorBlock(State(theta[side][group].clone()), counts[side][group], beside)

    w, h = ([block(side, group) for group in groups] for side in Side)
    for t in (0, 1):
        order = strata(blocks, generator(Key(SEED, sweep=t), Role.STRATA))
        for stratum in order:
            for b in range(blocks):
                c = column_block(b, stratum, blocks)
                i, j = np.nonzero(seen[np.ix_(groups[b], groups[c])])
                shape = (len(groups[b]), len(groups[c]))
                ratings = RatingBlock.from_arrays(i, j, np.full(len(i), 3.0), shape)
                key = Key(SEED, sweep=t, stratum=stratum, block=b)
                ends = {"first": stratum == order[0], "last": stratum == order[-1]}
                w[b], h[c] = update_block(w[b], h[c], ratings, key, rule, **ends)
    centres = [x @ weights[1], x_t @ weights[0]]
    for side, found in zip(Side, (w, h), strict=True):
        beside = [b.implicit for b in found]
        torch.testing.assert_close(torch.cat([b.centre for b in beside]), centres[side])
        assert all((b.total == 0).all() for b in beside)
        # the potential of the weights that lie beside this side's rows, in the other's centres
        other = Side(1 - side)
        y = weights[side].clone().requires_grad_()
        centre = (x, x_t)[other] @ y
        away = theta[other] - model.mean[other] - centre
        potential = (
            0.5 * (model.precision[other] * away.square()).sum()
            + 0.5 * (model.weight_precision[other] * y.square()).sum()
        )
        (gradient,) = torch.autograd.grad(potential, y)
        scale = 1 / (model.weight_precision[other] + counts[side] * model.precision[other])
        expected = weights[side] - 2 * step * scale * gradient
        torch.testing.assert_close(torch.cat([b.weights.position for b in beside]), expected)


def test_weights_find_their_normal_posterior() -> None:
    """Given the rows they are a linear regression; SGNHT's steps with whole gradients sample it."""
    rng, chains, n = np.random.default_rng(10), 3000, 4
    seen = rng.random((n, n)) < 0.6
    x = seen / np.sqrt(np.maximum(seen.sum(1, keepdims=True), 1))
    away = rng.normal(size=n)
    tau, lam = 2.0, 5.0
    covariance = np.linalg.inv(lam * x.T @ x + tau * np.eye(n))
    middle = covariance @ (lam * x.T @ away)
    counts = torch.from_numpy(seen.sum(0)[:, None].astype(float))
    sampler, source = SGNHT(0.5), Noise(noise(162))
    # columns are independent chains
    beside = Implicit.start(torch.zeros(n, chains, dtype=torch.float64), sampler, 1.0, source)
    design, target = torch.from_numpy(x), torch.from_numpy(away)[:, None]
    prior = [torch.full((chains,), value, dtype=torch.float64) for value in (tau, lam)]
    for _ in range(500):
        beside.total.add_(lam * design.T @ (target - design @ beside.weights.position))
        beside = moved(beside, sampler, *prior, counts, 0.1, 1.0, source)
    for j in range(n):
        assert_moments(beside.weights.position[j], middle[j], covariance[j, j], slack=0.04)


@each_kind
def test_an_unknown_row_has_the_prior_s_moments(kind: str) -> None:
    """Of S draws at once, against Monte Carlo over rows drawn from the prior."""
    draws = [model_of(kind, s) for s in range(4)]
    stacked = draws[0].with_state(
        {name: torch.stack([d.state()[name] for d in draws]) for name in draws[0].state()}
    )
    source = Noise(noise(155))
    for side in Side:
        first, second = stacked.prior_moments(side)
        for s, model in enumerate(draws):
            theta = source.normal(torch.empty(40_000, model.columns, dtype=torch.float64))
            theta = model.mean[side] + theta / model.precision[side].sqrt()
            design = model.design(theta, side)
            assert first.shape == second.shape == (4, design.shape[1])
            for value, of in ((first[s], design), (second[s], design.square())):
                error = of.std(0) / math.sqrt(len(of))
                assert ((of.mean(0) - value).abs() <= ERRORS * error + 1e-12)[:-2].all()
            dispersion = (-theta[:, -1]).exp()
            own = first[s, -2 + int(side)]
            error = dispersion.std() / math.sqrt(len(theta))
            assert (dispersion.mean() - (-own).exp()).abs() <= ERRORS * error


@each_kind
@pytest.mark.parametrize("mean", [3.6, 55.0])
def test_the_first_rows_predict_the_mean(kind: str, mean: float) -> None:
    """On any scale of ratings; real rates spread by 0.4 units. Levels make up the variance."""
    unit = mean / 3.6
    model = HierarchicalMF.first(
        20,
        Poisson() if kind == "poisson" else Gaussian(),
        Identity() if kind == "gaussian" else HALF_LINE["softplus"],
        biases=kind != "poisson",
        implicit=False,
        mean=mean,
        unit=unit,
    )
    rows = [model.start(torch.empty(5000, 1), s, mean, Noise(noise(156, s))) for s in Side]
    w, h = (model.design(t, side) for t, side in zip(rows, Side, strict=True))
    rates = (w * h).sum(1)
    assert rates.mean().item() == pytest.approx(mean, rel=0.05)
    if kind == "gaussian":
        assert rates.std().item() == pytest.approx(0.4 * unit, rel=0.1)
    variance = model.variance(np.array([mean]), levels(w, h)[:1].double().numpy())
    assert variance.item() == pytest.approx(unit**2, rel=1e-6)
    assert "weight_precision" not in model.state()
