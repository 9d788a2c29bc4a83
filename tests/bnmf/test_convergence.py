"""R-hat and effective sample sizes against ArviZ, and on traces of which one can tell by eye."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import stats

from bnmf.convergence import HIGHEST, convergence
from tests.oracles import numpy_noise

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import arviz

SLOWNESS = (0.0, 0.5, 0.9, 0.99, -0.5, 1.0)


def walks(chains: int, sweeps: int, *stream: int) -> np.ndarray:
    """Autoregressions from N(0, 1), one a slowness, the third with heavy tails; (C, N, 6)."""
    noise = numpy_noise(chains, sweeps, *stream).normal(size=(chains, sweeps, len(SLOWNESS)))
    x = noise.copy()
    for t in range(1, sweeps):
        x[:, t] = np.array(SLOWNESS) * x[:, t - 1] + noise[:, t]
    x[..., 2] = np.sinh(2.0 * x[..., 2])
    return x


# at 601 or 30 sweeps a quantile would be one of the values, and rounding would say which side
@pytest.mark.parametrize("sweeps", [4, 7, 50, 151, 600])
@pytest.mark.parametrize("chains", [1, 2, 5])
def test_they_are_what_arviz_finds(chains: int, sweeps: int) -> None:
    x = walks(chains, sweeps, 1)
    found = convergence(x)
    for n in range(x.shape[2]):
        for size, method in ((found.ess_bulk, "bulk"), (found.ess_tail, "tail")):
            known = arviz.ess(x[..., n], method=method)
            # below 10 sweeps a whole tail can be of one kind, of which nothing can be said
            assert size[n] == pytest.approx(known, rel=1e-9) or sweeps < 10, method
        if chains > 1:
            assert found.rhat[n] == pytest.approx(arviz.rhat(x[..., n]), rel=1e-12)


@pytest.mark.parametrize("sweeps", [9, 200])
def test_one_chain_is_compared_with_itself(sweeps: int) -> None:
    """Its halves are two chains; ArviZ has the unsplit R-hat of those."""
    x = walks(1, sweeps, 2)
    found = convergence(x)
    half = sweeps // 2

    def scores(values: np.ndarray) -> np.ndarray:
        quantiles = (stats.rankdata(values) - 3 / 8) / (values.size + 1 / 4)
        return stats.norm.ppf(quantiles).reshape(values.shape)

    for n in range(x.shape[2]):
        halves = np.stack([x[0, :half, n], x[0, -half:, n]])
        known = [
            arviz.rhat(scores(values), method="identity")
            for values in (halves, np.abs(halves - np.median(halves)))
        ]
        assert found.rhat[n] == pytest.approx(max(known), rel=1e-12)


def test_chains_of_one_law_pass() -> None:
    """n (R-hat^2 - 1) + 1 of m independent halves is chi-square by m - 1, for both scores."""
    m, n = 8, 500
    found = convergence(numpy_noise(3).normal(size=(m // 2, 2 * n, 20)))
    unlikely = stats.chi2.isf(1e-8, m - 1) / (m - 1)
    assert found.rhat.max() < np.sqrt(1.0 + (unlikely - 1.0) / n) < HIGHEST


def far_start(x: np.ndarray) -> None:
    x[0] += 30.0 * np.exp(-np.arange(x.shape[1]) / 60.0)[:, None]


def stopped_early(x: np.ndarray) -> None:
    x[1, 20:] = 1.0


def drifting_alike(x: np.ndarray) -> None:
    x += np.linspace(0.0, 2.0, x.shape[1])[:, None]


def of_another_spread(x: np.ndarray) -> None:
    x[1] *= 3.0  # about the same mean: seen by the folded scores alone


def at_rest_apart(x: np.ndarray) -> None:
    x[0], x[1:] = 1.0, 2.0


@pytest.mark.parametrize(
    "fault", [far_start, stopped_early, drifting_alike, of_another_spread, at_rest_apart]
)
@pytest.mark.parametrize("chains", [2, 4])
def test_chains_that_did_not_come_together_are_seen(fault: object, chains: int) -> None:
    x = numpy_noise(chains, 4).normal(size=(chains, 400, 10))
    fault(x)  # type: ignore[operator]
    rhat = convergence(x).rhat
    assert rhat.min() > HIGHEST and np.isfinite(rhat).all()


def test_what_never_moves_has_converged() -> None:
    assert (convergence(np.full((2, 50, 3), 3.0)).rhat <= 1.0).all()


def test_of_three_sweeps_nothing_can_be_said() -> None:
    x = numpy_noise(5).normal(size=(2, 4, 2))
    assert np.isfinite(convergence(x).rhat).all()
    assert np.isnan(convergence(x[:, :3])).all()
