"""One block of ratings + W + H -> gradients of the potential's likelihood part.

One sampled dense-dense product and two sparse-dense products. This is the only place where
likelihood gradients are scaled.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from bnmf.blocks import Pattern, RatingBlock

# torch warns once a process that its CSR tensors are in beta; spend that warning here. The three
# products used below are covered by tests.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 0], [], [], (1, 1), check_invariants=False)

# (x, mu, level) -> d log p / d mu and, of models with levels, d log p / d level; each (n,)
Score = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


# torch's sparse products on a CPU are MKL's; without it (Arm), gathers do the same, slower.
SPARSE_PRODUCTS: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]


def rates(pattern: Pattern, w: Tensor, h: Tensor) -> Tensor:
    """mu = (w h^T) at the pattern's n pairs: (n,); w (rows, K), h (width, K)."""
    if not (SPARSE_PRODUCTS or w.is_cuda):
        return (w[_rows(pattern)] * h[pattern.index]).sum(1)
    zeros = torch.zeros(len(pattern.index), dtype=w.dtype, device=w.device)
    product: Tensor = torch.sparse.sampled_addmm(_csr(pattern, zeros), w, h.T, beta=0.0)
    return product.values()


def likelihood_gradients(
    score: Score, block: RatingBlock, w: Tensor, h: Tensor, scale: float, levels: bool = False
) -> tuple[Tensor, Tensor]:
    """(dU/dW (rows, K), dU/dH (cols, K)) for U = -scale * sum of log p(x | mu) over the block.

    ``scale`` makes the block's part an unbiased estimate of the whole: G times the block's
    ratings over those of the minibatch. With ``levels`` the last two columns of w and h are
    (u, 0) and (0, v): a rating's level is u_i + v_j, and mu is none the wiser.
    """
    level = None
    if levels:
        level = w[:, -2][_rows(block.by_row)].add_(h[:, -1][block.by_row.index])
    c, of_level = score(block.ratings, rates(block.by_row, w, h), level)
    c.mul_(-scale)
    grad_w = _product(block.by_row, c, h)
    grad_h = _product(block.by_col, c.index_select(0, block.order), w)
    if of_level is not None:
        of_level.mul_(-scale)
        one = w.new_ones(1, 1)
        grad_w[:, -2:-1] = _product(block.by_row, of_level, one.expand(len(h), 1))
        grad_h[:, -1:] = _product(
            block.by_col, of_level.index_select(0, block.order), one.expand(len(w), 1)
        )
    return grad_w, grad_h


def row_sums(pattern: Pattern, dense: Tensor) -> Tensor:
    """Of each row, the sum of the rows of dense (width, K) that it meets: (rows, K)."""
    return _product(pattern, dense.new_ones(len(pattern.index)), dense)


def _product(pattern: Pattern, values: Tensor, dense: Tensor) -> Tensor:
    """The sparse matrix of n values times dense (width, K): (rows, K)."""
    if SPARSE_PRODUCTS or dense.is_cuda:
        return _csr(pattern, values) @ dense
    product = dense.new_zeros(pattern.shape[0], dense.shape[1])
    return product.index_add_(0, _rows(pattern), values.unsqueeze(1) * dense[pattern.index])


def _rows(pattern: Pattern) -> Tensor:
    """The row of each entry, (n,) int64."""
    lengths = pattern.starts.diff().long()
    return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)


def _csr(pattern: Pattern, values: Tensor) -> Tensor:
    # The pattern was checked when it was made; int32 indices go to MKL without a copy.
    return torch.sparse_csr_tensor(
        pattern.starts, pattern.index, values, pattern.shape, check_invariants=False
    )
