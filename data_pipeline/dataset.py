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

FORMAT = 1


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
    files: dict[str, str]  # SHA-256 of each
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
        self._content("users.parquet")
        return Vocabulary.read(self.path / "users.parquet")

    def items(self) -> Vocabulary:
        """The items, in index order; raises as `users`."""
        self._content("items.parquet")
        return Vocabulary.read(self.path / "items.parquet")

    def part(self, part: str, row_block: int) -> list[RatingColumns]:
        """The blocks of one row block of "train", "valid" or "test": G of them, by column block.

        Raises:
            InputError: the file is missing or damaged; names it.
        """
        content = self._content(_row_block(part, row_block))
        file = pq.ParquetFile(pa.BufferReader(content))
        return [_columns(file.read_row_group(c)) for c in range(file.num_row_groups)]

    def _content(self, name: str) -> pa.Buffer:
        # Parquet's own checksums leave out the footer: a flipped bit there can lose rows unseen.
        # Arrow's own buffer: one of Python's, let go by Arrow's threads while Python ends, aborts.
        path = self.path / name
        try:
            with pa.OSFile(str(path)) as file:
                content = file.read_buffer()
        except FileNotFoundError as error:
            raise InputError(f"{path} is missing: remove {self.path} and ingest again") from error
        if hashlib.sha256(content).hexdigest() != self.manifest.files.get(name):
            raise InputError(f"{path} is damaged: remove {self.path} and ingest again")
        return content


def is_dataset(path: Path) -> bool:
    """Whether a folder is an ingested dataset, as far as its manifest tells."""
    return (path / "manifest.json").is_file() and (path / "train").is_dir()


def write(
    folder: Path,
    block: Callable[[int, int, int], RatingColumns],
    users: Vocabulary,
    items: Vocabulary,
    about: dict[str, Any],
) -> Manifest:
    """Fill a folder; ``block(part, row block, column block)`` are the ratings of one block."""
    blocks = len(users.offsets) - 1
    digest = hashlib.sha256()
    for vocabulary, name in ((users, "users.parquet"), (items, "items.parquet")):
        vocabulary.write(folder / name)
        digest.update(json.dumps([str(vocabulary.ids.type), vocabulary.ids.to_pylist()]).encode())
    for number, part in enumerate(PARTS):
        (folder / part).mkdir()
        for b in range(blocks):
            row_block = [block(number, b, c) for c in range(blocks)]
            _write_row_block(folder / _row_block(part, b), row_block, digest)
    manifest = Manifest(
        blocks=blocks,
        users=len(users),
        items=len(items),
        files={
            path.relative_to(folder).as_posix(): _sha256(path)
            for path in sorted(folder.rglob("*.parquet"))
        },
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


def _row_block(part: str, row_block: int) -> str:
    return f"{part}/row-block-{row_block:03d}.parquet"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _columns(table: pa.Table) -> RatingColumns:
    column = {name: table[name].to_numpy() for name in table.column_names}
    return RatingColumns(
        column["user"], column["item"], column["rating"], column.get("time"), column.get("truth")
    )


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
