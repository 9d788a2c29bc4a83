"""Running moments against numpy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnmf.predictive import RunningMoments
from tests.oracles import numpy_noise

draws = st.lists(
    st.tuples(st.floats(1e-3, 10.0), st.lists(st.floats(-50.0, 50.0), min_size=3, max_size=3)),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, derandomize=False)
@given(draws=draws)
def test_running_moments_are_numpys(draws: list[tuple[float, list[float]]]) -> None:
    moments = RunningMoments(3)
    for weight, values in draws:
        moments.update(torch.tensor(values, dtype=torch.float64), weight)
    weights, values = np.array([w for w, _ in draws]), np.array([v for _, v in draws])
    mean = np.average(values, axis=0, weights=weights)
    variance = np.average((values - mean) ** 2, axis=0, weights=weights)
    assert moments.weight == pytest.approx(weights.sum(), rel=1e-12)
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moments.variance, variance, rtol=1e-9, atol=1e-9)


def test_no_draws_no_spread() -> None:
    moments = RunningMoments(2)
    assert moments.weight == 0.0 and moments.variance.tolist() == [0.0, 0.0]
    moments.update(torch.tensor([1.5, 2.5]), 0.25)
    assert moments.mean.tolist() == [1.5, 2.5] and moments.variance.tolist() == [0.0, 0.0]


def test_a_small_spread_about_a_large_mean_survives() -> None:
    values = 1e6 + numpy_noise(1).normal(0.0, 1e-3, (500, 1))
    moments = RunningMoments(1)
    for row in values:
        moments.update(torch.from_numpy(row), 1.0)
    np.testing.assert_allclose(moments.variance, values.var(axis=0), rtol=1e-4)


@settings(deadline=None, derandomize=False)
@given(draws=draws, cut=st.integers(0, 12))
def test_going_on_from_saved_tensors_is_exact(
    draws: list[tuple[float, list[float]]], cut: int
) -> None:
    whole, part = RunningMoments(3), RunningMoments(3)
    for at, (weight, values) in enumerate(draws):
        if at == cut:
            saved = {name: tensor.clone() for name, tensor in part.tensors().items()}
            part = RunningMoments.from_tensors(saved)
        for moments in (whole, part):
            moments.update(torch.tensor(values, dtype=torch.float32), weight)
    assert part.weight == whole.weight
    assert torch.equal(part.mean, whole.mean) and torch.equal(part.variance, whole.variance)
    assert all(tensor.dtype == torch.float64 for tensor in part.tensors().values())


@settings(deadline=None, derandomize=False)
@given(draws=draws, cuts=st.lists(st.integers(0, 12), min_size=1, max_size=3).map(sorted))
def test_pooled_moments_are_numpys_over_all_draws(
    draws: list[tuple[float, list[float]]], cuts: list[int]
) -> None:
    """Some parts have taken in nothing."""
    parts = []
    for a, b in pairwise([0, *cuts, len(draws)]):
        part = RunningMoments(3)
        for weight, values in draws[a:b]:
            part.update(torch.tensor(values, dtype=torch.float64), weight)
        parts.append(part)
    before = [part.mean.clone() for part in parts]
    pooled = RunningMoments.pooled(parts)
    weights, values = np.array([w for w, _ in draws]), np.array([v for _, v in draws])
    mean = np.average(values, axis=0, weights=weights)
    variance = np.average((values - mean) ** 2, axis=0, weights=weights)
    assert pooled.weight == pytest.approx(weights.sum(), rel=1e-12)
    np.testing.assert_allclose(pooled.mean, mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(pooled.variance, variance, rtol=1e-9, atol=1e-9)
    assert all(torch.equal(part.mean, old) for part, old in zip(parts, before, strict=True))


def test_one_part_pooled_is_itself_bit_for_bit() -> None:
    part = RunningMoments(3)
    for values in numpy_noise(7).normal(size=(9, 3)):
        part.update(torch.from_numpy(values), 0.3)
    pooled = RunningMoments.pooled([part])
    assert pooled.weight == part.weight
    assert torch.equal(pooled.mean, part.mean) and torch.equal(pooled.variance, part.variance)
