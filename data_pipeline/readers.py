"""Ratings and pairs out of csv, tsv, `::`, Parquet and Netflix files, batch by batch."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_pipeline.errors import InputError
from data_pipeline.vocabulary import as_ids

BLOCK_BYTES = 8 << 20
BATCH_ROWS = 1 << 19
LARGEST = float(np.finfo(np.float32).max)  # ratings are kept in single precision
MISSING = ("", "NA", "NULL", "null", "None")
NETFLIX = re.compile(r"(mv_\d+|combined_data_\d+)\.txt(\.gz)?$")
TEXT_ID = pa.dictionary(pa.int32(), pa.string())

NAMES = {
    "user": ("user", "userid", "uid", "customer", "customerid", "reviewerid", "userindex"),
    "item": (
        "item", "itemid", "iid", "movie", "movieid", "film", "filmid", "product", "productid",
        "isbn", "asin", "book", "bookid", "track", "trackid", "song", "songid", "artist", "artistid",
    ),
    "rating": ("rating", "ratings", "score", "stars", "value", "overall", "count", "plays"),
    "time": ("timestamp", "time", "date", "datetime", "ts", "unixtime", "unixreviewtime"),
}  # fmt: skip
FLAGS = {role: f"--{role}-col" for role in NAMES}


@dataclass(frozen=True)
class Columns:
    """Names of the columns, where the usual headers do not say."""

    user: str | None = None
    item: str | None = None
    rating: str | None = None
    time: str | None = None

    @property
    def flag(self) -> str | None:
        """The first flag that names a column."""
        return next((flag for role, flag in FLAGS.items() if getattr(self, role) is not None), None)


@dataclass(frozen=True)
class File:
    """One file of ratings: on disk, compressed, or a member of a zip."""

    name: str  # for people
    open: Callable[[], IO[bytes] | gzip.GzipFile]
    path: Path | None = None  # where it lies as it is, neither packed nor compressed

    def for_arrow(self) -> pa.NativeFile | IO[bytes] | gzip.GzipFile:
        """Opened for Arrow, whose threads must not hold Python's files while Python ends."""
        return pa.OSFile(str(self.path)) if self.path is not None else self.open()

    @property
    def is_parquet(self) -> bool:
        """By its name."""
        return self.name.endswith((".parquet", ".pq"))

    @property
    def is_netflix(self) -> bool:
        """By its name."""
        return NETFLIX.search(self.name) is not None


def file_at(path: Path) -> File:
    """A plain or gzipped file.

    Raises:
        InputError: there is none.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist: check the path")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty: it holds no ratings")
    if path.suffix == ".gz":
        return File(str(path), lambda: gzip.open(path))
    return File(str(path), lambda: path.open("rb"), path)


def files_in_zip(path: Path, choose: Callable[[list[str]], list[str]]) -> list[File]:
    """The members of a zip that are chosen of all, streamed, never unpacked.

    Raises:
        InputError: no zip, a truncated one, or a member that would escape its folder.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{path} is no whole zip file ({error}): fetch it again") from error
    for name in names:
        posix = PurePosixPath(name.replace("\\", "/"))
        if posix.is_absolute() or ".." in posix.parts or re.match(r"^[A-Za-z]:", name):
            raise InputError(
                f"{path} holds '{name}', which would escape its folder: do not trust it"
            )

    def opener(name: str) -> Callable[[], IO[bytes]]:
        return lambda: zipfile.ZipFile(path).open(name)

    return [File(f"{path}:{name}", opener(name)) for name in choose(names)]


def read(file: File, columns: Columns, roles: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Batches with one column a role: user, item int64 or dictionary; rating, time if present.

    Raises:
        InputError: the file cannot be read, lacks a column, or holds a value that is no rating.
    """
    reader = _parquet if file.is_parquet else _netflix if file.is_netflix else _text
    try:
        yield from reader(file, columns, roles)
    except InputError:
        raise
    except (
        pa.ArrowException, EOFError, zlib.error, zipfile.BadZipFile, OSError,
        RuntimeError,  # zipfile's, of a member that is encrypted or compressed in an odd way
    ) as error:  # fmt: skip
        if isinstance(error, OSError) and error.errno and not isinstance(error, gzip.BadGzipFile):
            raise
        reason = " ".join(str(error).split())
        raise InputError(
            f"{file.name} is damaged or cut short ({reason}): fetch it again"
        ) from error


# Parquet


def _parquet(file: File, columns: Columns, roles: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    with file.for_arrow() as stream:
        parquet = pq.ParquetFile(stream, page_checksum_verification=True)
        found = _find(file, parquet.schema_arrow.names, columns, roles)
        start = 0
        for batch in parquet.iter_batches(BATCH_ROWS, columns=list(found.values())):
            arrays = {
                role: _converted(file, role, name, batch.column(name), start)
                for role, name in found.items()
            }
            yield _checked(file, arrays, start)
            start += batch.num_rows


def _converted(file: File, role: str, name: str, column: pa.Array, start: int) -> pa.Array:
    convert = {"rating": _to_float, "time": _to_seconds}.get(role, as_ids)
    try:
        return convert(column)
    except InputError as whole:
        for row in range(len(column)):  # which it is; none where they only do not go together
            try:
                convert(column.slice(row, 1))
            except InputError as error:
                place = f"{file.name}, row {start + row + 1}, column {name}"
                raise InputError(f"{place}: {error}") from error
        raise InputError(f"{file.name}, column {name}: {whole}") from whole


def _to_float(column: pa.Array) -> pa.Array:
    try:
        return column.cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"ratings must be numbers, not {column.type} ({error})") from error


def _to_seconds(column: pa.Array) -> pa.Array:
    """Times as int64 seconds since 1970; null where they are no finite number."""
    try:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            example = next((text for text in column.to_pylist() if text), "")
            column = column.cast(_time_type(example))
        if pa.types.is_date(column.type):
            column = column.cast(pa.timestamp("s"))
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("s", column.type.tz), safe=False)
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.less(pc.abs(column), 2.0**62), column, None)
        return column.cast(pa.int64(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"times must be seconds or ISO dates ({error})") from error


# Text


@dataclass(frozen=True)
class _Layout:
    """How the lines of a text file are made up."""

    delimiter: str
    header: int  # its line, counted from 1; 0 where there is none
    fields: list[str]
    roles: dict[str, str]  # role -> field


def _text(file: File, columns: Columns, roles: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    layout, first = _layout(file, columns, roles)
    doubled = layout.delimiter == "::"
    names = layout.fields
    if doubled:  # one colon ends a field, the next an empty one
        names = [name for field in layout.fields for name in (field, f"{field}:")][:-1]
    types: dict[str, pa.DataType] = {}
    for role, field in layout.roles.items():
        if role == "time":
            at = layout.fields.index(field)
            types[field] = _time_type(first[at] if at < len(first) else "")
        else:
            types[field] = pa.float64() if role == "rating" else TEXT_ID
    with file.for_arrow() as stream:
        try:
            reader = pyarrow.csv.open_csv(
                stream,
                pyarrow.csv.ReadOptions(
                    column_names=names, skip_rows=layout.header, block_size=BLOCK_BYTES
                ),
                pyarrow.csv.ParseOptions(
                    delimiter=layout.delimiter[0],
                    quote_char=False if doubled else '"',
                    newlines_in_values=not doubled,
                ),
                pyarrow.csv.ConvertOptions(
                    column_types=types,
                    include_columns=list(layout.roles.values()),
                    null_values=MISSING,
                    strings_can_be_null=True,
                ),
            )
            start = 0
            for batch in reader:
                arrays = {role: batch.column(field) for role, field in layout.roles.items()}
                if "time" in arrays:
                    arrays["time"] = _to_seconds(arrays["time"])
                yield _checked(file, arrays, start, layout)
                start += batch.num_rows
        except pa.ArrowInvalid:
            _explain(file, layout)
            raise


def _layout(file: File, columns: Columns, roles: tuple[str, ...]) -> tuple[_Layout, list[str]]:
    """The layout, and the fields of the first row."""
    with file.open() as stream:
        every = [line.strip() for line in _head(stream)]
    lines = [line for line in every if line]
    if not lines:
        raise InputError(f"{file.name} is empty: it holds no ratings")
    if "\0" in lines[0]:
        raise InputError(f"{file.name} is no text in UTF-8: save it as csv in UTF-8")
    delimiter = next((d for d in ("::", "\t", ",", ";", "|") if d in lines[0]), " ")
    fields = _fields(lines, delimiter)
    header = len(roles) < 3 or len(fields) < 3 or not _is_number(fields[2])
    if header:
        found = _find(file, fields, columns, roles)
        if len(lines) < 2:
            raise InputError(f"{file.name} holds a header and no rows")
        layout = _Layout(delimiter, every.index(lines[0]) + 1, fields, found)
        return layout, _fields(lines[1:], delimiter)
    if columns.flag:
        raise InputError(
            f"{file.name} has no header line for {columns.flag} to name a column of: add one"
        )
    if len(fields) > 4:
        raise InputError(f"{file.name} has {len(fields)} columns and no header: add a header line")
    names = ["user", "item", "rating", "time"][: len(fields)]
    return _Layout(delimiter, 0, names, {n: n for n in names if n in roles}), fields


def _head(stream: IO[bytes] | gzip.GzipFile) -> list[str]:
    start = stream.read(1 << 16)
    try:
        text = start.decode("utf-8-sig", errors="strict" if len(start) < 1 << 16 else "ignore")
    except UnicodeDecodeError:
        text = start.decode("latin-1")
    return text.splitlines()


def _fields(lines: list[str], delimiter: str) -> list[str]:
    """Of the first record, which quotes may spread over lines."""
    if delimiter == "::":
        return lines[0].split("::")
    return [field.strip() for field in next(csv.reader(lines, delimiter=delimiter))]


def _find(
    file: File, fields: list[str], columns: Columns, roles: tuple[str, ...]
) -> dict[str, str]:
    """role -> field, by the flags' names or the usual headers."""
    plain = {re.sub(r"[^a-z0-9]", "", field.lower()): field for field in reversed(fields)}
    found = {}
    for role in roles:
        wanted = getattr(columns, role)
        if wanted is not None:
            if wanted not in fields:
                raise InputError(
                    f"{file.name} has no column '{wanted}' ({FLAGS[role]}): "
                    f"it has {', '.join(fields)}"
                )
            found[role] = wanted
            continue
        field = next((plain[name] for name in NAMES[role] if name in plain), None)
        if field is not None:
            found[role] = field
        elif role != "time":
            raise InputError(
                f"{file.name} has no column that is called like {role}s usually are: name it by "
                f"{FLAGS[role]}; it has {', '.join(fields)}"
            )
    for role, field in found.items():
        if fields.count(field) > 1:
            raise InputError(f"{file.name} has {fields.count(field)} columns '{field}': rename one")
        other = next(name for name in found if found[name] == field)
        if other != role:
            raise InputError(
                f"{file.name}: column '{field}' cannot be both {other} and {role}: "
                f"name another by {FLAGS[other]} or {FLAGS[role]}"
            )
    return found


def _time_type(example: str) -> pa.DataType:
    if _is_number(example):
        return pa.float64()
    zone = re.search(r"(Z|[+-]\d\d:?\d\d)$", example)
    return pa.timestamp("ns", "UTC" if zone else None)


def _is_time(text: str) -> bool:
    try:
        return bool(_to_seconds(pa.array([text])).null_count == 0)
    except InputError:
        return False


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# Checks


def _checked(
    file: File, arrays: dict[str, pa.Array], start: int, layout: _Layout | None = None
) -> pa.RecordBatch:
    """The batch, with ids there and ratings finite; ``start`` counts the rows before it."""
    for role, array in arrays.items():
        wrong = _wrong(role, array)
        if wrong is not None:
            bad = int(np.flatnonzero(wrong)[0])
            if layout is not None:
                _explain(file, layout)
            value = array[bad].as_py()
            shown = "missing" if value is None else repr(value)
            raise InputError(f"{file.name}, row {start + bad + 1}: the {role} is {shown}: mend it")
    return pa.record_batch(arrays)


def _wrong(role: str, array: pa.Array) -> NDArray[np.bool_] | None:
    """Where a column has no value, a blank id or a rating that is not finite; None if nowhere."""
    wrong: NDArray[np.bool_]
    if array.null_count:
        wrong = array.is_null().to_numpy(zero_copy_only=False)
        return wrong
    if role == "rating":
        wrong = ~(np.abs(array.to_numpy()) <= LARGEST)
        return wrong if wrong.any() else None
    values = array.dictionary if pa.types.is_dictionary(array.type) else array
    if role == "time" or pa.types.is_integer(values.type):
        return None
    blank = pc.equal(pc.utf8_trim_whitespace(values), "")
    if not pc.any(blank).as_py():
        return None
    if values is not array:
        blank = blank.take(array.indices)
    wrong = blank.to_numpy(zero_copy_only=False)
    return wrong if wrong.any() else None


def _explain(file: File, layout: _Layout) -> None:
    """Go through the file once more in Python, for the first line that is wrong.

    Raises:
        InputError: there is one; names it.
    """
    position = {role: layout.fields.index(field) for role, field in layout.roles.items()}
    for number, values in _records(file, layout.delimiter):
        place = f"{file.name}, line {number}"
        if number <= layout.header or not values:
            continue
        if layout.delimiter == "::" and any(":" in value for value in values):
            raise InputError(
                f"{place}: a field holds ':', which files with '::' cannot: write csv or tsv"
            )
        if len(values) != len(layout.fields):
            expected, got = len(layout.fields), len(values)
            raise InputError(f"{place}: {expected} fields are expected, {got} found: mend it")
        for role, at in position.items():
            value = values[at]
            if value.strip() in MISSING:
                raise InputError(f"{place}: the {role} is missing: mend or drop the line")
            if role == "rating" and not (_is_number(value) and abs(float(value)) <= LARGEST):
                raise InputError(
                    f"{place}: the rating '{value}' is no finite number: mend or drop the line"
                )
            if role == "time" and not _is_time(value):
                raise InputError(f"{place}: the time '{value}' is neither seconds nor an ISO date")


def _records(file: File, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The first line of each record, counted from 1, and its fields, none where it is blank.

    A field in quotes may hold lines.

    Raises:
        InputError: a line that is not UTF-8, or quotes that do not close.
    """
    number = 1

    def lines(stream: IO[bytes] | gzip.GzipFile) -> Iterator[str]:
        for at, raw in enumerate(stream, start=1):
            try:
                yield raw.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{file.name}, line {at} is not UTF-8: save the file as UTF-8"
                ) from error

    with file.open() as stream:
        if delimiter == "::":
            for number, line in enumerate(lines(stream), start=1):
                fields = line.rstrip("\r\n").split("::")
                yield number, [] if fields == [""] else fields
            return
        records = csv.reader(lines(stream), delimiter=delimiter)
        try:
            for values in records:
                yield number, [value.strip() for value in values]
                number = records.line_num + 1
        except csv.Error as error:
            raise InputError(f"{file.name}, line {number}: {error}: mend it") from error


# Netflix


def _netflix(file: File, columns: Columns, roles: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """`mv_*.txt` and `combined_data_*.txt`: a line `MOVIE:`, then `USER,RATING,DATE` lines."""
    if columns.flag:
        raise InputError(
            f"{file.name} is in Netflix's layout, without names of columns: leave {columns.flag} out"
        )
    item = np.array([], np.int64)  # the movie that the chunk before ended with
    start = 0
    with file.open() as stream:
        while chunk := stream.read(BLOCK_BYTES) + stream.readline():
            # With two empty fields more, a movie's line is one of the same csv.
            text = re.sub(rb":[ \t]*\r?(\n|$)", b":,,\n", chunk)
            if not text.strip():
                continue
            try:
                table = pyarrow.csv.read_csv(
                    io.BytesIO(text),
                    pyarrow.csv.ReadOptions(column_names=["user", "rating", "time"]),
                    convert_options=pyarrow.csv.ConvertOptions(
                        column_types={
                            "user": pa.string(), "rating": pa.float64(), "time": pa.date32(),
                        }
                    ),
                ).combine_chunks()  # fmt: skip
                user, rating, time = (column.chunk(0) for column in table.columns)
                is_movie = pc.ends_with(user, ":")
                found = pc.utf8_rtrim(user.filter(is_movie), ":").cast(pa.int64())
                rows = pc.invert(is_movie)
                users = user.filter(rows).cast(pa.int64())
            except pa.ArrowInvalid as error:
                raise InputError(f"{file.name} is not in Netflix's layout: {error}") from error
            movies = np.concatenate([item, found.to_numpy()])
            place = np.cumsum(is_movie.to_numpy(zero_copy_only=False)) + len(item) - 1
            if place[0] < 0:
                raise InputError(
                    f"{file.name} is not in Netflix's layout: it must start with 'MOVIE:'"
                )
            item = movies[-1:]
            arrays = {
                "user": users,
                "item": pa.array(movies[place]).filter(rows),
                "rating": rating.filter(rows),
                "time": _to_seconds(time.filter(rows)),
            }
            yield _checked(file, arrays, start)
            start += len(users)
