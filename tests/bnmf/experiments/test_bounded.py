"""The orderings that Yokoi et al. claim for mirror, Itô and CoRV, in the experiments' quick forms."""

from __future__ import annotations

import numpy as np
import pytest

from bnmf.experiments import EXPERIMENTS
from bnmf.experiments.base import Result
from bnmf.experiments.bounded import (
    TARGETS,
    Histogram,
    Target,
    exact_error,
    methods,
    simulate,
)
from tests.oracles import ERRORS, SEED, numpy_noise

BETA, GAMMA, NORMAL = TARGETS


def column(result: Result, name: str, target: Target, method: str) -> np.ndarray:
    """One method's figures of one target, where there are any."""
    table = result.table
    rows = zip(table["target"], table["method"], table[name], strict=True)
    found = np.array([v for t, m, v in rows if (t, m) == (target.name, method)], np.float64)
    return found[np.isfinite(found)]


def test_histogram_knows_the_truth() -> None:
    """Exact draws are as far off as said, in bins and by Kolmogorov; what is no number counts."""
    for target in TARGETS:
        histogram = Histogram(target)
        assert histogram.truth.sum() == pytest.approx(1.0)
        draws = target.law.rvs((20, 2000), random_state=numpy_noise(1))
        distance = np.mean([histogram.distance(theta) for theta in draws])
        assert distance == pytest.approx(histogram.independent(2000), rel=0.15)
        # beyond 2.5 / sqrt(n): one in 1e5
        assert max(histogram.kolmogorov(theta) for theta in draws) < 2.5 / 2000**0.5
        half = np.where(np.arange(2000) % 2, draws[0], np.nan)
        assert histogram.shares(half)[-1] >= 0.5
        assert histogram.kolmogorov(half) == pytest.approx(0.5, abs=0.02)


def test_exact_error_is_the_limit_of_fine_grids() -> None:
    """A grid twice as fine changes nothing."""
    for target in TARGETS:
        corv = methods(target)[2]
        assert exact_error(target, corv, 0.1) == pytest.approx(
            exact_error(target, corv, 0.1, fineness=2.0), rel=1e-4
        )
    mirror = methods(NORMAL)[0]
    once, twice = (exact_error(NORMAL, mirror, 0.05, fineness) for fineness in (1.0, 2.0))
    assert once == pytest.approx(twice, rel=1e-3)


def test_exact_error_is_what_chains_have() -> None:
    """A wide step, where the error is many standard errors; CoRV on a gamma and mirror."""
    for target, which, step in ((GAMMA, 2, 1.0), (NORMAL, 0, 0.5)):
        method = methods(target)[which]
        found, error, gone = simulate(target, method, step, 100_000, (SEED, 7, which))
        exact = exact_error(target, method, step)
        assert gone == 0.0
        assert abs(exact) > 2 * ERRORS * error, "the test needs a visible error"
        assert abs(found - exact) < ERRORS * error


def test_densities_quick() -> None:
    """CoRV is nearer than mirror and Itô: by half where a bound has infinite density.

    On the truncated normal, whose slope is bounded, only Itô is far off.
    """
    result = EXPERIMENTS["bounded-1d"].run(True, SEED)
    for target in TARGETS:
        (mirror,), (ito,), (corv,) = (
            column(result, "total variation", target, m) for m in ("mirror", "Itô", "CoRV")
        )
        assert corv < 0.75 * ito
        if target is not NORMAL:
            assert corv < 0.5 * mirror
    assert not column(result, "chains lost", GAMMA, "CoRV").any()


def test_convergence_quick() -> None:
    """CoRV's errors are of order 1, and beyond chance below mirror's and Itô's at each step."""
    result = EXPERIMENTS["weak-convergence"].run(True, SEED)
    for target in TARGETS:
        corv = column(result, "exact error", target, "CoRV")[:3]
        steps = column(result, "step size", target, "CoRV")[:3]
        slope, _ = np.polyfit(np.log(steps), np.log(np.abs(corv)), 1)
        assert slope == pytest.approx(1.0, abs=0.1)
        for other in ("mirror", "Itô"):
            exact = np.abs(column(result, "exact error", target, other))
            chains = np.abs(column(result, "error of chains", target, other))
            least = chains - 3.0 * column(result, "its error", target, other)
            assert (np.abs(corv) < (exact if len(exact) else least)).all(), (target.name, other)
        assert (column(result, "chains lost", target, "Itô") > 0.9).all()
        assert not column(result, "chains lost", target, "CoRV").any()
