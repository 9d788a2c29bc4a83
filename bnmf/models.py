"""Likelihoods and priors of ratings given the rate mu_ij = sum_k W[i,k] H[j,k]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from bnmf.transforms import POSITIVE

# Below any rate a factor model reaches, above what float32 loses: keeps x / mu finite.
SMALLEST_RATE = 1e-12


class RatingScale(NamedTuple):
    """Ratings lie on a grid from ``low`` to ``high``, ``step`` apart."""

    low: float
    high: float
    step: float


@dataclass(frozen=True)
class PoissonNMF:
    """Poisson likelihood of counts s*x at rates s*mu, Exponential priors (Yokoi et al., eq. 58-59).

    ``counts_per_unit`` is s: 1 is the paper's likelihood, more makes a rating worth more
    counts, so that its variance mu/s fits the data's. The rates are those of the priors.
    """

    rank: int
    counts_per_unit: float
    prior_rate_w: float
    prior_rate_h: float
    support: tuple[float, float] = POSITIVE

    def score(self, x: Tensor, mu: Tensor) -> Tensor:
        """d log p(x | mu) / d mu = s (x / mu - 1) per rating; x, mu (n,)."""
        return (x / mu.clamp_min(SMALLEST_RATE)).sub_(1.0).mul_(self.counts_per_unit)

    def log_prob(self, x: Tensor, mu: Tensor) -> Tensor:
        """log Poisson(s x | s mu) per rating, with Gamma(s x + 1) for the factorial; (n,)."""
        s = self.counts_per_unit
        rate = s * mu.clamp_min(SMALLEST_RATE)
        return torch.xlogy(s * x, rate) - rate - torch.lgamma(s * x + 1.0)

    def curvature(self, mean_rating: float) -> float:
        """Expected -d^2 log p / d mu^2 of one rating at mu = mean_rating: s / mu."""
        return self.counts_per_unit / mean_rating

    def variance(self, mu: NDArray[np.float64]) -> NDArray[np.float64]:
        """Var[x | mu] = mu / s, in squared rating units; any shape."""
        return mu / self.counts_per_unit

    def cdf(
        self, x: NDArray[np.float64], mu: NDArray[np.float64], scale: RatingScale
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(F(x - d/2), F(x + d/2)) of the rounded rating, the two ends of the scale left open.

        Counts are continued to the reals so that F at n + 1/2 is P(count <= n): with
        F(t) = Q(t + 1/2, s mu), Q the regularised upper incomplete Gamma function.
        x and mu broadcast against each other.
        """
        s = self.counts_per_unit

        def below(rating: NDArray[np.float64]) -> NDArray[np.float64]:
            q: NDArray[np.float64] = special.gammaincc(np.maximum(s * rating + 0.5, 1e-300), s * mu)
            return q

        half = 0.5 * scale.step
        lower = np.where(x <= scale.low + half / 2, 0.0, below(x - half))
        upper = np.where(x >= scale.high - half / 2, 1.0, below(x + half))
        return lower, upper
