"""Five wells, and slice sampling with minibatches: the parts exactly, the orderings as found."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate

from bnmf.experiments import EXPERIMENTS
from bnmf.experiments.base import Result
from bnmf.experiments.bins import Bins
from bnmf.experiments.monomial import (
    COMMON,
    PRINTED,
    TEMPERED,
    Line,
    Potential,
    Visits,
    Wells,
    speed,
)
from bnmf.random import Noise
from bnmf.samplers.kinetics import Gaussian, MonomialGamma
from tests.oracles import SEED, noise


@pytest.mark.parametrize("potential", [TEMPERED, PRINTED], ids=lambda p: p.name)
def test_the_slopes_are_the_potentials(potential: Potential) -> None:
    theta = torch.linspace(-3.0, 3.0, 41, dtype=torch.float64)[:, None].requires_grad_()
    (slope,) = torch.autograd.grad(potential.level(theta).sum(), theta)
    torch.testing.assert_close(slope, potential.slope(theta))


def test_both_readings_have_the_same_five_wells() -> None:
    tempered, printed = Wells(TEMPERED), Wells(PRINTED)
    np.testing.assert_allclose(tempered.bottoms, printed.bottoms, atol=1e-9)
    assert len(tempered.bottoms) == len(tempered.mass) == 5
    assert tempered.mass.sum() > 0.99 and tempered.highest.max() < 6.0
    assert printed.mass.sum() > 1.0 - 1e-8 and printed.lowest.min() > 10.0


def test_visits_count_arrivals_at_other_wells() -> None:
    wells = Wells(TEMPERED)
    second, third, fourth = wells.bottoms[1:4].tolist()
    visits = Visits(wells, 2)
    for one in (third, 0.5 * (second + third), second, second + 0.1, third, fourth):
        visits.see(torch.tensor([[one], [math.nan]], dtype=torch.float64))
    assert visits.changes.tolist() == [3.0, 0.0]


def test_a_line_s_bins_have_their_probabilities() -> None:
    edges = np.array([-9.0, -1.0, 0.5, 2.0, 9.0])
    bins = Bins(lambda x: x[:, 0] ** 2 / 2.0, [edges])
    inner = [0.5 * math.erfc(-x / math.sqrt(2.0)) for x in edges[1:-1]]
    np.testing.assert_allclose(bins.truth, np.diff([0.0, *inner, 1.0]), rtol=1e-6)
    counts = bins.counts(2)
    for theta in ([-5.0, 0.0], [0.0, 0.0], [1.0, 0.0], [math.nan, 0.0]):
        bins.add(counts, torch.tensor(theta, dtype=torch.float64)[:, None])
    assert counts.tolist() == [[1.0, 1.0, 1.0, 1.0], [0.0, 4.0, 0.0, 0.0]]
    share = np.array([0.25, 0.25, 0.25, 0.25])
    assert bins.variation(counts)[1] == pytest.approx(1.0 - bins.truth[1])
    assert bins.divergence(counts)[0] == pytest.approx(np.sum(share * np.log(share / bins.truth)))
    assert bins.divergence(counts)[1] == pytest.approx(-math.log(bins.truth[1]))


@pytest.mark.parametrize("power", [1, 2])
def test_the_mean_speed_is_that_of_transition_states(power: int) -> None:
    """E|K'| = 2 exp(-K(0)) / int exp(-K), as K' exp(-K) is a derivative; here in r = |p|^(1/a)."""
    kinetics = MonomialGamma(power)

    def weight(r: float) -> float:
        p = torch.tensor([r**power], dtype=torch.float64)
        return math.exp(-float(kinetics.energy(p))) * power * r ** (power - 1)

    total = 2.0 * integrate.quad(weight, 0.0, 60.0, limit=200)[0]
    least = float(kinetics.energy(torch.zeros(1, dtype=torch.float64)))
    assert speed(kinetics) == pytest.approx(2.0 * math.exp(-least) / total, rel=1e-4)
    assert speed(Gaussian()) == pytest.approx(2.0 / math.sqrt(2.0 * math.pi))


@pytest.fixture(scope="module")
def wells() -> Result:
    torch.set_num_threads(1)
    return EXPERIMENTS["five-well"].run(True, SEED)


def _changes(result: Result, sampler: str, step_size: float) -> float:
    table = result.table
    (found,) = (
        float(table["well changes / 1000 steps"][i])
        for i in range(len(table["sampler"]))
        if (table["potential"][i], table["sampler"][i], table["step size"][i])
        == ("U = E", sampler, step_size)
    )
    return found


def test_bounded_velocities_bear_the_steps_that_mix(wells: Result) -> None:
    """The paper's ordering of SGMGT (a = 1) and SGNHT, each at a step it can stand."""
    assert _changes(wells, "SGMGT a = 1", 0.12) > 3.0 * _changes(wells, "SGNHT", COMMON)


def test_at_equal_steps_heavier_tails_are_slower(wells: Result) -> None:
    """Against the paper, as transition state theory has it: E|K'| is 0.4 times as large."""
    slow = _changes(wells, "SGMGT a = 2", COMMON)
    assert slow < 0.6 * _changes(wells, "SGMGT a = 1", COMMON)
    assert slow < 0.6 * _changes(wells, "SGNHT (ABOBA)", COMMON)


def test_diffusion_in_theta_changes_wells_more_often(wells: Result) -> None:
    """The paper's ordering of SGMGT-D and SGMGT, at equal steps."""
    for a, times in ((1, 1.2), (2, 2.0)):
        plain = _changes(wells, f"SGMGT a = {a}", COMMON)
        assert _changes(wells, f"SGMGT-D a = {a}", COMMON) > times * plain


def test_the_printed_barriers_are_not_crossed(wells: Result) -> None:
    assert not wells.claims[-1].holds


def test_minibatches_are_unbiased() -> None:
    line = Line.make(SEED)
    square, product = line.sums(30, 40_000, Noise(noise(1)))
    gradient = (square + 1.0) * line.mean - product
    variance = line.gradient_variance(30)
    assert abs(float(gradient.mean())) < 5.0 * math.sqrt(variance / 40_000)
    assert float(gradient.var()) == pytest.approx(variance, rel=0.05)


def test_slices_are_too_wide_and_laplacian_hmc_is_not() -> None:
    """Figure 7; 0.15 is five times the quick form's Monte Carlo error of a chain's deviation."""
    result = EXPERIMENTS["slice-vs-laplacian"].run(True, SEED)
    columns = ("sampler", "minibatch", "deviation / exact", "derived")
    rows = {
        (sampler, m): (float(ratio), float(derived))
        for sampler, m, ratio, derived in zip(*(result.table[c] for c in columns), strict=True)
    }
    naive, derived = rows["naive slice", 30]
    assert naive == pytest.approx(derived, abs=0.15) and naive > 1.8
    assert rows["naive slice", 100][0] == pytest.approx(1.0, abs=0.05)
    assert rows["stochastic Laplacian HMC", 30][0] == pytest.approx(1.0, abs=0.15)
    assert all(claim.holds for claim in result.claims)
