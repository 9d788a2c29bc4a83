"""Users and items dealt into balanced groups."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def deal(counts: NDArray[np.int64], groups: int) -> NDArray[np.int32]:
    """The group of each of n rows, (n,): sizes within 1 of each other, rating totals close.

    Rows are dealt in order of their counts, forth and back like the players of two teams.
    """
    order = np.argsort(-counts, kind="stable")
    turn = np.arange(len(counts)) % (2 * groups)
    group = np.empty(len(counts), np.int32)
    group[order] = np.minimum(turn, 2 * groups - 1 - turn)
    return group


def default_blocks(ratings: int, users: int, items: int) -> int:
    """Blocks a side that suit a number of training ratings; never more than users or items."""
    wanted = 1 if ratings < 20_000 else 2 if ratings < 300_000 else 4 if ratings < 20_000_000 else 8
    return min(wanted, users, items)
