"""From a rate and its spread to the probability of each rating of the scale: an ordered probit.

People do not round: whole stars are chosen more often than half ones, and 3 may stand for less
than the interval from 2.5 to 3.5. So a rating is the cell in which a normal variable with the
rate's mean and the likelihood's variance falls, and the cells' edges are learned from training
ratings (McCullagh 1980; a cut posterior: factors do not learn from the edges).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from bnmf.likelihoods import RatingScale

Floats = NDArray[np.float64]

MOST = 41  # ratings of a scale whose edges are learned; finer ones are as good as continuous
# Edges' distances are log-normal around the scale's step a priori: finite where nobody rates.
_SPREAD = 3.0
_TINY = 1e-300
_SMALLEST = 1e-9  # of a standard deviation: rates of 0 have none


@dataclass(frozen=True)
class Cells:
    """Of the ratings low, low + step, ..., high; the two outer cells are open."""

    scale: RatingScale
    edges: Floats  # between neighbouring ratings, increasing, in rating units
    sharpness: float = 1.0  # the model's standard deviations over those that ratings show

    @staticmethod
    def rounding(scale: RatingScale) -> Cells:
        """Each rating's cell ends half way to its neighbours."""
        count = round((scale.high - scale.low) / scale.step) if scale.step > 0 else 0
        edges: Floats = scale.low + scale.step * (np.arange(count, dtype=np.float64) + 0.5)
        return Cells(scale, edges)

    def distribution(self, x: Floats, mu: Floats, std: Floats) -> tuple[Floats, Floats]:
        """The distribution function at both edges of the cells of ratings x, (n, S) each.

        Of x (n,), rates mu (n, S) and their standard deviations (n, S).
        """
        bounds = np.concatenate([[-np.inf], self.edges, [np.inf]])
        cell = self._cell(x)[:, None]
        scaled = self.sharpness / np.maximum(std, _SMALLEST)
        lower: Floats = special.ndtr((bounds[cell] - mu) * scaled)
        upper: Floats = special.ndtr((bounds[cell + 1] - mu) * scaled)
        return lower, upper

    def fitted(self, x: Floats, mu: Floats, std: Floats) -> Cells:
        """Cells of greatest posterior density for ratings x (n,) at rates and spreads (n,) each."""
        if not 1 <= len(self.edges) < MOST or not len(x):
            return self
        cell, step, std = self._cell(x), self.scale.step, np.maximum(std, _SMALLEST)

        def unpacked(packed: Floats) -> tuple[Floats, float]:
            steps = np.concatenate([packed[:1], step * np.exp(packed[1:-1])])
            return np.cumsum(steps), float(np.exp(packed[-1]))

        def loss(packed: Floats) -> tuple[float, Floats]:
            edges, sharpness = unpacked(packed)
            bounds = np.concatenate([[-np.inf], edges, [np.inf]])
            high, low = ((bounds[cell + k] - mu) * sharpness / std for k in (1, 0))
            # mirrored where both are above 0: differences of small numbers keep their digits
            flip = low > 0
            share = np.where(
                flip,
                special.ndtr(-low) - special.ndtr(-high),
                special.ndtr(high) - special.ndtr(low),
            )
            share = np.maximum(share, _TINY)
            at = [np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi) / share for z in (high, low)]
            pull = [p * sharpness / std for p in at]
            of_edges = (
                np.bincount(cell, pull[0], len(bounds))[: len(edges)]
                - np.bincount(cell, pull[1], len(bounds))[1 : len(edges) + 1]
            )
            of_sharpness = sum(
                sign * (np.where(np.isinf(z), 0.0, z) * p).sum()
                for sign, z, p in zip((1, -1), (high, low), at, strict=True)
            )
            # each log distance moves all the edges above it
            above = np.cumsum(of_edges[::-1])[::-1]
            distances = step * np.exp(packed[1:-1])
            gradient = np.concatenate([above[:1], above[1:] * distances, [of_sharpness]])
            value = np.log(share).sum() - 0.5 * (packed[1:-1] ** 2).sum() / _SPREAD**2
            gradient[1:-1] -= packed[1:-1] / _SPREAD**2
            return -value / len(x), -gradient / len(x)

        start = np.zeros(len(self.edges) + 1)
        start[0] = self.edges[0]
        found = optimize.minimize(loss, start, jac=True, method="L-BFGS-B")
        edges, sharpness = unpacked(found.x)
        return Cells(self.scale, edges, sharpness)

    def _cell(self, x: Floats) -> NDArray[np.int64]:
        if not len(self.edges):
            return np.zeros(len(x), np.int64)
        index = np.rint((x - self.scale.low) / self.scale.step)
        return np.clip(index, 0, len(self.edges)).astype(np.int64)
