"""Point errors, and the biases-only baseline against its normal equations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnmf.diagnostics import Ratings, accuracy, fit_biases


def ratings_of(seed: int, users: int, items: int, share: float) -> Ratings:
    """A random table; at least one rating."""
    rng = np.random.default_rng(seed)
    u, i = np.nonzero(rng.random((users, items)) < share)
    if not len(u):
        u, i = np.array([0]), np.array([0])
    return u, i, (rng.integers(1, 11, len(u)) / 2).astype(np.float32)


def ridge(ratings: Ratings, shape: tuple[int, int]) -> tuple[float, np.ndarray, np.ndarray]:
    """min sum (x - mean - b_u - b_i)^2 + 15 |b_user|^2 + 10 |b_item|^2, by its linear system."""
    users, items, x = ratings
    n = len(x)
    design = np.zeros((n, sum(shape)))
    design[np.arange(n), users] = 1.0
    design[np.arange(n), shape[0] + items] = 1.0
    penalty = np.diag([15.0] * shape[0] + [10.0] * shape[1])
    mean = float(x.astype(np.float64).mean())
    both = np.linalg.solve(design.T @ design + penalty, design.T @ (x.astype(np.float64) - mean))
    return mean, both[: shape[0]], both[shape[0] :]


@settings(deadline=None, derandomize=False, max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    users=st.integers(1, 9),
    items=st.integers(1, 9),
    share=st.floats(0.0, 1.0),
    chunks=st.integers(1, 4),
)
def test_biases_are_the_ridge_solution(
    seed: int, users: int, items: int, share: float, chunks: int
) -> None:
    ratings, shape = ratings_of(seed, users, items, share), (users, items)
    parts = [
        tuple(column[at::chunks] for column in ratings)
        for at in range(chunks)
        if len(ratings[0][at::chunks])
    ]
    biases = fit_biases(lambda: iter(parts), shape, rounds=60)
    mean, user, item = ridge(ratings, shape)
    assert biases.mean == pytest.approx(mean, rel=1e-12)
    np.testing.assert_allclose(biases.user, user, atol=1e-8)
    np.testing.assert_allclose(biases.item, item, atol=1e-8)
    np.testing.assert_allclose(
        biases.predict(ratings[0], ratings[1]), mean + user[ratings[0]] + item[ratings[1]]
    )


def test_ten_rounds_are_enough_for_a_table_with_many_ratings() -> None:
    ratings = ratings_of(1, 60, 40, 0.4)
    biases = fit_biases(lambda: iter([ratings]), (60, 40))
    _, user, item = ridge(ratings, (60, 40))
    np.testing.assert_allclose(biases.user, user, atol=1e-3)
    np.testing.assert_allclose(biases.item, item, atol=1e-3)


def test_users_and_items_without_ratings_have_no_bias() -> None:
    ratings = np.array([1]), np.array([2]), np.array([4.0])
    biases = fit_biases(lambda: iter([ratings]), (3, 4))
    assert biases.mean == 4.0
    assert not biases.user.any() and not biases.item.any()


@settings(deadline=None, derandomize=False)
@given(st.lists(st.tuples(st.floats(0.0, 9.0), st.floats(0.0, 9.0)), min_size=1, max_size=30))
def test_accuracy_is_its_definition(pairs: list[tuple[float, float]]) -> None:
    x, prediction = np.array(pairs).T
    found = accuracy(x, prediction)
    assert found.rmse**2 == pytest.approx(sum((a - b) ** 2 for a, b in pairs) / len(pairs))
    assert found.mae == pytest.approx(sum(abs(a - b) for a, b in pairs) / len(pairs))


def test_accuracy_sums_in_double_precision() -> None:
    x = np.full(10, 16_777_216.0, np.float32)
    assert accuracy(x, np.full(10, 16_777_217.0)).rmse == 1.0
