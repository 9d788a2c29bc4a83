"""Whether chains have come together: split R-hat and effective sample sizes of their traces.

Only what the posterior identifies can be judged so. Columns of W and H may change places without
any change in a prediction, so the factors themselves are not traced.

After A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Buerkner: Rank-Normalization, Folding,
and Localization: An Improved R-hat for Assessing Convergence of MCMC. Bayesian Analysis 2021.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

Floats = NDArray[np.float64]

FEWEST = 4  # sweeps a chain, below which nothing can be said
HIGHEST = 1.05  # an R-hat that is still good


class Convergence(NamedTuple):
    """Of n traced quantities, (n,) each; NaN where nothing can be said."""

    rhat: Floats
    ess_bulk: Floats
    ess_tail: Floats


def convergence(traces: Floats) -> Convergence:
    """Of C >= 1 chains of N sweeps, (C, N, n).

    All are NaN of fewer than 4 sweeps.
    """
    if traces.shape[1] < FEWEST:
        unknown = np.full(traces.shape[2], np.nan)
        return Convergence(unknown, unknown, unknown)
    halves = _halves(traces)
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    low, high = np.quantile(traces, (0.05, 0.95), axis=(0, 1))
    with np.errstate(invalid="ignore"):  # of what never moves
        return Convergence(
            np.maximum(_rhat(_normal_scores(halves)), _rhat(_normal_scores(folded))),
            _ess(_normal_scores(halves)),
            np.minimum(
                _ess((halves <= low).astype(np.float64)), _ess((halves <= high).astype(np.float64))
            ),
        )


def _halves(traces: Floats) -> Floats:
    """(2 C, N // 2, n): a chain that drifts has two halves that differ."""
    half = traces.shape[1] // 2
    return np.concatenate([traces[:, :half], traces[:, -half:]])


def _normal_scores(x: Floats) -> Floats:
    """Each quantity's values by their rank, as quantiles of a standard normal."""
    from scipy.stats import rankdata  # nearly a second to import: for reports alone

    count = x.shape[0] * x.shape[1]
    ranks = rankdata(x.reshape(count, -1), axis=0).reshape(x.shape)
    scores: Floats = special.ndtri((ranks - 0.375) / (count + 0.25))
    return scores


def _rhat(x: Floats) -> Floats:
    """Of (C, N, n): the root of the pooled variance over that within chains."""
    n = x.shape[1]
    within = np.maximum(x.var(1, ddof=1).mean(0), 1e-12)  # chains may have come to rest apart
    between = x.mean(1).var(0, ddof=1)
    ratio: Floats = np.sqrt((n - 1) / n + between / within)
    return ratio


def _ess(x: Floats) -> Floats:
    """Of (C, N, n): C N over the autocorrelation time, by Geyer's initial monotone sequence."""
    chains, n, _ = x.shape
    away = x - x.mean(1, keepdims=True)
    size = fft.next_fast_len(2 * n, real=True)
    power = np.abs(fft.rfft(away, size, axis=1)) ** 2
    covariance = fft.irfft(power, size, axis=1)[:, :n].mean(0) / n
    within = covariance[0] * n / (n - 1)
    pooled = covariance[0] + x.mean(1).var(0, ddof=1)
    rho = 1.0 - (within - covariance) / pooled
    rho[0] = 1.0
    pairs = (rho[:-1] + rho[1:])[::2][: max((n - 1) // 2, 1)]
    positive = np.logical_and.accumulate(pairs > 0.0)
    positive[-1] = False
    last = np.take_along_axis(rho, 2 * positive.sum(0, keepdims=True), 0)[0]
    tau = -1.0 + 2.0 * (np.minimum.accumulate(pairs) * positive).sum(0) + np.maximum(last, 0.0)
    ess: Floats = chains * n / np.maximum(tau, 1.0 / np.log10(chains * n))
    return ess
