"""Likelihoods and priors of ratings given mu_ij = sum_k W[i,k] H[j,k].

A model may sample more than factors: what it *samples* of a row (n, columns) becomes the
*design* (n, width) whose inner products are the mu. Hyper-parameters that are sampled too are
fields of the model; a draw's model is `with_state` of what `state` gave.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnmf.likelihoods import Poisson
from bnmf.random import Noise
from bnmf.transforms import POSITIVE, Support


class Side(IntEnum):
    """Whose rows: the users' or the items'."""

    W = 0
    H = 1


class Curvature(NamedTuple):
    """Of the potential in a row's positions: base + per_rating x (its training ratings).

    A number for all columns, or one for each.
    """

    base: float | tuple[float, ...]
    per_rating: float | tuple[float, ...]

    def scales(self, counts: Tensor) -> Tensor:
        """The unit of length 1 / sqrt(curvature) of rows with ``counts`` (n, 1) ratings.

        (n, 1), or (n, columns).
        """
        base, per_rating = (torch.tensor(x, dtype=counts.dtype, device=counts.device) for x in self)
        return (counts * per_rating + base).rsqrt_()


class BlockStatistics(NamedTuple):
    """Float64 sums over one block of W or H; blocks are added up in their order."""

    rows: int
    ratings: float  # sum of the rows' training ratings n_i
    met: Tensor  # (K,) sum_i n_i (factor_ik)^2
    square_slope: Tensor  # (K,), or () of all: sum_i (d factor / d position)^2
    totals: Tensor  # (columns,) sum_i of what is sampled, around its centres
    squares: Tensor  # (columns,) of the squares
    weight_squares: Tensor  # (columns,) of the implicit weights' squares
    dispersion: float = 1.0  # sum_i n_i / (the row's own precision)


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

    @property
    def levels(self) -> bool:
        """Whether designs end in log precisions: (u, 0) of W's, (0, v) of H's."""

    @property
    def implicit(self) -> bool:
        """Whether rows have centres, made up of implicit weights (`bnmf.implicit`)."""

    @property
    def weight_precision(self) -> Tensor:
        """(2, columns), of the implicit weights that centre W's rows and H's."""

    @property
    def warm(self) -> int:
        """Sweeps before hyper-parameters and implicit weights are drawn.

        From their start, precisions run away and take the factors with them.
        """

    def start(self, like: Tensor, side: Side, mean: float, noise: Noise) -> Tensor:
        """First values (n, columns) of n rows, for ratings around ``mean``."""

    def design(self, theta: Tensor, side: Side) -> Tensor:
        """(n, width) of what is sampled, (n, columns)."""

    def gradient(
        self, of_design: Tensor, theta: Tensor, side: Side, centre: Tensor | None
    ) -> Tensor:
        """dU/dtheta (n, columns): the likelihood's in the design (n, width), and the prior's.

        ``centre`` (n, columns), where there is one, is added to the prior's mean.
        """

    def pull(self, theta: Tensor, side: Side, centre: Tensor | None) -> Tensor:
        """The prior's part of `gradient`."""

    def score(
        self, x: Tensor, mu: Tensor, level: Tensor | None, warm: bool
    ) -> tuple[Tensor, Tensor | None]:
        """d log p / d mu and, where there are levels, d log p / d level, per rating; (n,) each.

        ``warm`` is whether the chain has left its start.
        """

    def present(self, measured: Curvature, side: Side) -> Curvature:
        """What `curvatures` measured, under the hyper-parameters as they are.

        These are no part of the state that a step moves, so scales may follow them.
        """

    def statistics(
        self, theta: Tensor, counts: Tensor, centre: Tensor | None, weights: Tensor | None
    ) -> BlockStatistics:
        """Of a block's rows theta, centre and weights (n, columns) each, counts (n, 1)."""

    def curvatures(
        self, w: Sequence[BlockStatistics], h: Sequence[BlockStatistics], mean: float
    ) -> tuple[Curvature, Curvature]:
        """Of W's rows and of H's, for scaling steps."""

    def resample(
        self,
        w: Sequence[BlockStatistics],
        h: Sequence[BlockStatistics],
        noise: np.random.Generator,
    ) -> Self:
        """The model with hyper-parameters drawn given the factors; itself where it has none."""

    def state(self) -> dict[str, Tensor]:
        """The hyper-parameters that are sampled, float64."""

    def with_state(self, state: Mapping[str, Tensor]) -> Self:
        """The model of a draw; or of S draws, with tensors that have S in front."""

    def log_prob(self, x: Tensor, mu: Tensor, level: Tensor | None) -> Tensor:
        """log p(x | mu, level) per rating; (n,)."""

    def variance(
        self, mu: NDArray[np.float64], level: NDArray[np.float64] | None
    ) -> NDArray[np.float64]:
        """Var[x | mu, level] in squared rating units, (n, S) of mu and level (n, S)."""

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

    levels: ClassVar[bool] = False
    implicit: ClassVar[bool] = False
    warm: ClassVar[int] = 0

    @property
    def columns(self) -> int:
        """K."""
        return self.rank

    @property
    def weight_precision(self) -> Tensor:
        """None are there."""
        return torch.empty(2, 0)

    def start(self, like: Tensor, side: Side, mean: float, noise: Noise) -> Tensor:
        """Around sqrt(mean / K), which predicts the mean."""
        spread = noise.normal(like.new_empty(len(like), self.rank), 0.3).exp_()
        return spread.mul_(math.sqrt(mean / self.rank))

    def design(self, theta: Tensor, side: Side) -> Tensor:
        """theta."""
        return theta

    def gradient(
        self, of_design: Tensor, theta: Tensor, side: Side, centre: Tensor | None
    ) -> Tensor:
        """The prior's is its rate."""
        return of_design.add_(self._rates[side])

    def pull(self, theta: Tensor, side: Side, centre: Tensor | None) -> Tensor:
        """The rate."""
        return torch.full_like(theta, self._rates[side])

    @property
    def _rates(self) -> tuple[float, float]:
        return self.prior_rate_w, self.prior_rate_h

    def present(self, measured: Curvature, side: Side) -> Curvature:
        """The same."""
        return measured

    def statistics(
        self, theta: Tensor, counts: Tensor, centre: Tensor | None, weights: Tensor | None
    ) -> BlockStatistics:
        """The factors are what is sampled."""
        square, none = theta.square(), torch.zeros(self.rank, dtype=torch.float64)
        return BlockStatistics(
            len(theta),
            float(counts.sum(dtype=torch.float64)),
            (square * counts).sum(0, dtype=torch.float64),
            torch.tensor(float(len(theta)), dtype=torch.float64),
            theta.sum(0, dtype=torch.float64),
            square.sum(0, dtype=torch.float64),
            none,
        )

    def curvatures(
        self, w: Sequence[BlockStatistics], h: Sequence[BlockStatistics], mean: float
    ) -> tuple[Curvature, Curvature]:
        """s / mean E[h^2] E[f'^2] a rating; 1 for the prior and the Jacobian."""
        per_rate = LIKELIHOOD.information(mean, self.counts_per_unit)
        return (
            Curvature(1.0, per_rate * _mean_square(h) * _mean_slope(w)),
            Curvature(1.0, per_rate * _mean_square(w) * _mean_slope(h)),
        )

    def resample(
        self,
        w: Sequence[BlockStatistics],
        h: Sequence[BlockStatistics],
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
        rate = torch.tensor([self._rates[side]], dtype=torch.float64)
        return 1.0 / rate, 2.0 / rate**2

    def score(
        self, x: Tensor, mu: Tensor, level: Tensor | None, warm: bool
    ) -> tuple[Tensor, Tensor | None]:
        """d log p(x | mu) / d mu = s (x / mu - 1) per rating."""
        return LIKELIHOOD.residuals(x, mu)[0].mul_(self.counts_per_unit), None

    def log_prob(self, x: Tensor, mu: Tensor, level: Tensor | None) -> Tensor:
        """log Poisson(s x | s mu) per rating; (n,)."""
        return LIKELIHOOD.log_prob(x, mu, self.counts_per_unit)

    def variance(
        self, mu: NDArray[np.float64], level: NDArray[np.float64] | None
    ) -> NDArray[np.float64]:
        """mu / s."""
        return LIKELIHOOD.variance(mu, self.counts_per_unit)


LIKELIHOOD = Poisson()


def levels(w: Tensor, h: Tensor) -> Tensor:
    """u + v of designs (..., width) that end in (u, 0) and (0, v)."""
    return w[..., -2] + h[..., -1]


def _mean_square(blocks: Sequence[BlockStatistics]) -> float:
    """E[theta^2] of the factor that a training rating meets."""
    return sum(float(b.met.mean()) for b in blocks) / sum(b.ratings for b in blocks)


def _mean_slope(blocks: Sequence[BlockStatistics]) -> float:
    """E[(d theta / d position)^2]."""
    return sum(float(b.square_slope) for b in blocks) / sum(b.rows for b in blocks)
