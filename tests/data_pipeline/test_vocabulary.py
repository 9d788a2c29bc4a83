"""Raw ids: cleaned, ordered, found again whatever their type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data_pipeline.vocabulary import Vocabulary


def vocabulary(ids: pa.Array) -> Vocabulary:
    n = len(ids)
    return Vocabulary(ids, np.arange(n), np.array([0, n // 2, n]))


NUMBERS = vocabulary(pa.array([7, -3, 12, 10**15, 2**63 - 1]))
WORDS = vocabulary(pa.array(["b", "12", "ü", "-3"]))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ([12, 7, 8], [2, 0, -1]),
        (["12", " 7 ", "x", "7.0", "007", ""], [2, 0, -1, -1, -1, -1]),
        ([12.0, 12.5, float("nan")], [2, -1, -1]),
        ([None, 12], [-1, 2]),
        ([], []),
        (np.array([10**15, 12], np.int64), [3, 2]),
        (np.array([12, 7], np.int8), [2, 0]),
        (pa.chunked_array([["12"], ["-3"]]), [2, 1]),
        (pa.array(["12", "7", "12"]).dictionary_encode(), [2, 0, 2]),
        ([12, "12", "y"], [2, 2, -1]),
        (["9" * 40, "9" * 19, str(2**63), str(-(2**63) - 1)], [-1, -1, -1, -1]),
        ([str(2**63 - 1)], [4]),
    ],
)
def test_numbers(raw: object, expected: list[int]) -> None:
    assert NUMBERS.lookup(raw).tolist() == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [([12, -3, 5], [1, 3, -1]), (["ü", " b", "B"], [2, 0, -1]), (np.array(["12", "ü"]), [1, 2])],
)
def test_words(raw: object, expected: list[int]) -> None:
    assert WORDS.lookup(raw).tolist() == expected


def test_round_trip(tmp_path: Path) -> None:
    for before in (NUMBERS, WORDS):
        before.write(tmp_path / "v.parquet")
        after = Vocabulary.read(tmp_path / "v.parquet")
        assert after.ids.equals(before.ids) and len(after) == len(before)
        np.testing.assert_array_equal(after.counts, before.counts)
        np.testing.assert_array_equal(after.offsets, before.offsets)
