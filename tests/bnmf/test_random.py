"""Numbers depend on what they are for and on nothing else."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnmf.random import Key, Role, generator

_small = st.integers(0, 2**31 - 1)
keys = st.builds(
    Key, st.integers(-(2**63), 2**63 - 1), _small, _small, st.integers(0, 99), st.integers(0, 99)
)
uses = st.tuples(keys, st.sampled_from(Role), st.integers(0, 2**31 - 1))


def numbers(use: tuple[Key, Role, int]) -> list[float]:
    key, role, step = use
    return torch.rand(4, generator=generator(key, role, step), dtype=torch.float64).tolist()


@settings(deadline=None, derandomize=False)
@given(use=uses)
def test_same_use_same_numbers(use: tuple[Key, Role, int]) -> None:
    first = numbers(use)
    torch.rand(3)
    assert numbers(use) == first


@settings(deadline=None, derandomize=False)
@given(use=uses, at=st.integers(0, 6), by=st.integers(1, 4))
def test_any_other_field_other_numbers(use: tuple[Key, Role, int], at: int, by: int) -> None:
    key, role, step = use
    fields = [*key, role, step]
    fields[at] = (fields[at] + by) % 5 if at == 5 else fields[at] + (-by if at == 0 else by)
    if at == 0 and fields[0] < -(2**63):
        fields[0] += 2**62
    other = (Key(*fields[:5]), Role(fields[5]), fields[6])
    assert numbers(other) != numbers(use)


def test_fields_do_not_run_into_each_other() -> None:
    streams = {
        tuple(numbers((Key(*fields), role, step)))
        for fields in [(0, 0, 0, 0, 1), (0, 0, 0, 1, 0), (0, 0, 1, 0, 0), (0, 1, 0, 0, 0)]
        for role in Role
        for step in range(3)
    }
    assert len(streams) == 4 * len(Role) * 3


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    numbers((Key(1), Role.START, 0))
    assert torch.equal(torch.get_rng_state(), before)
