"""Block gradients against autograd of the dense formula."""

from __future__ import annotations

from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnmf.blocks import RatingBlock
from bnmf.gradients import likelihood_gradients, rates
from bnmf.models import PoissonNMF
from bnmf.random import Key, Role, generator
from tests.bnmf.test_blocks import random_block

MODEL = PoissonNMF(4, 3.0, 1.0, 1.0)
SCORE = partial(MODEL.score, warm=True)


def by_autograd(
    dense: np.ndarray, w: torch.Tensor, h: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    w, h = (factor.double().clone().requires_grad_() for factor in (w, h))
    x = torch.from_numpy(dense)
    potential = -(MODEL.log_prob(x, w @ h.T, None) * (x > 0)).sum()
    return torch.autograd.grad(potential, (w, h))


@pytest.mark.parametrize("products", [True, False], ids=["products", "gathers"])
@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 9), st.integers(1, 6), st.floats(0, 1)
)
def test_gradients_are_autograds(
    products: bool, seed: int, rows: int, cols: int, k: int, share: float
) -> None:
    if products and not torch.backends.mkl.is_available():
        pytest.skip("this build of torch has no MKL")
    with mock.patch("bnmf.gradients.SPARSE_PRODUCTS", products):
        check_gradients(seed, rows, cols, k, share)


def check_gradients(seed: int, rows: int, cols: int, k: int, share: float) -> None:
    block, dense = random_block(seed, rows, cols, share)  # empty rows, columns, blocks among them
    torch.manual_seed(seed)
    w, h = torch.rand(rows, k) + 0.1, torch.rand(cols, k) + 0.1
    expected = by_autograd(dense, w, h)
    for kind, rtol, atol in ((torch.float32, 2e-5, 2e-4), (torch.float64, 1e-10, 1e-10)):
        w, h = w.to(kind), h.to(kind)
        for got, want in zip(likelihood_gradients(SCORE, block, w, h, 2.5), expected, strict=True):
            assert got.dtype == kind
            torch.testing.assert_close(got.double(), 2.5 * want, rtol=rtol, atol=atol)
        mu = rates(block.by_row, w, h).numpy()
        np.testing.assert_allclose(mu, (w @ h.T).numpy()[dense > 0], rtol=rtol / 2)


def test_scaled_minibatches_are_unbiased() -> None:
    """The mean over many minibatches, each entry within 5 Monte Carlo standard errors."""
    block, _ = random_block(1, 6, 5, 0.7)
    w, h = torch.rand(6, 4) + 0.2, torch.rand(5, 4) + 0.2
    full = torch.cat(likelihood_gradients(SCORE, block, w, h, 1.0))
    size, draws = 5, 3000
    total, square = torch.zeros_like(full), torch.zeros_like(full)
    for k in range(draws):
        batch = block.sample(size, generator(Key(2, sweep=k), Role.MINIBATCH))
        part = torch.cat(likelihood_gradients(SCORE, batch, w, h, len(block) / size))
        total += part
        square += part**2
    mean = total / draws
    error = ((square / draws - mean**2) / draws).sqrt()
    assert ((mean - full).abs() <= 5 * error + 1e-4).all()


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_the_blocks_of_a_grid_add_up_to_the_whole(blocks: int) -> None:
    _, dense = random_block(4, 6, 6, 0.6)
    w, h = torch.rand(6, 4) + 0.1, torch.rand(6, 4) + 0.1
    size = 6 // blocks
    grad_w, grad_h = torch.zeros(6, 4), torch.zeros(6, 4)
    for b in range(blocks):
        for c in range(blocks):
            rows, cols = slice(b * size, (b + 1) * size), slice(c * size, (c + 1) * size)
            i, j = np.nonzero(dense[rows, cols])
            block = RatingBlock.from_arrays(i, j, dense[rows, cols][i, j], (size, size))
            part = likelihood_gradients(SCORE, block, w[rows], h[cols], 1.0)
            grad_w[rows] += part[0]
            grad_h[cols] += part[1]
    for got, want in zip((grad_w, grad_h), by_autograd(dense, w, h), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)
