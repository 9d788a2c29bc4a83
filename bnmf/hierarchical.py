"""Factors whose rows share sampled priors: Bayesian matrix factorization as people use it.

What is sampled of a row (n, columns) are K proxies phi with factors f(phi), a bias where the
model has them, and a log precision: the noise of a rating is that of its user and its item.
Each column is N(mean + centre_i, 1 / precision), proxies being the variables that have the prior
(so f needs no Jacobian). Means and precisions are drawn from their conditionals. The centre of a
row is what *that* it rated says, apart from how (see `bnmf.implicit`).

After Salakhutdinov and Mnih 2008 (hyper-priors), Lakshminarayanan, Bouchard and Archambeau 2011
(noise of rows and columns), Koren 2008 (SVD++).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnmf.likelihoods import Likelihood
from bnmf.models import BlockStatistics, Curvature, Side
from bnmf.random import Noise
from bnmf.transforms import REAL, Scaled, Support, Transform

# Of the precisions: Gamma(shape, rate) in the columns' own units.
SHAPE, RATE = 1.0, 1.0
# What the first precision of parts counts for, in their number: few ratings a row, and they would
# become constants, from which no step leads back.
ALIVE = 0.03
# The least variance of a rating, in squared units.
LEAST = 1e-3
# What the prior of a mean counts for, in rows.
FLAT = 1e-2


@dataclass(frozen=True)
class HierarchicalMF:
    """x of user i and item j has location mu_ij = b_i + c_j + f(phi_i).f(phi_j) and precision
    e^(u_i + v_j), where the likelihood says what these mean.

    Sampled of a user are (phi, b, u), of an item (phi, c, v); the designs are (f, b, 1, u, 0) and
    (f, 1, c, 0, v), whose inner product is mu. Without biases b, c and the ones are left out. The
    means of c and v are 0, as those of b and u say it all.

    Until a chain is warm, all ratings weigh alike and u and v learn from the residuals only:
    weighed by precision from the start, ratings that nothing fits yet would lose their say, and
    parts would die (experiments/LOG.md).
    """

    rank: int
    likelihood: Likelihood
    link: Transform  # f
    biases: bool
    implicit: bool
    mean: Tensor  # (2, columns) float64, or (S, 2, columns): of W's columns and of H's
    precision: Tensor  # the same
    weight_precision: Tensor  # the same: of the implicit weights that make up their centres
    floor: float  # added to squared residuals: without any noise, precisions would be infinite
    unit: float = 1.0  # about the ratings' standard deviation
    support: Support = REAL

    @staticmethod
    def first(
        rank: int,
        likelihood: Likelihood,
        link: Transform,
        *,
        biases: bool,
        implicit: bool,
        mean: float,
        unit: float,
    ) -> HierarchicalMF:
        """Before anything is known of ratings around ``mean`` that spread by about ``unit``.

        Real w.h spread by 0.4 units and biases by 0.5. Non-negative w.h make up the mean, or two
        units of it beside biases; their proxies spread by 1.
        """
        if link.support != REAL:  # parts make up rates: in their root's units, 1 for five stars
            link = Scaled(link, unit**0.5)
        columns = rank + biases + 1
        means = torch.zeros(2, columns, dtype=torch.float64)
        precision = torch.full_like(means, 4.0)
        if link.support == REAL:
            precision[:, :rank] = 2.5 * rank**0.5 / unit
            rest = mean
        else:
            made_up = 2.0 * unit if biases else mean
            means[:, :rank] = _location(link, (made_up / rank) ** 0.5)
            precision[:, :rank] = 1.0
            rest = mean - made_up
        if biases:
            means[0, rank] = rest
            precision[:, rank] = 4.0 / unit**2
        first = likelihood.precision(mean, unit**2)
        means[0, -1] = math.log(first)  # that of all ratings until the chain is warm
        floor = LEAST / first
        weight_precision = torch.full_like(means, 50.0)
        return HierarchicalMF(
            rank,
            likelihood,
            link,
            biases,
            implicit,
            means,
            precision,
            weight_precision,
            floor,
            unit,
        )

    @property
    def columns(self) -> int:
        """K, a bias and a log precision."""
        return self.mean.shape[-1]

    @property
    def levels(self) -> bool:
        """Designs end in log precisions."""
        return True

    @property
    def warm(self) -> int:
        """Real factors leave their start soon; parts take longer to tell each other apart."""
        return 12 if self._real else 60

    @property
    def _real(self) -> bool:
        return self.link.support == REAL

    def start(self, like: Tensor, side: Side, mean: float, noise: Noise) -> Tensor:
        """Factors from their prior, the rest at its mean."""
        theta = noise.normal(like.new_empty(len(like), self.columns))
        theta[:, self.rank :] = 0.0
        theta *= self.precision[side].rsqrt().to(theta.dtype)
        return theta.add_(self.mean[side].to(theta.dtype))

    def design(self, theta: Tensor, side: Side) -> Tensor:
        """(f, b, 1, u, 0) or (f, 1, c, 0, v), (n, width)."""
        k = self.rank
        return self._arranged(self.link.forward(theta[:, :k]), theta[:, k:-1], theta[:, -1:], side)

    def _arranged(self, factors: Tensor, bias: Tensor, level: Tensor, side: Side) -> Tensor:
        one, none = torch.ones_like(bias), torch.zeros_like(level)
        if side == Side.W:
            return torch.cat([factors, bias, one, level, none], dim=-1)
        return torch.cat([factors, one, bias, none, level], dim=-1)

    def gradient(
        self, of_design: Tensor, theta: Tensor, side: Side, centre: Tensor | None
    ) -> Tensor:
        """The likelihood's through f; the prior's is precision (theta - mean - centre)."""
        k, own = self.rank, int(side)
        slope, _ = self.link.slopes(theta[:, :k])
        bias = of_design[:, k + own : k + own + 1] if self.biases else of_design[:, :0]
        level = of_design[:, of_design.shape[1] - 2 + own, None]
        likelihood = torch.cat([of_design[:, :k] * slope, bias, level], dim=1)
        return likelihood.add_(self.pull(theta, side, centre))

    def pull(self, theta: Tensor, side: Side, centre: Tensor | None) -> Tensor:
        """precision (theta - mean - centre), (n, columns)."""
        away = theta - self.mean[side].to(theta.dtype)
        if centre is not None:
            away -= centre
        return away.mul_(self.precision[side].to(theta.dtype))

    def score(
        self, x: Tensor, mu: Tensor, level: Tensor | None, warm: bool
    ) -> tuple[Tensor, Tensor | None]:
        """precision d(mu), and 1/2 - precision square / 2: of mu and of the log precision."""
        assert level is not None
        precision = level.exp_()
        slope, square = self.likelihood.residuals(x, mu)
        square += self.floor
        weight = precision if warm else math.exp(float(self.mean[0, -1]))
        of_level = (precision * square).mul_(-0.5).add_(0.5)
        return slope.mul_(weight), of_level

    def present(self, measured: Curvature, side: Side) -> Curvature:
        """The columns' precisions beside what ratings of the present mean level say."""
        assert isinstance(measured.per_rating, tuple)
        *rest, of_level = measured.per_rating
        level = math.exp(float(self.mean[0, -1]))
        per_rating = (*(level * x for x in rest), of_level)
        return Curvature(tuple(self.precision[side].tolist()), per_rating)

    def statistics(
        self, theta: Tensor, counts: Tensor, centre: Tensor | None, weights: Tensor | None
    ) -> BlockStatistics:
        """Factors' squares as ratings meet them; the columns' sums around their centres."""
        proxies = theta[:, : self.rank]
        met = self.link.forward(proxies).square().mul_(counts).sum(0, dtype=torch.float64)
        slope, _ = self.link.slopes(proxies)
        away = theta if centre is None else theta - centre
        of_weights = theta[:0] if weights is None else weights
        return BlockStatistics(
            len(theta),
            float(counts.sum(dtype=torch.float64)),
            met,
            slope.square().sum(0, dtype=torch.float64),
            away.sum(0, dtype=torch.float64),
            away.square().sum(0, dtype=torch.float64),
            of_weights.square().sum(0, dtype=torch.float64),
            float((counts / theta[:, -1:].exp()).sum(dtype=torch.float64)),
        )

    def curvatures(
        self, w: Sequence[BlockStatistics], h: Sequence[BlockStatistics], mean: float
    ) -> tuple[Curvature, Curvature]:
        """A rating's: information E[h_k^2] E[f'^2] of a proxy, information of a bias, 1/2.

        Information is measured in that of the mean level.
        """
        ratings = sum(b.ratings for b in w)
        dispersion = math.prod(sum(b.dispersion for b in side) / ratings for side in (w, h))
        typical = 1.0 / (dispersion * math.exp(float(self.mean[0, -1])))
        information = self.likelihood.information(mean, typical)
        sides = []
        for own, other in ((w, h), (h, w)):
            met = _sum(b.met for b in other) / sum(b.ratings for b in other)
            slope = _sum(b.square_slope for b in own) / sum(b.rows for b in own)
            factors: list[float] = (information * met * slope).tolist()
            rest = [information] * self.biases + [0.5]
            sides.append(Curvature(0.0, (*factors, *rest)))
        return sides[0], sides[1]

    def resample(
        self,
        w: Sequence[BlockStatistics],
        h: Sequence[BlockStatistics],
        noise: np.random.Generator,
    ) -> HierarchicalMF:
        """Means and precisions of the columns from their Normal-Gamma conditionals."""
        mean, precision = torch.zeros_like(self.mean), torch.empty_like(self.precision)
        weights = torch.empty_like(self.precision)
        rate = self._rate()
        for side, blocks, other in ((Side.W, w, h), (Side.H, h, w)):
            rows = sum(block.rows for block in blocks)
            totals, squares = _sum(b.totals for b in blocks), _sum(b.squares for b in blocks)
            free = np.full(self.columns, True)
            free[self.rank :] = side == Side.W
            count = FLAT + rows
            centre = np.where(free, totals / count, 0.0)
            spread = np.maximum(squares - count * centre**2, 0.0)
            drawn = noise.gamma(SHAPE + 0.5 * rows, 1.0 / (rate + 0.5 * spread))
            if not self._real:
                k = self.rank
                prior, values = ALIVE * k * rows, k * rows
                shared = noise.gamma(
                    SHAPE + prior + 0.5 * values, 1.0 / (RATE + prior + 0.5 * spread[:k].sum())
                )
                drawn[:k] = shared
            around = noise.standard_normal(self.columns) / np.sqrt(count * drawn)
            precision[side] = torch.from_numpy(drawn)
            mean[side] = torch.from_numpy(np.where(free, centre + around, 0.0))
            # the weights that make up these rows' centres lie with the other side's rows
            others = sum(block.rows for block in other)
            square = _sum(block.weight_squares for block in other)
            drawn = noise.gamma(SHAPE + 0.5 * others, 1.0 / (rate + 0.5 * square))
            unmoved = self.weight_precision[side].numpy()
            weights[side] = torch.from_numpy(np.where(square > 0.0, drawn, unmoved))
        return replace(self, mean=mean, precision=precision, weight_precision=weights)

    def _rate(self) -> NDArray[np.float64]:
        """A bias is in units of ratings, a real factor in their root; the rest has none."""
        rate = np.full(self.columns, RATE)
        if self._real:
            rate[: self.rank] *= self.unit
        rate[self.rank : -1] *= self.unit**2
        return rate

    def state(self) -> dict[str, Tensor]:
        """mean, precision, and weight_precision with implicit weights."""
        state = {"mean": self.mean, "precision": self.precision}
        return state | {"weight_precision": self.weight_precision} if self.implicit else state

    def with_state(self, state: Mapping[str, Tensor]) -> HierarchicalMF:
        """With the draw's own."""
        weights = state.get("weight_precision", self.weight_precision)
        return replace(
            self, mean=state["mean"], precision=state["precision"], weight_precision=weights
        )

    def prior_moments(self, side: Side) -> tuple[Tensor, Tensor]:
        """Of the design's columns under their Normal priors, (S, width); the ones are known.

        A log precision's are those of the number that gives the mean variance.
        """
        k = self.rank
        mean, precision = self.mean[..., side, :], self.precision[..., side, :]
        nodes, share = _nodes()
        factors = self.link.forward(mean[..., :k, None] + nodes / precision[..., :k, None].sqrt())
        level = mean[..., -1:] - 0.5 / precision[..., -1:]
        bias = mean[..., k:-1]
        first = self._arranged(factors @ share, bias, level, side)
        second = first.square()
        second[..., :k] = factors.square() @ share
        at = k + int(side)
        if self.biases:
            second[..., at] += 1.0 / precision[..., k]
        return first, second

    def log_prob(self, x: Tensor, mu: Tensor, level: Tensor | None) -> Tensor:
        """log p(x | mu, level) per rating; (n,)."""
        assert level is not None
        return self.likelihood.log_prob(x, mu, level.exp())

    def variance(
        self, mu: NDArray[np.float64], level: NDArray[np.float64] | None
    ) -> NDArray[np.float64]:
        """Var[x | mu, level] in squared rating units, (n, S)."""
        assert level is not None
        return self.likelihood.variance(mu, np.exp(level))


def _nodes() -> tuple[Tensor, Tensor]:
    """Of a standard normal: where to look, and what it counts for."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    return torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())


def _location(link: Transform, mean: float) -> Tensor:
    """m, (), with E[f(phi)] = mean for phi ~ N(m, 1)."""
    nodes, share = _nodes()
    goal = torch.tensor(mean, dtype=torch.float64)
    m = link.inverse(goal)
    for _ in range(50):
        m = link.inverse(goal * link.forward(m) / (link.forward(m + nodes) @ share))
    return m


def _sum(tensors: Iterable[Tensor]) -> NDArray[np.float64]:
    total: NDArray[np.float64] = sum(tensors, torch.zeros((), dtype=torch.float64)).numpy()
    return total
