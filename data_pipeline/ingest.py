"""From a source of ratings to a blocked dataset.

Everything that comes out - indices, split, blocks - depends on the set of ratings and the seed
alone, not on the order of rows in the file: rows are put into the order of their raw ids first.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_pipeline import dataset
from data_pipeline.dataset import Dataset, RatingColumns
from data_pipeline.errors import InputError
from data_pipeline.files import cache_dir, replace_folder
from data_pipeline.partition import deal, default_blocks
from data_pipeline.readers import Columns
from data_pipeline.sources import NAMES, Progress, Source, locate_both
from data_pipeline.split import PARTS, TRAIN, Split
from data_pipeline.vocabulary import Vocabulary, is_integer

MOST_GRID_VALUES = 1000  # a finer rating scale is taken as continuous


def prepare(
    data: str,
    *,
    split: Split | None = None,
    seed: int = 0,
    blocks: int | None = None,
    duplicates: str | None = None,
    columns: Columns | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """The dataset of a name, a path of ratings, or a dataset folder.

    Sources are ingested into the cache once for each combination of input and options; the
    options that are None are chosen as `ingest` does, or are the dataset folder's own.

    Raises:
        InputError: see `locate` and `ingest`; or a dataset folder was made with other options.
    """
    if data not in NAMES and dataset.is_dataset(Path(data)):
        return _as_ingested(Dataset(Path(data)), split, blocks, duplicates, columns)
    chosen, policy = split or Split(), duplicates or "last"
    source, test = locate_both(data, chosen.test_file, columns or Columns(), progress)
    # A test file is known by what it holds, not by how its path was written.
    parts = replace(chosen, test_file=test.identity if test else None)
    options = (parts, seed, policy, dataset.FORMAT)
    key = hashlib.sha256(f"{source.identity} {options}".encode()).hexdigest()[:12]
    automatic = cache_dir() / "datasets" / f"{source.name}-{key}"
    place = automatic if blocks is None else automatic.with_name(f"{automatic.name}-{blocks}")
    # A run that is resumed asks for the number of blocks that was chosen for it.
    for made in (place, automatic):
        found = _cached(made)
        if found is not None and blocks in (None, found.manifest.blocks):
            return found
    try:
        return ingest(
            source,
            place,
            split=chosen,
            seed=seed,
            blocks=blocks,
            duplicates=policy,
            test=test,
            progress=progress,
        )
    except InputError:
        if dataset.is_dataset(place):  # made by another process meanwhile
            return Dataset(place)
        raise


def _cached(place: Path) -> Dataset | None:
    if dataset.is_dataset(place):
        try:
            return Dataset(place)
        except InputError:  # of another version, or damaged: it is only a cache
            shutil.rmtree(place)
    return None


def _as_ingested(
    found: Dataset,
    split: Split | None,
    blocks: int | None,
    duplicates: str | None,
    columns: Columns | None,
) -> Dataset:
    about = found.manifest
    if blocks is not None and blocks != about.blocks:
        raise InputError(
            f"--blocks {blocks}: {found.path} is in {about.blocks} x {about.blocks} blocks; "
            "leave the flag out or ingest again"
        )
    # The seed is the dataset's own: its split was drawn when it was made.
    if split is not None and split.describe(about.split.get("seed", 0)) != about.split:
        raise InputError(
            f"{split.flag}: {found.path} was split differently ({about.split}) when it was "
            "ingested; leave the flag out or ingest again"
        )
    policy = about.duplicates["policy"]
    if duplicates is not None and duplicates != policy:
        raise InputError(
            f"--duplicates {duplicates}: {found.path} was ingested with {policy}; "
            "leave the flag out or ingest again"
        )
    if columns is not None and columns.flag:
        raise InputError(
            f"{columns.flag}: {found.path} is ingested already; leave the flag out or ingest again"
        )
    return found


def ingest(
    source: Source,
    out: Path,
    *,
    split: Split | None = None,
    seed: int = 0,
    blocks: int | None = None,
    duplicates: str = "last",
    test: Source | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Write ``source`` as a blocked dataset to ``out``.

    Args:
        source: the ratings.
        out: a folder that does not exist yet.
        split: which ratings validate and test; 0.75:0.125:0.125 at random by default.
        seed: of the split.
        blocks: G; by default what suits the number of ratings.
        duplicates: of a pair's several ratings keep the "last" by time (the larger rating at
            equal times; by place in the file where there are no times), take the "mean", or
            "error".
        test: the ratings of ``split.test_file``; their pairs are taken out of ``source``.
        progress: called with what is done, rows so far and None.

    Raises:
        InputError: bad input of any kind; ``out`` is then not there.
    """
    split = split or Split()
    with replace_folder(out) as folder:
        rows, users, items = _read(source, test, progress)
        try:
            rows, dropped = _without_duplicates(rows, len(items), duplicates, (users, items))
        except InputError as error:
            raise InputError(f"{_place(source, test)}: {error}") from error
        part = split.assign(len(rows.user), seed, rows.time, rows.in_test_file)
        training = part == TRAIN
        lowest = float(rows.rating.min())
        user_counts = np.bincount(rows.user[training], minlength=len(users))
        item_counts = np.bincount(rows.item[training], minlength=len(items))
        n = int(training.sum())
        groups = blocks or default_blocks(n, len(users), len(items))
        if groups > min(len(users), len(items)):
            raise InputError(
                f"--blocks {groups}: there are only {len(users)} users and {len(items)} items"
            )
        new_user, user_vocabulary = _index(users, user_counts, groups)
        new_item, item_vocabulary = _index(items, item_counts, groups)
        columns = RatingColumns(
            new_user[rows.user],
            new_item[rows.item],
            rows.rating.astype(np.float32),
            rows.time,
            rows.truth,
        )
        blocked = _Blocked(columns, part, user_vocabulary.offsets, item_vocabulary.offsets)
        dataset.write(
            folder,
            blocked.block,
            user_vocabulary,
            item_vocabulary,
            {
                "name": source.name,
                "counts": {name: int((part == k).sum()) for k, name in enumerate(PARTS)},
                "rating": {**_scale(columns.rating[training]), "lowest": lowest},
                "split": split.describe(seed),
                "duplicates": {"policy": duplicates, "count": dropped},
            },
        )
    return Dataset(out)


# Reading


@dataclass
class _Rows:
    """Ratings as they came: codes into the sorted vocabularies, file order or canonical."""

    user: NDArray[np.int32]
    item: NDArray[np.int32]
    rating: NDArray[np.float64]
    time: NDArray[np.int64] | None
    truth: NDArray[np.float32] | None
    in_test_file: NDArray[np.bool_]

    def take(self, rows: NDArray[np.int64]) -> _Rows:
        return _Rows(
            self.user[rows],
            self.item[rows],
            self.rating[rows],
            None if self.time is None else self.time[rows],
            None if self.truth is None else self.truth[rows],
            self.in_test_file[rows],
        )


def _read(
    source: Source, test: Source | None, progress: Progress | None
) -> tuple[_Rows, pa.Array, pa.Array]:
    """All rows, and the users' and items' raw ids sorted."""
    place = _place(source, test)
    users, items = _Codes(f"{place}: user"), _Codes(f"{place}: item")
    ratings: list[NDArray[np.float64]] = []
    optional: dict[str, list[NDArray[Any]]] = {"time": [], "truth": []}
    in_test: list[NDArray[np.bool_]] = []
    count = 0
    for batch, is_test in _batches(source, test):
        users.add(batch["user"])
        items.add(batch["item"])
        ratings.append(batch["rating"].to_numpy(zero_copy_only=False))
        for name, chunks in optional.items():
            if name in batch.schema.names:
                chunks.append(batch[name].to_numpy(zero_copy_only=False))
        in_test.append(np.full(batch.num_rows, is_test))
        count += batch.num_rows
        if progress is not None:
            progress(f"reading {source.name}", count, None)
    if count == 0:
        raise InputError(f"{place} holds no ratings: check the file")
    whole = {
        name: np.concatenate(chunks) if len(chunks) == len(ratings) else None
        for name, chunks in optional.items()
    }
    optional.clear()
    user, user_ids = users.finish()
    item, item_ids = items.finish()
    rows = _Rows(
        user,
        item,
        np.concatenate(ratings),
        whole["time"],
        whole["truth"],
        np.concatenate(in_test),
    )
    return rows, user_ids, item_ids


def _place(source: Source, test: Source | None) -> str:
    return source.place if test is None else f"{source.place} with {test.place}"


def _batches(source: Source, test: Source | None) -> Iterator[tuple[pa.RecordBatch, bool]]:
    for batch in source.batches():
        yield batch, False
    if test is not None:
        for batch in test.batches():
            yield batch, True


class _Codes:
    """One column of raw ids as int32 codes, its dictionary grown batch by batch."""

    def __init__(self, name: str) -> None:
        self._name = name  # for people
        self._chunks: list[pa.DictionaryArray] = []
        self._done: list[NDArray[np.int32]] = []

    def add(self, column: pa.Array) -> None:
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        if self._chunks and self._chunks[0].type.value_type != column.type.value_type:
            # integers in one file, text in another: text holds both
            self._chunks = [_text_dictionary(chunk) for chunk in self._chunks]
            column = _text_dictionary(column)
        self._chunks.append(column)

    def finish(self) -> tuple[NDArray[np.int32], pa.Array]:
        """Codes in the order of the sorted ids, (n,); the ids."""
        chunks = pa.chunked_array(self._chunks).unify_dictionaries().chunks
        self._chunks = []
        raw = chunks[-1].dictionary  # of a unified array all chunks have the same
        codes = np.concatenate([chunk.indices.to_numpy(zero_copy_only=False) for chunk in chunks])
        used = np.flatnonzero(np.bincount(codes, minlength=len(raw)))
        ids, first = _clean(raw.take(pa.array(used)), self._name)
        rank = np.zeros(len(raw), np.int32)
        rank[used[first]] = np.arange(len(ids), dtype=np.int32)
        return rank[codes], ids


def _text_dictionary(column: pa.DictionaryArray) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(pa.string()))


def _clean(raw: pa.Array, name: str) -> tuple[pa.Array, NDArray[np.int64]]:
    """Ids without surrounding white space, sorted, integers where all are; and their places.

    Raises:
        InputError: two ids are the same once cleaned.
    """
    ids = raw
    if raw.type != pa.int64():
        ids = pc.utf8_trim_whitespace(raw)
        distinct = pc.value_counts(ids)
        if len(distinct) < len(ids):
            double = next(v["values"] for v in distinct.to_pylist() if v["counts"] > 1)
            both = raw.filter(pc.equal(ids, double)).to_pylist()
            raise InputError(
                f"{name} ids {both[0]!r} and {both[1]!r} are both {double!r} without surrounding "
                "white space: make them one or tell them apart"
            )
        if pc.all(is_integer(ids)).as_py():
            ids = ids.cast(pa.int64())
    order = pc.sort_indices(ids)
    places: NDArray[np.int64] = order.to_numpy().astype(np.int64)
    return ids.take(order), places


# Canonical order


def _without_duplicates(
    rows: _Rows, n_items: int, policy: str, ids: tuple[pa.Array, pa.Array]
) -> tuple[_Rows, int]:
    """Rows sorted by (user, item), one a pair; how many were dropped."""
    key = rows.user.astype(np.int64) * n_items + rows.item
    order = np.argsort(key, kind="stable")
    key = key[order]
    repeated = key[1:] == key[:-1]
    if not repeated.any():
        return rows.take(order), 0
    if rows.in_test_file.any():
        order, key = _without_test_pairs(rows, order, key)
        repeated = key[1:] == key[:-1]
    # Only the few rows of repeated pairs are put in order of time.
    member = np.zeros(len(key), bool)
    member[1:] |= repeated
    member[:-1] |= repeated
    places = np.flatnonzero(member)
    group = order[places]
    keys = key[places]
    if policy == "error" and len(places):
        first = group[keys == keys[0]]
        user, item = (side[int(code[first[0]])].as_py() for side, code in _sides(ids, rows))
        raise InputError(
            f"user {user!r} rates item {item!r} {len(first)} times: drop the others, or choose "
            "--duplicates last or mean"
        )
    if rows.time is not None:
        by = np.lexsort((rows.rating[group], rows.time[group], keys))
    elif policy == "mean":
        by = np.lexsort((rows.rating[group], keys))  # the same sum whatever the file's order
    else:
        by = np.arange(len(group))
    group = group[by]
    order[places] = group
    last = np.append(~repeated, True)
    if policy == "mean" and len(places):
        starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        means = np.add.reduceat(rows.rating[group], starts) / np.diff(np.append(starts, len(keys)))
        rows.rating[order[places[np.append(starts[1:], len(keys)) - 1]]] = means
    return rows.take(order[last]), int(len(key) - last.sum())


def _without_test_pairs(
    rows: _Rows, order: NDArray[np.int64], key: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A pair of the test file is no duplicate of the source's: the source's row goes."""
    tested = np.unique(key[rows.in_test_file[order]])
    keep = rows.in_test_file[order] | ~np.isin(key, tested, assume_unique=False)
    return order[keep], key[keep]


def _sides(ids: tuple[pa.Array, pa.Array], rows: _Rows) -> Any:
    return zip(ids, (rows.user, rows.item), strict=True)


# Blocks


def _index(
    ids: pa.Array, counts: NDArray[np.int64], groups: int
) -> tuple[NDArray[np.int32], Vocabulary]:
    """The index of each sorted id, contiguous within groups; and the vocabulary."""
    group = deal(counts, groups)
    order = np.argsort(group, kind="stable")
    index = np.empty(len(order), np.int32)
    index[order] = np.arange(len(order), dtype=np.int32)
    offsets = np.zeros(groups + 1, np.int64)
    np.cumsum(np.bincount(group, minlength=groups), out=offsets[1:])
    return index, Vocabulary(ids.take(pa.array(order)), counts[order], offsets)


class _Blocked:
    """Ratings grouped by (part, row block, column block), in canonical order within."""

    def __init__(
        self,
        columns: RatingColumns,
        part: NDArray[np.uint8],
        row_offsets: NDArray[np.int64],
        col_offsets: NDArray[np.int64],
    ) -> None:
        self._groups = groups = len(row_offsets) - 1
        row = np.searchsorted(row_offsets, columns.user, side="right") - 1
        col = np.searchsorted(col_offsets, columns.item, side="right") - 1
        cell = (part.astype(np.int64) * groups + row) * groups + col
        if len(PARTS) * groups**2 < 1 << 16:
            cell = cell.astype(np.uint16)  # numpy sorts these by radix
        self._order = np.argsort(cell, kind="stable")
        cells = len(PARTS) * groups**2
        self._starts = np.append(0, np.cumsum(np.bincount(cell, minlength=cells)))
        self._columns = columns

    def block(self, part: int, row: int, col: int) -> RatingColumns:
        cell = (part * self._groups + row) * self._groups + col
        return self._columns.take(self._order[self._starts[cell] : self._starts[cell + 1]])


def _scale(ratings: NDArray[np.float32]) -> dict[str, float]:
    """Where the ratings lie: their ends, the gap between neighbours, their mean."""
    values = np.unique(ratings[: 1 << 16])
    if len(values) <= MOST_GRID_VALUES:
        values = np.unique(ratings)
    # As they are written: 4.1, not the single nearest to it.
    low, high = float(str(ratings.min())), float(str(ratings.max()))
    if low == high:
        step = 1.0
    elif len(values) > MOST_GRID_VALUES:
        step = (high - low) / MOST_GRID_VALUES
    else:
        step = float(f"{np.diff(values.astype(str).astype(np.float64)).min():.7g}")
    return {"min": low, "max": high, "step": step, "mean": float(ratings.mean(dtype=np.float64))}
