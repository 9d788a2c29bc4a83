"""The grid of ratings: index, minibatches, strata."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from bnmf.blocks import Pattern, RatingBlock, column_block, strata
from bnmf.random import Key, Role, generator
from tests.oracles import assert_uniform, noise


def random_block(seed: int, rows: int, cols: int, share: float) -> tuple[RatingBlock, np.ndarray]:
    """A block and the same as a dense matrix; ratings are at least 0.5."""
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((rows, cols)) < share, rng.integers(1, 11, (rows, cols)) / 2, 0.0)
    i, j = np.nonzero(dense)
    return RatingBlock.from_arrays(i, j, dense[i, j], (rows, cols)), dense


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 12), st.floats(0, 1))
def test_both_patterns_are_scipys(seed: int, rows: int, cols: int, share: float) -> None:
    block, dense = random_block(seed, rows, cols, share)
    csr, csc = sparse.csr_array(dense), sparse.csc_array(dense)
    assert block.by_row.shape == (rows, cols) and block.by_col.shape == (cols, rows)
    np.testing.assert_array_equal(block.by_row.starts, csr.indptr)
    np.testing.assert_array_equal(block.by_row.index, csr.indices)
    np.testing.assert_array_equal(block.ratings, csr.data)
    np.testing.assert_array_equal(block.by_col.starts, csc.indptr)
    np.testing.assert_array_equal(block.by_col.index, csc.indices)
    np.testing.assert_array_equal(block.ratings[block.order], csc.data)


@pytest.mark.parametrize(
    ("rows", "cols"),
    [([1, 0], [0, 0]), ([0, 0], [1, 0]), ([0, 0], [1, 1]), ([0, 2], [0, 0]), ([0, 1], [0, 3]),
     ([-1, 0], [0, 0]), ([0, 1], [-1, 0])],
)  # fmt: skip
def test_bad_pairs_never_reach_the_kernels(rows: list[int], cols: list[int]) -> None:
    with pytest.raises(ValueError, match="sorted"):
        Pattern.from_arrays(np.array(rows), np.array(cols), (2, 3))


@pytest.mark.parametrize("size", [3, 9])  # by repeated draws, and by a permutation
def test_minibatches_are_uniform_without_replacement(size: int) -> None:
    """How often each of 12 ratings is drawn, within 5 standard errors."""
    block, dense = random_block(3, 4, 3, 1.1)
    n, draws = len(block), 4000
    assert n == 12
    seen = np.zeros((4, 3))
    for k in range(draws):
        batch = block.sample(size, generator(Key(0, sweep=k), Role.MINIBATCH))
        assert len(batch) == size
        rows = np.repeat(np.arange(4), np.diff(batch.by_row.starts))
        np.testing.assert_array_equal(dense[rows, batch.by_row.index], batch.ratings)
        seen[rows, batch.by_row.index] += 1
    p = size / n
    assert np.abs(seen - draws * p).max() < 5 * np.sqrt(draws * p * (1 - p))
    assert block.sample(n, torch.Generator()) is block


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])  # up to 3 by repeated draws
def test_all_subsets_of_a_block_are_equally_likely(size: int) -> None:
    ratings = np.arange(1.0, 7.0)
    block = RatingBlock.from_arrays(np.repeat([0, 1, 3], 2), np.tile([0, 2], 3), ratings, (4, 3))
    stream = noise(70, size)
    subsets = {subset: at for at, subset in enumerate(combinations(ratings.tolist(), size))}
    counts = np.zeros(len(subsets))
    for _ in range(200 * len(subsets)):
        counts[subsets[tuple(block.sample(size, stream).ratings.tolist())]] += 1
    assert_uniform(counts)


@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
def test_a_sweep_visits_every_block_once_in_disjoint_strata(blocks: int) -> None:
    order = strata(blocks, generator(Key(1), Role.STRATA))
    assert sorted(order) == list(range(blocks))
    visited = {(b, column_block(b, s, blocks)) for s in order for b in range(blocks)}
    assert len(visited) == blocks**2
    for s in order:
        assert len({column_block(b, s, blocks) for b in range(blocks)}) == blocks


def test_strata_come_in_every_order() -> None:
    orders = {tuple(strata(3, generator(Key(0, sweep=t), Role.STRATA))) for t in range(100)}
    assert len(orders) == 6  # missing one by chance: 6 * (5/6)^100 = 7e-8
