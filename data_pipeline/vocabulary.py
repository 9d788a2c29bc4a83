"""Raw ids of users or items, and the contiguous indices that stand for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_pipeline.errors import InputError

CANONICAL_INTEGER = r"^(0|-?[1-9][0-9]{0,18})$"


@dataclass(frozen=True)
class Vocabulary:
    """n raw ids in index order; those of block b are ``offsets[b]:offsets[b + 1]``."""

    ids: pa.Array  # (n,) int64 or string
    counts: NDArray[np.int64]  # (n,) training ratings
    offsets: NDArray[np.int64]  # (G + 1,)

    def __len__(self) -> int:
        return len(self.ids)

    def lookup(self, raw: Any) -> NDArray[np.int64]:
        """Indices (m,) of m raw ids, -1 where unknown.

        ``raw`` is a sequence, a numpy or an Arrow array of integers or strings. Ids are compared
        as values: "12" finds 12 in a vocabulary of integers, and 12 finds "12" in one of strings.
        """
        found = pc.index_in(_as_type(_arrow(raw), self.ids.type), value_set=self.ids)
        return np.array(pc.fill_null(found, -1), dtype=np.int64)

    def write(self, path: Path) -> None:
        """Write to Parquet: id, count, block, one row an index."""
        block = np.repeat(np.arange(len(self.offsets) - 1, dtype=np.int32), np.diff(self.offsets))
        table = pa.table({"id": self.ids, "count": self.counts, "block": block})
        pq.write_table(table, path, write_page_checksum=True)

    @staticmethod
    def read(path: Path) -> Vocabulary:
        """The inverse of `write`.

        Raises:
            InputError: missing or damaged; names the file.
        """
        table = read_table(path, ids=("id",), numbers=("count", "block"))
        ids, counts, block = (table[name].combine_chunks() for name in ("id", "count", "block"))
        offsets = np.append(0, np.cumsum(np.bincount(block.to_numpy()))).astype(np.int64)
        return Vocabulary(ids, counts.to_numpy(), offsets)


def read_table(path: Path, ids: Iterable[str], numbers: Iterable[str]) -> pa.Table:
    """A Parquet file with its page checksums verified, that has columns of ids and of numbers.

    Raises:
        InputError: missing, damaged, or some other table; names the file.
    """
    try:
        table = pq.read_table(path, page_checksum_verification=True)
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing: restore it, or make it again") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} is damaged ({reason}): restore it, or make it again") from error
    for names, fits in ((ids, _is_id), (numbers, _is_number)):
        for name in names:
            column = table[name] if table.column_names.count(name) == 1 else None
            if column is None or column.null_count or not fits(column.type):
                raise InputError(
                    f"{path} is some other table (its column '{name}' is missing or odd): "
                    "restore it, or make it again"
                )
    return table


def _is_id(kind: pa.DataType) -> bool:
    return bool(kind in (pa.int64(), pa.string()))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def as_ids(column: pa.Array) -> pa.Array:
    """A column of raw ids of any type as int64 or string.

    Raises:
        InputError: a float that is no whole number, or a nested type.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return as_ids(column.cast(kind.value_type))
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return column.cast(pa.int64())
    if pa.types.is_floating(kind):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise InputError(f"ids must be whole numbers or text, not {kind}: {error}") from error
    try:
        return column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"ids must be whole numbers or text, not {kind}") from error


def is_integer(text: pa.Array) -> pa.Array:
    """Which strings are an int64 as Python writes it: no plus, no zeros in front."""
    plain = pc.match_substring_regex(text, CANONICAL_INTEGER)
    digits = pc.utf8_ltrim(text, "-")
    # Of equally many digits the order of strings is that of numbers.
    beyond = pc.and_(
        pc.greater_equal(pc.utf8_length(digits), 19), pc.greater(digits, str(2**63 - 1))
    )
    return pc.and_not(plain, beyond)


def _arrow(raw: Any) -> pa.Array:
    if isinstance(raw, pa.ChunkedArray):
        return raw.combine_chunks()
    if isinstance(raw, pa.Array):
        return raw
    try:
        return pa.array(raw)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([str(one) for one in raw])  # integers and text side by side


def _as_type(raw: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_floating(raw.type):
        # 12.0 is 12; anything else that is not whole is no id at all
        raw = pc.if_else(pc.equal(raw, pc.floor(raw)), raw, None)
    if pa.types.is_null(raw.type):
        return raw.cast(kind)
    raw = as_ids(raw)
    if raw.type == kind:
        return raw if kind == pa.int64() else pc.utf8_trim_whitespace(raw)
    if kind == pa.string():
        return raw.cast(pa.string())
    trimmed = pc.utf8_trim_whitespace(raw)
    return pc.if_else(is_integer(trimmed), trimmed, None).cast(pa.int64())
