"""The G x G grid of ratings: blocks, strata, and the index that makes both gradients row-wise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Pattern:
    """Where the n entries of a (rows, width) sparse matrix lie: CSR without values."""

    starts: Tensor  # (rows + 1,) int32: row i holds the entries starts[i]:starts[i + 1]
    index: Tensor  # (n,) int32: the column of each entry
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, width)."""
        return len(self.starts) - 1, self.width

    @staticmethod
    def from_arrays(
        rows: NDArray[np.integer], cols: NDArray[np.integer], shape: tuple[int, int]
    ) -> Pattern:
        """Index n pairs (rows, cols), each (n,), sorted by (row, col) and distinct.

        Raises:
            ValueError: the pairs are not sorted, or one lies outside ``shape``.
        """
        n_rows, width = shape
        key = rows.astype(np.int64) * width + cols
        if len(key) and (
            np.any(key[1:] <= key[:-1])
            or rows[0] < 0
            or rows[-1] >= n_rows
            or cols.min() < 0
            or cols.max() >= width
        ):
            raise ValueError(f"pairs must be distinct, sorted and inside {shape}")
        starts = np.zeros(n_rows + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=n_rows), out=starts[1:])
        return Pattern(torch.from_numpy(starts), torch.from_numpy(cols.astype(np.int32)), width)


class RatingBlock(NamedTuple):
    """The n ratings of one block in CSR order, with the transposed pattern beside it.

    Indices are local to the block. ``order`` takes values from CSR to CSC order, so that the
    gradient of H is a row-wise product too and has one fixed order of summation.
    """

    by_row: Pattern
    by_col: Pattern
    order: Tensor  # (n,) int32
    ratings: Tensor  # (n,) float32, in CSR order

    def __len__(self) -> int:
        return len(self.ratings)

    @staticmethod
    def from_arrays(
        rows: NDArray[np.integer],
        cols: NDArray[np.integer],
        ratings: NDArray[np.floating],
        shape: tuple[int, int],
    ) -> RatingBlock:
        """Index n ratings at local (rows, cols), each (n,), sorted by (row, col) and distinct.

        Raises:
            ValueError: as `Pattern.from_arrays`.
        """
        by_row = Pattern.from_arrays(rows, cols, shape)
        order = np.argsort(cols, kind="stable")
        return RatingBlock(
            by_row,
            Pattern.from_arrays(cols[order], rows[order], shape[::-1]),
            torch.from_numpy(order.astype(np.int32)),
            torch.from_numpy(ratings.astype(np.float32)),
        )

    def sample(self, size: int, generator: torch.Generator) -> RatingBlock:
        """A uniform minibatch of ``size`` ratings, without replacement; all when size >= n."""
        n = len(self)
        if size >= n:
            return self
        picks = _distinct(n, size, generator)
        rows = torch.bucketize(picks, self.by_row.starts[1:].long(), right=True)
        return RatingBlock.from_arrays(
            rows.numpy(),
            self.by_row.index[picks].numpy(),
            self.ratings[picks].numpy(),
            self.by_row.shape,
        )


def _distinct(n: int, size: int, generator: torch.Generator) -> Tensor:
    """``size`` distinct numbers below n, sorted, all subsets equally likely."""
    if 2 * size > n:
        return torch.randperm(n, generator=generator)[:size].sort().values
    picks = torch.empty(0, dtype=torch.int64)
    while len(picks) < size:
        # Further draws are added in order, so the set grows like draws with repeats thrown away.
        more = torch.randint(n, (size - len(picks),), generator=generator)
        picks = torch.unique(torch.cat([picks, more]))
    return picks


def strata(blocks: int, generator: torch.Generator) -> list[int]:
    """A random order of the G strata; stratum s holds the blocks (b, (b + s) mod G)."""
    return [int(s) for s in torch.randperm(blocks, generator=generator)]


def column_block(row_block: int, stratum: int, blocks: int) -> int:
    """The column block that ``row_block`` meets in ``stratum``."""
    return (row_block + stratum) % blocks
