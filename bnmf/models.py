"""Likelihoods and priors of ratings given mu_ij = sum_k W[i,k] H[j,k].

A model may sample more than factors: what it *samples* of a row (n, columns) becomes the
*design* (n, width) whose inner products are the mu. Hyper-parameters that are sampled too are
fields of the model; a draw's model is `with_state` of what `state` gave.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from bnmf.random import Noise
from bnmf.transforms import POSITIVE, REAL, Support

# Below any rate a factor model reaches, above what float32 loses: keeps x / mu finite.
SMALLEST_RATE = 1e-12


class RatingScale(NamedTuple):
    """Ratings lie on a grid from ``low`` to ``high``, ``step`` apart."""

    low: float
    high: float
    step: float


class Side(IntEnum):
    """Whose rows: the users' or the items'."""

    W = 0
    H = 1


class Curvature(NamedTuple):
    """Of the potential in a row's positions: base + per_rating x (its training ratings)."""

    base: float
    per_rating: float


class BlockStatistics(NamedTuple):
    """Float64 sums over one block of W or H; blocks are added up in their order."""

    rows: int
    ratings: float  # sum of the rows' training ratings n_i
    square: float  # sum_i n_i mean_k theta_ik^2, over the K factors
    square_slope: float  # rows * mean of (d theta / d position)^2
    totals: Tensor  # (columns,) sum_i theta_i
    squares: Tensor  # (columns,) sum_i theta_i^2


class Model(Protocol):
    """What the samplers, the loop and the predictions ask of a model."""

    @property
    def rank(self) -> int:
        """K."""

    @property
    def columns(self) -> int:
        """What is sampled of a row: K, and biases."""

    @property
    def support(self) -> Support:
        """Of everything that is sampled."""

    def start(self, like: Tensor, side: Side, mean: float, noise: Noise) -> Tensor:
        """First values (n, columns) of n rows, for ratings around ``mean``."""

    def design(self, theta: Tensor, side: Side) -> Tensor:
        """(n, width) of what is sampled, (n, columns)."""

    def gradient(self, of_design: Tensor, theta: Tensor, side: Side) -> Tensor:
        """dU/dtheta (n, columns): the likelihood's in the design (n, width), and the prior's."""

    def scales(self, counts: Tensor, curvature: Curvature, side: Side) -> Tensor:
        """The unit of length of each row, (n, 1), or of each entry, (n, columns)."""

    def score(self, x: Tensor, mu: Tensor) -> Tensor:
        """d log p(x | mu) / d mu per rating; x, mu (n,)."""

    def misfit(self, score: Tensor) -> float:
        """What `resample` needs of a block's ratings, from their scores (n,)."""

    def curvatures(
        self, w: Sequence[BlockStatistics], h: Sequence[BlockStatistics], mean: float
    ) -> tuple[Curvature, Curvature]:
        """Of W's rows and of H's, for scaling steps."""

    def resample(
        self,
        w: Sequence[BlockStatistics],
        h: Sequence[BlockStatistics],
        misfit: float,
        noise: np.random.Generator,
    ) -> Self:
        """The model with hyper-parameters drawn given the factors; itself where it has none."""

    def state(self) -> dict[str, Tensor]:
        """The hyper-parameters that are sampled, float64."""

    def with_state(self, state: Mapping[str, Tensor]) -> Self:
        """The model of a draw; or of S draws, with tensors that have S in front."""

    def log_prob(self, x: Tensor, mu: Tensor) -> Tensor:
        """log p(x | mu) per rating; (n,)."""

    def variance(self, mu: NDArray[np.float64]) -> NDArray[np.float64]:
        """Var[x | mu] in squared rating units, (n, S) of mu (n, S)."""

    def cdf(
        self, x: NDArray[np.float64], mu: NDArray[np.float64], scale: RatingScale
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The distribution function at both edges of the cell of each rounded rating."""

    def prior_moments(self, side: Side) -> tuple[Tensor, Tensor]:
        """E and E of the square of a row's design, each broadcasting to (S, width)."""


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
    support: Support = POSITIVE

    @property
    def columns(self) -> int:
        """K."""
        return self.rank

    def start(self, like: Tensor, side: Side, mean: float, noise: Noise) -> Tensor:
        """Around sqrt(mean / K), which predicts the mean."""
        spread = noise.normal(like.new_empty(len(like), self.rank), 0.3).exp_()
        return spread.mul_(math.sqrt(mean / self.rank))

    def design(self, theta: Tensor, side: Side) -> Tensor:
        """theta."""
        return theta

    def gradient(self, of_design: Tensor, theta: Tensor, side: Side) -> Tensor:
        """The prior's is its rate."""
        return of_design.add_((self.prior_rate_w, self.prior_rate_h)[side])

    def scales(self, counts: Tensor, curvature: Curvature, side: Side) -> Tensor:
        """1 / sqrt(base + counts * per_rating), (n, 1)."""
        return (counts * curvature.per_rating).add_(curvature.base).rsqrt_()

    def misfit(self, score: Tensor) -> float:
        """Nothing is resampled."""
        return 0.0

    def curvatures(
        self, w: Sequence[BlockStatistics], h: Sequence[BlockStatistics], mean: float
    ) -> tuple[Curvature, Curvature]:
        """s / mean E[h^2] E[f'^2] a rating; 1 for the prior and the Jacobian."""
        per_rate = self.curvature(mean)
        return (
            Curvature(1.0, per_rate * mean_square(h) * mean_slope(w)),
            Curvature(1.0, per_rate * mean_square(w) * mean_slope(h)),
        )

    def resample(
        self,
        w: Sequence[BlockStatistics],
        h: Sequence[BlockStatistics],
        misfit: float,
        noise: np.random.Generator,
    ) -> PoissonNMF:
        """Itself: its hyper-parameters are given."""
        return self

    def state(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def with_state(self, state: Mapping[str, Tensor]) -> PoissonNMF:
        """Itself."""
        return self

    def prior_moments(self, side: Side) -> tuple[Tensor, Tensor]:
        """Of the Exponential."""
        rate = torch.tensor([(self.prior_rate_w, self.prior_rate_h)[side]], dtype=torch.float64)
        return 1.0 / rate, 2.0 / rate**2

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


# Of the precisions: Gamma(shape, rate), and means whose prior counts as one row.
SHAPE, RATE = 1.0, 1.0


@dataclass(frozen=True)
class GaussianMF:
    """Bayesian matrix factorization with biases and sampled hyper-parameters (Ding et al., 5.2).

    x ~ N(b_i + c_j + w_i.h_j, 1 / alpha). Each column of W, of H, of the user biases b and the
    item biases c is N(mean, 1 / precision); the means (c's apart, which is 0) and all
    precisions have Normal and Gamma priors and are drawn from their conditionals. b's mean is
    that of the ratings. Sampled are (factors, bias); the designs are (W, b, 1) and (H, 1, c).
    """

    rank: int
    alpha: Tensor  # () float64, or (S,)
    mean: Tensor  # (2, K + 1) float64, or (S, 2, K + 1): of W's columns and of H's
    precision: Tensor  # the same
    support: Support = REAL

    @property
    def columns(self) -> int:
        """K + 1."""
        return self.rank + 1

    @staticmethod
    def first(rank: int, mean: float) -> GaussianMF:
        """Before anything is known: w.h spreads by 0.4 stars, biases by 0.5 around the mean."""
        means = torch.zeros(2, rank + 1, dtype=torch.float64)
        means[0, rank] = mean
        precision = torch.full_like(means, 2.5 * rank**0.5)
        precision[:, rank] = 4.0
        return GaussianMF(rank, torch.ones((), dtype=torch.float64), means, precision)

    def start(self, like: Tensor, side: Side, mean: float, noise: Noise) -> Tensor:
        """Factors from their prior, biases at their mean."""
        theta = noise.normal(like.new_empty(len(like), self.rank + 1))
        theta *= self.precision[side].rsqrt().to(theta.dtype)
        theta[:, self.rank] = float(self.mean[side, self.rank])
        return theta

    def design(self, theta: Tensor, side: Side) -> Tensor:
        """(W, b, 1) or (H, 1, c)."""
        factors, bias = theta[:, : self.rank], theta[:, self.rank :]
        one = torch.ones_like(bias)
        return torch.cat([factors, bias, one] if side == Side.W else [factors, one, bias], dim=1)

    def gradient(self, of_design: Tensor, theta: Tensor, side: Side) -> Tensor:
        """The prior's is precision (theta - mean)."""
        k = self.rank
        if side == Side.H:
            of_design[:, k] = of_design[:, k + 1]
        precision = self.precision[side].to(theta.dtype)
        pull = torch.addcmul(-precision * self.mean[side].to(theta.dtype), theta, precision)
        return pull.add_(of_design[:, : k + 1])

    def scales(self, counts: Tensor, curvature: Curvature, side: Side) -> Tensor:
        """Of factors 1 / sqrt(base + n_i per_rating), of biases 1 / sqrt(1 + n_i); (n, K + 1)."""
        factors = (counts * curvature.per_rating).add_(curvature.base).rsqrt_()
        bias = (counts + 1.0).rsqrt_()
        return torch.cat([factors.expand(-1, self.rank), bias], dim=1)

    def score(self, x: Tensor, mu: Tensor) -> Tensor:
        """alpha (x - mu)."""
        return (x - mu).mul_(float(self.alpha))

    def misfit(self, score: Tensor) -> float:
        """The sum of squared residuals."""
        norm = torch.linalg.vector_norm(score, dtype=torch.float64)
        return float(norm * norm) / float(self.alpha) ** 2

    def curvatures(
        self, w: Sequence[BlockStatistics], h: Sequence[BlockStatistics], mean: float
    ) -> tuple[Curvature, Curvature]:
        """alpha E[h^2] a rating, beside the mean precision of the factors' columns."""
        base = self.precision[:, : self.rank].mean(1).tolist()
        alpha = float(self.alpha)
        return (
            Curvature(base[0], alpha * mean_square(h)),
            Curvature(base[1], alpha * mean_square(w)),
        )

    def resample(
        self,
        w: Sequence[BlockStatistics],
        h: Sequence[BlockStatistics],
        misfit: float,
        noise: np.random.Generator,
    ) -> GaussianMF:
        """Means and precisions of the columns from Normal-Gamma, alpha from Gamma conditionals."""
        mean, precision = torch.empty_like(self.mean), torch.empty_like(self.precision)
        for side, blocks in enumerate((w, h)):
            rows = sum(block.rows for block in blocks)
            totals = sum((block.totals for block in blocks), torch.zeros(()).double()).numpy()
            squares = sum((block.squares for block in blocks), torch.zeros(()).double()).numpy()
            if side == Side.W:
                # b's mean is that of the ratings, far from 0: its prior has no say in it
                prior = np.where(np.arange(len(totals)) < self.rank, 1.0, 1e-6)
            else:
                prior = np.where(np.arange(len(totals)) < self.rank, 1.0, np.inf)
            count = prior + rows
            centre = np.where(np.isinf(prior), 0.0, totals / np.where(np.isinf(count), 1.0, count))
            spread = squares - np.where(np.isinf(prior), 0.0, count) * centre**2
            drawn = noise.gamma(SHAPE + 0.5 * rows, 1.0 / (RATE + 0.5 * np.maximum(spread, 0.0)))
            around = noise.standard_normal(len(totals)) / np.sqrt(count * drawn)
            precision[side] = torch.from_numpy(drawn)
            mean[side] = torch.from_numpy(np.where(np.isinf(prior), 0.0, centre + around))
        ratings = sum(block.ratings for block in w)
        alpha = noise.gamma(SHAPE + 0.5 * ratings, 1.0 / (RATE + 0.5 * misfit))
        return replace(
            self, alpha=torch.tensor(alpha, dtype=torch.float64), mean=mean, precision=precision
        )

    def state(self) -> dict[str, Tensor]:
        """alpha, mean and precision."""
        return {"alpha": self.alpha, "mean": self.mean, "precision": self.precision}

    def with_state(self, state: Mapping[str, Tensor]) -> GaussianMF:
        """With the draw's own."""
        return GaussianMF(self.rank, state["alpha"], state["mean"], state["precision"])

    def prior_moments(self, side: Side) -> tuple[Tensor, Tensor]:
        """Of the design's columns under their Normal priors, (S, K + 2); the ones are known."""
        first = self.mean[..., side, :]
        second = first.square() + 1.0 / self.precision[..., side, :]
        one = torch.ones_like(first[..., :1])
        k = self.rank

        def design(of: Tensor) -> Tensor:
            factors, bias = of[..., :k], of[..., k:]
            return torch.cat([factors, bias, one] if side == Side.W else [factors, one, bias], -1)

        return design(first), design(second)

    def log_prob(self, x: Tensor, mu: Tensor) -> Tensor:
        """log N(x | mu, 1 / alpha) per rating; (n,)."""
        alpha = float(self.alpha)
        return -0.5 * alpha * (x - mu).square() + 0.5 * math.log(alpha / (2 * math.pi))

    def variance(self, mu: NDArray[np.float64]) -> NDArray[np.float64]:
        """1 / alpha, (n, S) also of mu (n, 1)."""
        noise: NDArray[np.float64] = 1.0 / self.alpha.numpy() + np.zeros_like(mu)
        return noise

    def cdf(
        self, x: NDArray[np.float64], mu: NDArray[np.float64], scale: RatingScale
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(F(x - d/2), F(x + d/2)) of the rounded rating, the two ends of the scale left open."""
        root = np.sqrt(self.alpha.numpy())
        half = 0.5 * scale.step
        lower = np.where(x <= scale.low + half / 2, 0.0, special.ndtr((x - half - mu) * root))
        upper = np.where(x >= scale.high - half / 2, 1.0, special.ndtr((x + half - mu) * root))
        return lower, upper


def mean_square(blocks: Sequence[BlockStatistics]) -> float:
    """E[theta^2] of the factor that a training rating meets."""
    return sum(b.square for b in blocks) / sum(b.ratings for b in blocks)


def mean_slope(blocks: Sequence[BlockStatistics]) -> float:
    """E[(d theta / d position)^2]."""
    return sum(b.square_slope for b in blocks) / sum(b.rows for b in blocks)
