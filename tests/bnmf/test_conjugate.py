"""One factor, H known: every row of W has a Gamma posterior, and `update_block` must find it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from bnmf.blocks import RatingBlock, column_block, strata
from bnmf.domains import CoRV, Domain, Mirror
from bnmf.models import Curvature, PoissonNMF
from bnmf.random import Key, Noise, Role, generator
from bnmf.samplers import Sampler
from bnmf.samplers.kinetics import MonomialGamma
from bnmf.samplers.sghmc import SGHMC
from bnmf.samplers.sgld import SGLD
from bnmf.samplers.sgmgt import SGMGT
from bnmf.samplers.sgnht import SGNHT
from bnmf.samplers.sgrhmc import SGRHMC
from bnmf.samplers.sgrld import SGRLD
from bnmf.sweep import FactorBlock, Rule, update_block
from bnmf.transforms import HALF_LINE
from tests.oracles import FORWARD, SEED, Langevin, Law, Vector, assert_moments, proxy_gradient

# Every row has rated the same four items: as many independent chains as rows.
X = np.array([1.0, 2.5, 0.5, 2.0])
H = np.array([0.6, 1.2, 0.9, 0.4])
S, RATE, ROWS = 2.0, 0.7, 8_000
SHAPE, RATE_AFTER = 1.0 + S * X.sum(), RATE + S * H.sum()
MEAN, VARIANCE = SHAPE / RATE_AFTER, SHAPE / RATE_AFTER**2
# A curvature so high that a step moves H by nothing at all.
FIXED = Curvature(1.0, 1e30)

each_transform = pytest.mark.parametrize("transform", HALF_LINE)


def rule_of(transform: str, blocks: int, sampler: Sampler, step: float) -> Rule:
    domain = CoRV(HALF_LINE[transform])
    # the unit of length of W: about the posterior's spread of phi
    phi = domain.position(torch.tensor([MEAN], dtype=torch.float64))
    slope = domain.transform.slopes(phi)[0].item()
    curvature = (SHAPE * (slope / MEAN) ** 2 - 1.0) / len(X)
    model = PoissonNMF(1, S, RATE, 3.0)
    return Rule(
        model, domain, sampler, blocks, step, 1.0, None, 1, Curvature(1.0, curvature), FIXED
    )


def sample(rule: Rule, sweeps: int) -> torch.Tensor:
    """theta (ROWS,) of W after the last sweep."""
    g = rule.blocks
    width, rows = len(X) // g, ROWS // g

    def block(theta: Vector, counts: float) -> FactorBlock:
        position = rule.domain.position(torch.from_numpy(theta).float()[:, None])
        start = Noise(generator(Key(SEED), Role.START, len(theta)))
        state = rule.sampler.init(position, 1.0, start)
        return FactorBlock(state, torch.full((len(theta), 1), float(counts)))

    i, j = np.indices((rows, width)).reshape(2, -1)
    w = [block(np.full(rows, MEAN), len(X)) for _ in range(g)]
    h = [block(H[c * width : (c + 1) * width], ROWS) for c in range(g)]
    known = [b.state.position.clone() for b in h]
    ratings = [RatingBlock.from_arrays(i, j, X[c * width + j], (rows, width)) for c in range(g)]
    for t in range(sweeps):
        key = Key(SEED, sweep=t)
        order = strata(g, generator(key, Role.STRATA))
        for stratum in order:
            for b in range(g):
                c = column_block(b, stratum, g)
                visit = key._replace(stratum=stratum, block=b)
                w[b], h[c] = update_block(
                    w[b], h[c], ratings[c], visit, rule, first=stratum == order[0]
                )
    assert all(torch.equal(b.state.position, k) for b, k in zip(h, known, strict=True))
    return rule.domain.factor(torch.cat([b.state.position for b in w])).flatten()


def exact(rule: Rule, transform: str) -> Law:
    """The stationary law of a row of W after whole sweeps of SGLD, at this step.

    In units of the row's scale; a block's likelihood counts G-fold, strata in either order.
    """
    scale = 1.0 / math.sqrt(1.0 + len(X) * rule.row_curvature.per_rating)
    width = len(X) // rule.blocks
    centre = float(rule.domain.position(torch.tensor([MEAN], dtype=torch.float64))) / scale
    low = float(rule.domain.position(torch.tensor([0.02], dtype=torch.float64))) / scale
    chains = Langevin((max(low, centre - 12.0), centre + 12.0), rule.step_size)

    def kernel(c: int) -> Vector:
        part = slice(c * width, (c + 1) * width)
        x, h = rule.blocks * S * X[part].sum(), rule.blocks * S * H[part].sum()
        of_phi = proxy_gradient(transform, lambda theta: RATE + h - x / theta)
        return chains.kernel(lambda q: scale * of_phi(scale * q))

    kernels = [kernel(c) for c in range(rule.blocks)]
    if rule.blocks == 1:
        law = chains.law(kernels[0])
    else:
        first, second = map(torch.from_numpy, kernels)
        law = chains.law((0.5 * (first @ second + second @ first)).numpy())
    return Law(scale * law.points, law.weights)


@each_transform
@pytest.mark.parametrize("blocks", [1, 2])
def test_sgld_finds_the_gamma_posterior(transform: str, blocks: int) -> None:
    rule = rule_of(transform, blocks, SGLD(), 0.05)
    law = exact(rule, transform).moments(FORWARD[transform])
    # at this step the exact law of the chain is the posterior's to 5 % of its variance
    assert abs(law[0] - MEAN) < 0.05 * math.sqrt(VARIANCE)
    assert law[1] == pytest.approx(VARIANCE, rel=0.05)
    assert_moments(sample(rule, 160), *law)


@each_transform
@pytest.mark.parametrize("blocks", [1, 2])
def test_the_law_of_the_chain_tends_to_the_gamma_posterior(transform: str, blocks: int) -> None:
    """The oracle of the test above has the posterior as its limit."""
    first, second = (
        np.array(exact(rule_of(transform, blocks, SGLD(), step), transform).moments(
            FORWARD[transform])) for step in (0.04, 0.02)
    )  # fmt: skip
    mean, variance = 2 * second - first
    assert mean == pytest.approx(MEAN, rel=1e-3)
    assert variance == pytest.approx(VARIANCE, rel=5e-3)


MOMENTA: dict[str, tuple[Sampler, float]] = {
    "sgnht": (SGNHT(0.5), 0.08),
    "sghmc": (SGHMC(0.5), 0.08),
    "sgmgt": (SGMGT(0.5), 0.1),
    "sgmgt, a = 2": (SGMGT(0.5, MonomialGamma(2)), 0.1),
    "sgmgt-d": (SGMGT(0.5, position_diffusion=0.1, thermostat_diffusion=0.1), 0.1),
}


@each_transform
@pytest.mark.parametrize("name", MOMENTA)
def test_momenta_find_the_gamma_posterior(transform: str, name: str) -> None:
    """No exact law at a finite step: 3 % is allowed for it, of which SGNHT's xi h / 2 is 2 %."""
    sampler, step = MOMENTA[name]
    rule = replace(rule_of(transform, 1, sampler, step), resample_every=20)
    assert_moments(sample(rule, 300), MEAN, VARIANCE, slack=0.03)


@each_transform
def test_thermostats_absorb_the_noise_of_the_strata(transform: str) -> None:
    """With two blocks each gradient is off by half the ratings; 3 % is allowed for the step."""
    rule = rule_of(transform, 2, SGNHT(0.5), 0.08)
    assert_moments(sample(rule, 300), MEAN, VARIANCE, slack=0.03)


@pytest.mark.parametrize("sampler", ["sgrld", "sgrhmc"])
@pytest.mark.parametrize("domain", [*HALF_LINE, "mirror"])
def test_metrics_find_the_gamma_posterior(sampler: str, domain: str) -> None:
    """5 % of the spread is allowed for the step."""
    plain = rule_of("softplus" if domain == "mirror" else domain, 1, SGLD(), 0.0)
    where: Domain = Mirror() if domain == "mirror" else plain.domain
    made = SGRLD(where.metric) if sampler == "sgrld" else SGRHMC(where.metric, 0.7)
    # the metric stretches the step: by theta, or by up to 5/4 / (1/4 + f'^2)
    step = {"sgrld": 0.02, "sgrhmc": 0.06}[sampler]
    rule = replace(plain, domain=where, sampler=made, step_size=step)
    assert_moments(sample(rule, 400), MEAN, VARIANCE, slack=0.05)
