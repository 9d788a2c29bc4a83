"""What it says that a rating is there, whatever it is (Koren 2008, SVD++; both ways round).

The prior of user i's row is centred at n_i^-1/2 sum of y_j over the items j that i rated, and
that of an item's row likewise at the weights of its raters. Given the rows, the weights y are a
linear regression with Normal priors (as Macau's side information: Simm et al. 2015); they are
sampled as everything else is, with whole gradients.

The weights of an item's raters' rows travel with the item's block, so a sweep that visits every
block once can sum over all ratings: even sweeps sum centres, odd sweeps gradients, and at a
block's last visit of the sweep the sum is whole. Weights move in odd sweeps, centres follow in
the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from bnmf.blocks import RatingBlock
from bnmf.gradients import row_sums
from bnmf.random import Noise
from bnmf.samplers import Sampler, State


class Implicit(NamedTuple):
    """Beside the n rows of a block; every tensor is owned by it."""

    centre: Tensor  # (n, columns): of these rows' priors, beside the model's mean
    weights: State  # (n, columns): of these rows, in the centres of the other side's rows
    total: Tensor  # (n, columns): summed over this sweep's visits so far

    @staticmethod
    def start(position: Tensor, sampler: Sampler, temperature: float, noise: Noise) -> Implicit:
        """All weights and centres 0, for rows at ``position`` (n, columns)."""
        weights = sampler.init(torch.zeros_like(position), temperature, noise)
        return Implicit(torch.zeros_like(position), weights, torch.zeros_like(position))

    def tensors(self) -> dict[str, Tensor]:
        """Named, for a checkpoint."""
        weights = {f"weights.{name}": x for name, x in self.weights.tensors().items()}
        return {"centre": self.centre, "total": self.total, **weights}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> Implicit:
        """The inverse of `tensors`."""
        weights = {
            name.removeprefix("weights."): x
            for name, x in tensors.items()
            if name.startswith("weights.")
        }
        return Implicit(tensors["centre"], State(**weights), tensors["total"])


def add_centres(row: Implicit, col: Implicit, ratings: RatingBlock) -> None:
    """A visit of an even sweep: each row's sum over the weights it meets."""
    row.total.add_(row_sums(ratings.by_row, col.weights.position))
    col.total.add_(row_sums(ratings.by_col, row.weights.position))


def add_gradients(
    row: Implicit,
    col: Implicit,
    ratings: RatingBlock,
    pulls: tuple[Tensor, Tensor],
    counts: tuple[Tensor, Tensor],
) -> None:
    """A visit of an odd sweep: each weight's sum over the rows whose centres it is in.

    ``pulls`` are dU/d(-centre) of the rows and of the columns, (n, columns) each, and ``counts``
    their training ratings, (n, 1).
    """
    of_rows, of_cols = (
        pull * count.clamp_min(1.0).rsqrt() for pull, count in zip(pulls, counts, strict=True)
    )
    row.total.add_(row_sums(ratings.by_row, of_cols))
    col.total.add_(row_sums(ratings.by_col, of_rows))


def centred(block: Implicit, counts: Tensor) -> Implicit:
    """After the last visit of an even sweep: new centres; ``counts`` (n, 1) training ratings."""
    centre = block.total * counts.clamp_min(1.0).rsqrt()
    return block._replace(centre=centre, total=block.total.zero_())


def moved(
    block: Implicit,
    sampler: Sampler,
    precision: Tensor,
    rows_precision: Tensor,
    counts: Tensor,
    step_size: float,
    temperature: float,
    noise: Noise,
) -> Implicit:
    """After the last visit of an odd sweep: weights after one step.

    ``precision`` (columns,) is that of the weights' prior, ``rows_precision`` of the rows whose
    centres they make up. X^T X of the normalised 0-1 matrix X has row sums n_j, its largest
    eigenvalue after scaling by them is 1: that is the curvature the step is scaled by.
    """
    weights = block.weights
    scale = torch.addcmul(precision, counts, rows_precision).rsqrt()
    gradient = (weights.position * precision).sub_(block.total)
    weights = sampler.step(weights, gradient, step_size, scale, temperature, noise)
    # where the sampler wants the next gradient is where the centres must be
    weights = sampler.before_gradient(weights, step_size, scale, temperature)
    return block._replace(weights=weights, total=block.total.zero_())
