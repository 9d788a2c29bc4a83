"""The blocked dataset on disk.

    manifest.json                     counts, rating scale, split, offsets, digest; written last
    users.parquet items.parquet       raw ids in index order, training counts, blocks
    train/row-block-000.parquet ...   one row group a column block, sorted by (user, item)
    valid/ test/                      the same

An index is contiguous within a block: block b of W holds the users row_offsets[b]:row_offsets[b+1].
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_pipeline.errors import InputError
from data_pipeline.split import PARTS
from data_pipeline.vocabulary import Vocabulary

FORMAT = 2


class RatingColumns(NamedTuple):
    """The n ratings of one block, sorted by (user, item); indices are the dataset's."""

    user: NDArray[np.int32]
    item: NDArray[np.int32]
    rating: NDArray[np.float32]
    time: NDArray[np.int64] | None  # seconds since 1970
    truth: NDArray[np.float32] | None  # E[rating] under the known model, for made sets

    def take(self, rows: NDArray[np.int64] | slice) -> RatingColumns:
        """Some of the rows."""
        return RatingColumns(
            self.user[rows],
            self.item[rows],
            self.rating[rows],
            None if self.time is None else self.time[rows],
            None if self.truth is None else self.truth[rows],
        )


@dataclass(frozen=True)
class Manifest:
    """What a dataset is; see the module's description."""

    name: str
    blocks: int  # G
    users: int  # I
    items: int  # J
    counts: dict[str, int]  # ratings a part
    block_counts: dict[str, list[list[int]]]  # (G, G) ratings a block, for each part
    rating: dict[str, float]  # min, max, step, mean of the training part; lowest of all parts
    split: dict[str, Any]
    duplicates: dict[str, Any]  # policy, count
    row_offsets: list[int]  # (G + 1,)
    col_offsets: list[int]
    digest: str  # of ids, indices and ratings: the content, not its Parquet bytes
    format: int = FORMAT


class Dataset:
    """A dataset folder.

    Raises:
        InputError: on opening, the folder is not a dataset or its manifest is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = _read_manifest(path)

    def users(self) -> Vocabulary:
        """The users, in index order.

        Raises:
            InputError: the file is missing or damaged; names it.
        """
        return self._vocabulary("users.parquet", self.manifest.row_offsets)

    def items(self) -> Vocabulary:
        """The items, in index order; raises as `users`."""
        return self._vocabulary("items.parquet", self.manifest.col_offsets)

    def _vocabulary(self, name: str, offsets: list[int]) -> Vocabulary:
        found = Vocabulary.read(self.path / name)
        if found.offsets.tolist() != offsets:
            raise self._foreign(self.path / name)
        return found

    def part(self, part: str, row_block: int) -> list[RatingColumns]:
        """The blocks of one row block of "train", "valid" or "test": G of them, by column block.

        Raises:
            InputError: the file is missing or damaged; names it.
        """
        path = self.path / part / _file_name(row_block)
        try:
            file = pq.ParquetFile(path, page_checksum_verification=True)
            groups = range(file.num_row_groups)
            found = [_columns(file.read_row_group(c)) for c in groups]
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"{path} is damaged ({reason}): remove {self.path} and ingest again"
            ) from error
        rows, cols = self.manifest.row_offsets, self.manifest.col_offsets
        lengths = [len(columns.rating) for columns in found]
        if lengths != self.manifest.block_counts[part][row_block] or not all(
            _within(columns.user, rows[row_block], rows[row_block + 1])
            and _within(columns.item, cols[c], cols[c + 1])
            for c, columns in enumerate(found)
        ):
            raise self._foreign(path)
        return found

    def _foreign(self, file: Path) -> InputError:
        return InputError(
            f"{file} does not belong to this dataset: remove {self.path} and ingest again"
        )


def is_dataset(path: Path) -> bool:
    """Whether a folder is an ingested dataset, as far as its manifest tells."""
    return (path / "manifest.json").is_file() and (path / "users.parquet").is_file()


def write(
    folder: Path,
    block: Callable[[int, int, int], RatingColumns],
    users: Vocabulary,
    items: Vocabulary,
    about: dict[str, Any],
) -> Manifest:
    """Fill a folder; ``block(part, row block, column block)`` are the ratings of one block."""
    blocks = len(users.offsets) - 1
    block_counts: dict[str, list[list[int]]] = {part: [] for part in PARTS}
    digest = hashlib.sha256()
    for vocabulary, name in ((users, "users.parquet"), (items, "items.parquet")):
        vocabulary.write(folder / name)
        digest.update(json.dumps([str(vocabulary.ids.type), vocabulary.ids.to_pylist()]).encode())
    for number, part in enumerate(PARTS):
        (folder / part).mkdir()
        for b in range(blocks):
            row_block = [block(number, b, c) for c in range(blocks)]
            _write_row_block(folder / part / _file_name(b), row_block, digest)
            block_counts[part].append([len(columns.rating) for columns in row_block])
    manifest = Manifest(
        blocks=blocks,
        users=len(users),
        items=len(items),
        block_counts=block_counts,
        row_offsets=users.offsets.tolist(),
        col_offsets=items.offsets.tolist(),
        digest=digest.hexdigest(),
        **about,
    )
    (folder / "manifest.json").write_text(json.dumps(asdict(manifest), indent=2) + "\n")
    return manifest


def _write_row_block(path: Path, blocks: list[RatingColumns], digest: Any) -> None:
    writer: pq.ParquetWriter | None = None
    for columns in blocks:
        for column in (columns.user, columns.item, columns.rating):
            digest.update(np.ascontiguousarray(column).data)
        table = pa.table({k: v for k, v in columns._asdict().items() if v is not None})
        if writer is None:
            writer = pq.ParquetWriter(path, table.schema, write_page_checksum=True)
        writer.write_table(table, row_group_size=max(len(table), 1))
    if writer is not None:
        writer.close()


def _file_name(row_block: int) -> str:
    return f"row-block-{row_block:03d}.parquet"


def _columns(table: pa.Table) -> RatingColumns:
    column = {name: table[name].to_numpy() for name in table.column_names}
    return RatingColumns(
        column["user"], column["item"], column["rating"], column.get("time"), column.get("truth")
    )


def _within(index: NDArray[np.int32], start: int, stop: int) -> bool:
    return not len(index) or (start <= int(index.min()) and int(index.max()) < stop)


def _read_manifest(path: Path) -> Manifest:
    file = path / "manifest.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} is not an ingested dataset: it has no manifest.json") from error
    except ValueError as error:
        raise InputError(f"{file} is damaged ({error}): remove {path} and ingest again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{path} is not a dataset of format {FORMAT}: ingest again")
    if set(content) != {field.name for field in fields(Manifest)}:
        raise InputError(f"{file} is damaged: its fields are not those of a dataset; ingest again")
    return Manifest(**content)
