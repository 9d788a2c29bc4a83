"""Where ratings come from: data sets by name, files by path; found, checked, fetched."""

from __future__ import annotations

import glob
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from data_pipeline.errors import InputError
from data_pipeline.files import cache_dir, replace_file
from data_pipeline.readers import (
    NETFLIX,
    Columns,
    File,
    file_at,
    files_in_zip,
    read,
)
from data_pipeline.synthetic import demo

__all__ = ["NAMES", "Columns", "Source", "fetch", "locate", "locate_both", "read_pairs"]

GROUPLENS = "https://files.grouplens.org/datasets/movielens"
TIMEOUT_SECONDS = 30
RATINGS = ("user", "item", "rating", "time")
TEXT_SUFFIXES = (".csv", ".tsv", ".dat", ".data", ".txt")

Progress = Callable[[str, int, int | None], None]  # what, how much so far, of how much


@dataclass(frozen=True)
class Named:
    """A data set that is known by name."""

    about: str
    member: str = ""  # the ratings' path inside the zip or the unpacked folder
    md5: str | None = None  # GroupLens's; where None, the one it publishes beside the zip


NAMES = {
    "demo": Named("about 100,000 ratings drawn from a known model; needs no file"),
    "ml-100k": Named("100,000 ratings", "ml-100k/u.data", "0e33842e24a9c977be4e0107933c0723"),
    "ml-1m": Named("1,000,209 ratings", "ml-1m/ratings.dat", "c4d9eecfca2ab87c1945afe126590906"),
    "ml-10m": Named(
        "10,000,054 ratings", "ml-10M100K/ratings.dat", "ce571fd55effeba0271552578f2648bd"
    ),
    "ml-20m": Named("20,000,263 ratings", "ml-20m/ratings.csv", "cd245b17a1ae2cc31bb14903e1204af3"),
    "ml-25m": Named("25,000,095 ratings", "ml-25m/ratings.csv", "6b51fb2759a8657d3bfcbfc42b592ada"),
    "ml-32m": Named("32,000,204 ratings", "ml-32m/ratings.csv"),
    "ml-latest-small": Named("about 100,000 ratings", "ml-latest-small/ratings.csv"),
    "netflix": Named("100,480,507 ratings; not to be downloaded, put it in place by hand"),
}


@dataclass(frozen=True)
class Source:
    """Ratings that were found."""

    name: str
    place: str  # as people know it: a file, a folder, a glob, "demo"
    identity: str  # another one whenever the input may be another one
    batches: Callable[[], Iterator[pa.RecordBatch]]


def locate(data: str, columns: Columns | None = None, progress: Progress | None = None) -> Source:
    """The ratings of a data set's name, a file, a folder or a glob.

    Names are looked for in BNMF_DATA_DIR, then in the cache, then downloaded.

    Raises:
        InputError: an unknown name, nothing at the path, a damaged or dangerous archive, or a
            download that failed; names it and the way out.
    """
    if data == "demo":
        return Source("demo", "demo", "demo-1", lambda: iter([demo()]))
    if data == "netflix":
        return _netflix()
    if data in NAMES:
        found = _find_named(data, progress)
        return _from_files(data, str(found), [found], Columns(), NAMES[data].member)
    paths = [Path(data)]
    if not paths[0].exists():
        paths = sorted(Path(path) for path in glob.glob(data, recursive=True))
    if not paths:
        raise InputError(
            f"{data} is neither a data set ({', '.join(NAMES)}) nor a path that exists"
        )
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", paths[0].name.split(".")[0]).strip("-") or "ratings"
    return _from_files(name, data, paths, columns or Columns())


def locate_both(
    data: str, test_file: str | None, columns: Columns, progress: Progress | None = None
) -> tuple[Source, Source | None]:
    """The ratings of ``data``, and those of a test file if there is one.

    Raises:
        InputError: as `locate`; or ``columns`` are named and no file has them.
    """
    if columns.flag and all(place in NAMES for place in (data, test_file or data)):
        raise InputError(f"{columns.flag}: the columns of {data} are known; leave the flag out")
    source = locate(data, columns, progress)
    return source, locate(test_file, columns, progress) if test_file else None


def read_pairs(path: Path, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Batches of the user and item columns of a csv or Parquet file, raw ids, in its order.

    Raises:
        InputError: missing, empty, damaged, or without such columns.
    """
    return read(file_at(path), columns, ("user", "item"))


def fetch(name: str, progress: Progress | None = None) -> Path:
    """The zip of a data set in the cache, downloaded and checked if it is not there yet.

    Raises:
        InputError: an unknown name, one that is not to be downloaded, or a failed download.
    """
    if name == "netflix":
        raise InputError(_netflix_advice())
    if name not in NAMES or name == "demo":
        known = ", ".join(n for n in NAMES if n not in ("demo", "netflix"))
        raise InputError(f"'{name}' is not to be fetched: choose from {known}")
    target = _downloads() / f"{name}.zip"
    if target.exists():
        _verify(name, target)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    base = os.environ.get("BNMF_MIRROR", GROUPLENS).rstrip("/")
    if not base.startswith(("https://", "http://")):
        raise InputError(f"BNMF_MIRROR {base} is no http(s) address")
    expected = NAMES[name].md5
    if "BNMF_MIRROR" in os.environ or expected is None:
        expected = _md5_in(f"{base}/{name}.zip.md5")
    with replace_file(target) as temporary:
        got = _download(f"{base}/{name}.zip", temporary, name, progress)
        if got != expected:
            raise InputError(
                f"{base}/{name}.zip has md5 {got}, published is {expected}: the download is "
                "damaged, try again"
            )
        _md5_beside(target).write_text(f"{expected}  {target.name}\n")
    return target


def _find_named(name: str, progress: Progress | None) -> Path:
    """The ratings file of an unpacked folder, or the verified zip."""
    member = Path(NAMES[name].member)
    for folder in _data_folders():
        for unpacked in (folder / member, folder / name / member.name):
            if unpacked.is_file():
                return unpacked
            compressed = unpacked.with_name(f"{unpacked.name}.gz")
            if compressed.is_file():
                return compressed
        archive = folder / f"{name}.zip"
        if archive.is_file():
            _verify(name, archive)
            return archive
    return fetch(name, progress)


def _data_folders() -> list[Path]:
    given = os.environ.get("BNMF_DATA_DIR")
    if given and not Path(given).is_dir():
        raise InputError(f"BNMF_DATA_DIR {given} is not a folder: make it or unset the variable")
    return [*([Path(given)] if given else []), _downloads()]


def _downloads() -> Path:
    return cache_dir() / "data"


def _from_files(
    name: str, place: str, paths: list[Path], columns: Columns, member: str = ""
) -> Source:
    paths = [found for path in paths for found in _in_folder(path)]
    files = [file for path in paths for file in _files(path, member)]
    if not files:
        raise InputError(f"{paths[0]} holds no file of ratings (csv, tsv, dat, Parquet)")

    def batches() -> Iterator[pa.RecordBatch]:
        for file in files:
            yield from read(file, columns, RATINGS)

    return Source(name, place, f"{columns} {_identity(paths)}", batches)


def _in_folder(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    names = {p.name for p in path.iterdir() if p.is_file()}
    return [path / name for name in _chosen(path, names)]


def _chosen(place: Path, names: Iterable[str]) -> list[str]:
    """Which files of a folder or zip hold the ratings.

    Those that are called so where there are any (GroupLens puts movies and tags beside them), else
    all that may be.

    Raises:
        InputError: there is none, or there are several kinds.
    """
    found = sorted(name for name in names if _is_ratings(Path(name).name))
    found = [name for name in found if _is_called_ratings(Path(name).name)] or found
    if not found:
        raise InputError(f"{place} holds no file of ratings (csv, tsv, dat, Parquet)")
    kinds = sorted({_kind(name) for name in found})
    if len(kinds) > 1:
        raise InputError(
            f"{place} holds files of several kinds ({', '.join(kinds)}): name one by a glob"
        )
    return found


def _is_ratings(name: str) -> bool:
    return not name.lower().startswith((".", "_", "readme")) and _kind(name) in (
        *TEXT_SUFFIXES, ".parquet", ".pq",
    )  # fmt: skip


def _is_called_ratings(name: str) -> bool:
    return name.startswith(("ratings.", "u.data")) or NETFLIX.match(name) is not None


def _kind(name: str) -> str:
    return Path(name.removesuffix(".gz")).suffix


def _files(path: Path, member: str) -> list[File]:
    if path.suffix != ".zip":
        return [file_at(path)]
    if not path.is_file() or path.stat().st_size == 0:
        raise InputError(f"{path} is empty: it holds no ratings")
    if member:
        return files_in_zip(path, partial(_only, path, member))
    return files_in_zip(path, partial(_chosen, path))


def _only(place: Path, member: str, names: list[str]) -> list[str]:
    if member not in names:
        raise InputError(f"{place} holds no {member}: it is not the data set it is named after")
    return [member]


def _identity(paths: list[Path]) -> str:
    states = [(str(path.resolve()), path.stat()) for path in paths]
    return " ".join(f"{path}:{state.st_size}:{state.st_mtime_ns}" for path, state in states)


# Netflix


def _netflix() -> Source:
    for folder in _data_folders():
        for base in (folder / "netflix", folder):
            for pattern in ("training_set/mv_*.txt", "combined_data_*.txt"):
                paths = sorted(base.glob(pattern))
                if paths:
                    return _from_files("netflix", str(base / pattern), paths, Columns())
    raise InputError(_netflix_advice())


def _netflix_advice() -> str:
    place = os.environ.get("BNMF_DATA_DIR") or str(_downloads())
    return (
        "netflix is never downloaded: get the Netflix Prize data from its archive (kaggle.com, "
        "netflix-inc/netflix-prize-data) and put training_set/ or combined_data_*.txt into "
        f"{place}/netflix"
    )


# Downloads


def _verify(name: str, archive: Path) -> None:
    """Check a zip against the built-in md5; with BNMF_MIRROR, or without one, the file beside it."""
    beside = _md5_beside(archive)
    expected = NAMES[name].md5
    if beside.exists() and (expected is None or "BNMF_MIRROR" in os.environ):
        expected = _md5_of(beside.read_text(), str(beside))
    if expected is None:
        return
    with archive.open("rb") as file:
        got = hashlib.file_digest(file, "md5").hexdigest()
    if got != expected:
        raise InputError(
            f"{archive} has md5 {got}, published is {expected}: remove it to have it fetched again"
        )


def _md5_beside(archive: Path) -> Path:
    return archive.with_name(f"{archive.name}.md5")


def _open(url: str) -> http.client.HTTPResponse:
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS)
    # ValueError: an address, or one that it redirects to, is malformed.
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _failed(url, error) from error
    return answer


def _md5_in(url: str) -> str:
    with _open(url) as answer:
        try:
            text = answer.read(4096).decode("ascii", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise _failed(url, error) from error
    return _md5_of(text, url)


def _md5_of(text: str, place: str) -> str:
    match = re.search(r"\b[0-9a-fA-F]{32}\b", text)
    if match is None:
        raise InputError(f"{place} holds no md5 checksum")
    return match.group().lower()


def _download(url: str, target: Path, name: str, progress: Progress | None) -> str:
    """Fetch to ``target``; returns the md5."""
    digest = hashlib.md5(usedforsecurity=False)
    done = 0
    try:
        with _open(url) as answer, target.open("wb") as file:
            length = answer.headers.get("Content-Length")
            total = int(length) if length and length.isdigit() else None
            while chunk := answer.read(1 << 20):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(f"fetching {name}", done, total)
    except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise _failed(url, error) from error
    if total is not None and done < total:
        raise InputError(f"{url} ended after {done} of {total} bytes: try again")
    return digest.hexdigest()


def _failed(url: str, error: Exception) -> InputError:
    reason = getattr(error, "reason", None) or error
    if isinstance(error, urllib.error.HTTPError):
        reason = f"HTTP {error.code}, {reason}"
    mirror = " and BNMF_MIRROR" if "BNMF_MIRROR" in os.environ else ""
    return InputError(
        f"{url} could not be fetched ({reason}): check the network{mirror}, or put the zip into "
        f"BNMF_DATA_DIR or {_downloads()}"
    )
