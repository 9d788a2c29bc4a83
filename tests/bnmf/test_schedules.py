"""Step sizes over time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnmf.schedules import Schedule


def test_constant() -> None:
    schedule = Schedule.parse("constant")
    assert [schedule.factor(t) for t in (0, 1, 10**6)] == [1.0, 1.0, 1.0]


def test_polynomial() -> None:
    schedule = Schedule.parse("polynomial:0.75:20")
    assert schedule == Schedule(0.75, 20.0)
    assert schedule.factor(0) == 1.0
    assert schedule.factor(300) == pytest.approx(16.0**-0.75, rel=1e-14)


def test_polynomial_has_defaults_that_it_would_accept() -> None:
    schedule = Schedule.parse("polynomial")
    assert Schedule.parse(f"polynomial:{schedule.gamma}:{schedule.offset}") == schedule


@settings(deadline=None, derandomize=False)
@given(
    gamma=st.floats(0.5, 1.0, exclude_min=True),
    offset=st.floats(1e-3, 1e6),
    t=st.integers(0, 10**6),
)
def test_steps_shrink_and_stay_positive(gamma: float, offset: float, t: int) -> None:
    schedule = Schedule.parse(f"polynomial:{gamma!r}:{offset!r}")
    assert schedule == Schedule(gamma, offset)
    assert 0.0 < schedule.factor(t + 1) < schedule.factor(t) <= 1.0
    assert schedule.factor(t) == pytest.approx((offset / (offset + t)) ** gamma, rel=1e-9)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cosine",
        "Constant",
        "constant:1",
        "constant:",
        "polynomial:",
        "polynomial:0.6",
        "polynomial:0.6:1:2",
        "polynomial:a:1",
        "polynomial:0.6:b",
        "polynomial:0:1",
        "polynomial:0.5:1",
        "polynomial:1.0001:1",
        "polynomial:nan:1",
        "polynomial:0.6:0",
        "polynomial:0.6:-1",
        "polynomial:0.6:inf",
        "polynomial:0.6:nan",
    ],
)
def test_refusals_quote_the_text(text: str) -> None:
    with pytest.raises(ValueError, match="polynomial") as refusal:
        Schedule.parse(text)
    assert f"'{text}'" in str(refusal.value)


def test_the_conditions_are_checked_by_name() -> None:
    """sum eps^2 at gamma = 1/2 grows like a logarithm, sum eps at gamma > 1 stays finite."""
    with pytest.raises(ValueError, match="eps_t\\^2 < inf fails"):
        Schedule(0.5, 1.0)
    with pytest.raises(ValueError, match="sum eps_t = inf fails"):
        Schedule(1.1, 1.0)
    with pytest.raises(ValueError, match="OFFSET"):
        Schedule(0.7, 0.0)
