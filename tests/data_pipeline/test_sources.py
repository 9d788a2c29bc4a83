"""Data sets by name and files by path: layouts, archives, downloads, and everything bad in them."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import io
import itertools
import json
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_pipeline import sources
from data_pipeline.errors import InputError
from data_pipeline.ingest import prepare
from data_pipeline.readers import Columns
from data_pipeline.sources import NAMES, locate
from tests.conftest import Command


def table(source: sources.Source) -> pa.Table:
    """All rows, ids as text."""
    batches = []
    for batch in source.batches():
        columns = {name: batch[name] for name in batch.schema.names}
        for side in ("user", "item"):
            columns[side] = columns[side].cast(pa.string())
        batches.append(pa.table(columns))
    return pa.concat_tables(batches)


def ml_10m_zip(path: Path, ratings: int = 3000) -> str:
    """A zip in ml-10m's exact layout, half stars as 3.5 and whole ones as 4; returns its md5."""
    rng = np.random.default_rng(0)
    cells = np.sort(rng.choice(120 * 90, ratings, replace=False))
    taste = rng.gamma(2, 0.5, (120, 2)) @ rng.gamma(2, 0.5, (2, 90))
    lines = []
    for cell in cells:
        star = np.clip(np.round(2 * (1 + taste.flat[cell] + rng.normal(0, 0.4))) / 2, 0.5, 5)
        lines.append(f"{cell // 90 + 1}::{7 * (cell % 90) + 1}::{star:g}::{838985046 + cell}")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ml-10M100K/README.html", "read me")
        archive.writestr("ml-10M100K/movies.dat", "1::Toy Story (1995)::Animation\n")
        archive.writestr("ml-10M100K/ratings.dat", "\n".join(lines) + "\n")
    return hashlib.md5(path.read_bytes()).hexdigest()


class Mirror:
    """A folder served on loopback, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        mirror = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                mirror.asked.append(self.path)

        handler = functools.partial(Handler, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/data"


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    (tmp_path / "served" / "data").mkdir(parents=True)
    made = Mirror(tmp_path / "served")
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    monkeypatch.setenv("BNMF_MIRROR", made.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def serve_ml_10m(mirror: Mirror) -> str:
    md5 = ml_10m_zip(mirror.folder / "data" / "ml-10m.zip")
    line = f"MD5 (ml-10m.zip) = {md5}\n"
    (mirror.folder / "data" / "ml-10m.zip.md5").write_text(line)
    return md5


# Downloads


def test_ml_10m_trains_from_a_mirror(mirror: Mirror, bnmf: Command, tmp_path: Path) -> None:
    serve_ml_10m(mirror)
    flags = ("--rank", "3", "--sweeps", "100", "--json")
    outcome = bnmf("train", "--data", "ml-10m", "--out", tmp_path / "run", *flags)
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert report["test"]["rmse"] < report["baselines"]["test"]["global_mean"]["rmse"]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["dataset"]["rating"]["step"] == 0.5
    kept = sorted(path.name for path in (tmp_path / "cache" / "bnmf" / "data").iterdir())
    assert kept == ["ml-10m.zip", "ml-10m.zip.md5"]
    asked = len(mirror.asked)
    assert bnmf("data", "fetch", "ml-10m").code == 0
    assert len(mirror.asked) == asked  # nothing is fetched twice


def test_a_download_that_does_not_match_its_md5_leaves_nothing(
    mirror: Mirror, bnmf: Command, tmp_path: Path
) -> None:
    serve_ml_10m(mirror)
    served = mirror.folder / "data" / "ml-10m.zip"
    served.write_bytes(served.read_bytes()[:-1] + b"x")
    bnmf("data", "fetch", "ml-10m").refused("ml-10m.zip", "md5", "try again")
    (mirror.folder / "data" / "ml-10m.zip.md5").write_text("nothing here")
    bnmf("data", "fetch", "ml-10m").refused("ml-10m.zip.md5", "no md5")
    (mirror.folder / "data" / "ml-10m.zip.md5").unlink()
    bnmf("data", "fetch", "ml-10m").refused("ml-10m.zip.md5", "404", "BNMF_DATA_DIR")
    bnmf("train", "--data", "ml-20m", "--out", tmp_path / "run").refused("ml-20m", "404")
    assert not list((tmp_path / "cache" / "bnmf" / "data").iterdir())
    assert not (tmp_path / "run").exists()


def test_a_mirror_that_is_down_or_no_address(
    bnmf: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("BNMF_MIRROR", "http://127.0.0.1:9")
    bnmf("data", "fetch", "ml-1m").refused("127.0.0.1:9", "could not be fetched")
    monkeypatch.setenv("BNMF_MIRROR", f"file://{tmp_path}")
    bnmf("data", "fetch", "ml-1m").refused("BNMF_MIRROR", "http")
    for address in ("http://[", "http://a b", "http://a:b"):
        monkeypatch.setenv("BNMF_MIRROR", address)
        for command in (("data", "fetch", "ml-1m"), ("train", "--data", "ml-1m")):
            bnmf(*command).refused(address, "could not be fetched", "BNMF_MIRROR")
    # A mirror may send on the zip alone to such an address.
    monkeypatch.setattr("data_pipeline.sources._md5_in", lambda url: "0" * 32)
    monkeypatch.setenv("BNMF_MIRROR", "http://[")
    bnmf("data", "fetch", "ml-1m").refused("http://[", "could not be fetched")


def test_without_a_mirror_the_published_md5_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BNMF_DATA_DIR", str(tmp_path))
    got = ml_10m_zip(tmp_path / "ml-10m.zip")
    with pytest.raises(InputError, match=f"ml-10m.zip has md5 {got}.*{NAMES['ml-10m'].md5}"):
        locate("ml-10m")
    (tmp_path / "ml-10m.zip.md5").write_text(f"{got}  ml-10m.zip\n")
    with pytest.raises(InputError, match=r"ml-10m\.zip has md5"):  # a mirror's is no GroupLens's
        locate("ml-10m")
    monkeypatch.setenv("BNMF_MIRROR", "http://127.0.0.1:9")
    assert len(table(locate("ml-10m"))) == 3000


@pytest.mark.parametrize(
    ("name", "words"),
    [("netflix", "never downloaded"), ("demo", "not to be fetched"), ("ml-3m", "ml-1m")],
)
def test_what_cannot_be_fetched_says_why(bnmf: Command, name: str, words: str) -> None:
    bnmf("data", "fetch", name).refused(name, words)


# Layouts


def test_names_are_found_in_the_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BNMF_DATA_DIR", str(tmp_path))
    for name in ("ml-100k", "ml-1m", "ml-20m", "ml-latest-small"):
        member = tmp_path / NAMES[name].member
        member.parent.mkdir()
        delimiter = {"u.data": "\t", "ratings.dat": "::"}.get(member.name, ",")
        header = "userId,movieId,rating,timestamp\n" if delimiter == "," else ""
        member.write_text(
            header + "\n".join(delimiter.join(("1", str(i), "3.5", "9")) for i in (5, 6))
        )
        got = table(locate(name))
        assert got.to_pylist() == [
            {"user": "1", "item": str(i), "rating": 3.5, "time": 9} for i in (5, 6)
        ]


def test_both_netflix_layouts_are_the_same_ratings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BNMF_DATA_DIR", str(tmp_path))
    with pytest.raises(InputError, match=r"never downloaded.*training_set.*netflix"):
        locate("netflix")
    movies = {1: "1488844,3,2005-09-06\n822109,5,2005-05-13\n", 8: "", 30: "6,4,2004-01-02\n"}
    (tmp_path / "netflix").mkdir()
    combined = tmp_path / "netflix" / "combined_data_1.txt"
    combined.write_text("".join(f"{m}:\n{lines}" for m, lines in movies.items()))
    first = table(locate("netflix"))
    with pytest.raises(InputError, match=r"combined_data_1\.txt.*leave --time-col out"):
        table(locate(str(combined), Columns(time="date")))
    combined.unlink()
    (tmp_path / "netflix" / "training_set").mkdir()
    for m, lines in movies.items():
        (tmp_path / "netflix" / "training_set" / f"mv_{m:07d}.txt").write_text(f"{m}:\n{lines}")
    second = table(locate("netflix"))
    assert (
        first.to_pylist()
        == second.to_pylist()
        == [
            {"user": "1488844", "item": "1", "rating": 3.0, "time": 1125964800},
            {"user": "822109", "item": "1", "rating": 5.0, "time": 1115942400},
            {"user": "6", "item": "30", "rating": 4.0, "time": 1073001600},
        ]
    )


def test_netflix_movies_go_on_across_chunks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BNMF_DATA_DIR", str(tmp_path))
    lines, expected = [], []
    for m in range(1, 40):
        lines.append(f"{m}:")
        for u in range(m % 7):
            lines.append(f"{10 * m + u},{u % 5 + 1},2005-09-0{u + 1}")
            expected.append((str(10 * m + u), str(m)))
    (tmp_path / "combined_data_1.txt").write_text("\n".join(lines))
    for size in (16, 50, 1000):
        monkeypatch.setattr("data_pipeline.readers.BLOCK_BYTES", size)
        got = table(locate("netflix"))
        assert list(zip(got["user"].to_pylist(), got["item"].to_pylist(), strict=True)) == expected


def test_columns_by_any_usual_name_or_by_flag(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("stars,When,Customer-ID,isbn,x\n4,2020-01-02,7,b1,9\n")
    got = table(locate(str(path), Columns(time="When")))
    assert got.to_pylist() == [{"user": "7", "item": "b1", "rating": 4.0, "time": 1577923200}]
    other = table(locate(str(path), Columns(item="x", rating="Customer-ID", user="stars")))
    assert other.to_pylist() == [{"user": "4", "item": "9", "rating": 7.0}]


def test_a_field_in_quotes_may_hold_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.csv"
    text = "".join(f'{n},{n},{n % 5},"good\n\nand, ""long"""\n' for n in range(40))
    path.write_text("user,item,rating,review\n" + text)
    monkeypatch.setattr("data_pipeline.readers.BLOCK_BYTES", 64)
    assert table(locate(str(path)))["user"].to_pylist() == [str(n) for n in range(40)]


def test_one_column_is_not_two(bnmf: Command, tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text(HEADER + GOOD)
    outcome = bnmf("data", "ingest", path, "--out", tmp_path / "d", "--item-col", "user")
    outcome.refused("r.csv", "'user'", "--item-col")


def test_columns_are_not_named_where_they_are_known(bnmf: Command, tmp_path: Path) -> None:
    flags = ("--out", tmp_path / "d", "--rating-col", "stars")
    bnmf("data", "ingest", "demo", *flags).refused("--rating-col", "demo", "leave the flag out")
    bnmf("train", "--data", "demo", *flags).refused("--rating-col", "demo", "leave the flag out")
    (tmp_path / "t.csv").write_text("user,item,stars,timestamp\n1,2,3.5,4\n")
    outcome = bnmf("data", "ingest", "demo", "--test-file", tmp_path / "t.csv", *flags, "--json")
    assert json.loads(outcome.out)["counts"]["test"] == 1


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (["978300760", "978300761.5"], [978300760, 978300761]),
        (["2005-09-06", "2005-09-07"], [1125964800, 1126051200]),
        (["2005-09-06 12:00:00", "2005-09-06T12:00:01.25"], [1126008000, 1126008001]),
        (["2005-09-06T12:00:00Z", "2005-09-06T12:00:00+02:00"], [1126008000, 1126000800]),
    ],
)
def test_times_are_seconds_or_iso_dates(
    tmp_path: Path, written: list[str], seconds: list[int]
) -> None:
    path = tmp_path / "r.csv"
    path.write_text(HEADER + "".join(f"1,{i},3,{when}\n" for i, when in enumerate(written)))
    assert table(locate(str(path)))["time"].to_pylist() == seconds
    for kind in (pa.string(), pa.large_string()):
        times = pa.array(written, kind)
        pq.write_table(
            pa.table({"user": [1, 1], "item": [0, 1], "rating": [3, 3], "time": times}),
            tmp_path / "r.parquet",
        )
        assert table(locate(str(tmp_path / "r.parquet")))["time"].to_pylist() == seconds


def test_what_lies_beside_the_ratings_is_left_alone(tmp_path: Path) -> None:
    """GroupLens's folders and zips, by their path, hold movies and tags too."""
    folder = tmp_path / "ml-latest-small"
    folder.mkdir()
    (folder / "movies.csv").write_text("movieId,title,genres\n1,Toy Story (1995),Comedy\n")
    (folder / "README.txt").write_text("read me")
    (folder / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,2,3.5,4\n")
    archive = tmp_path / "mine.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("ml-1m/movies.dat", "1::Toy Story (1995)::Comedy\n")
        file.writestr("ml-1m/ratings.dat", "1::2::3.5::4\n")
    netflix = tmp_path / "training_set"
    netflix.mkdir()
    (netflix / "mv_0000002.txt").write_text("2:\n1,3.5,1970-01-01\n")
    for place in (folder, archive, netflix):
        (row,) = table(locate(str(place))).to_pylist()
        assert (row["user"], row["item"], row["rating"]) == ("1", "2", 3.5), place


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "ratings", "users", "items", "step"),
    [
        ("ml-100k", 100_000, 943, 1682, 1.0),
        ("ml-1m", 1_000_209, 6040, 3706, 1.0),
        ("ml-latest-small", 100_004, 671, 9066, 0.5),
    ],
)
def test_real_sets_have_their_published_sizes(
    real_data: Path, monkeypatch: pytest.MonkeyPatch,
    name: str, ratings: int, users: int, items: int, step: float,
) -> None:  # fmt: skip
    monkeypatch.setenv("BNMF_DATA_DIR", str(real_data))
    about = prepare(name).manifest
    assert (sum(about.counts.values()), about.users, about.items) == (ratings, users, items)
    assert about.rating["step"] == step and about.duplicates["count"] == 0


@pytest.mark.realdata
def test_the_official_folds_of_ml_100k(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from data_pipeline.split import Split

    monkeypatch.setenv("BNMF_DATA_DIR", str(real_data))
    folder = real_data / "ml-100k"
    of = prepare("ml-100k", split=Split(test_file=str(folder / "u1.test")))
    assert of.manifest.counts == {"train": 80_000, "valid": 0, "test": 20_000}
    users, items = of.users().ids.to_numpy(), of.items().ids.to_numpy()
    got = sorted(
        (users[u], items[i], x)
        for b in range(of.manifest.blocks)
        for block in of.part("train", b)
        for u, i, x in zip(block.user.tolist(), block.item.tolist(), block.rating, strict=True)
    )
    base = np.loadtxt(folder / "u1.base", dtype=int)
    assert got == sorted(map(tuple, base[:, :3].tolist()))


# Bad input

HEADER = "user,item,rating,timestamp\n"
GOOD = "1,2,3,4\n" * 3

BAD_TEXT = {
    "empty": ("", ["empty"]),
    "white": ("\n\n  \n", ["empty"]),
    "header only": (HEADER, ["no rows"]),
    "word": (HEADER + "1,2,3,4\n1,3,good,5\n", ["line 3", "'good'", "rating"]),
    "nan": (HEADER + "1,2,3,4\n\n1,3,NaN,5\n", ["line 4", "'NaN'"]),
    "infinite": (HEADER + "1,2,inf,4\n", ["line 2", "'inf'"]),
    "missing rating": (HEADER + "1,2,,4\n", ["line 2", "rating", "missing"]),
    "missing user": (HEADER + GOOD + ",2,3,4\n", ["line 5", "user", "missing"]),
    "short line": (HEADER + "1,2,3,4\n1,2\n", ["line 3", "4 fields", "2 found"]),
    "short first row": (HEADER + "1,2\n1,2,3,4\n", ["line 2", "4 fields", "2 found"]),
    "long line": ("1::2::3::4\n1::2::3::4::5\n", ["line 2", "4 fields", "5 found"]),
    "huge": (HEADER + "1,2,1e300,4\n", ["line 2", "'1e300'"]),
    "no time": (HEADER + "1,2,3,1.5\n1,3,3,nan\n", ["line 3", "'nan'", "time"]),
    "colon": ("1::2::3::4\na:b::c::4::5\n", ["line 2", "':'", "csv"]),
    "other coding": (HEADER + "caf\xe9,2,3,4\n", ["line 2", "UTF-8"]),
    "binary": ("\0\1\2" * 40, ["UTF-8"]),
    "after lines in quotes": (HEADER + '"a\nb",2,3,4\n"c\n\n",2,good,4\n', ["line 4", "'good'"]),
    "nothing but commas": (HEADER + "1,2,3,4\n\n,,,\n", ["line 4", "user", "missing"]),
    "nothing but blanks": ("1::2::3::4\n\n  \n", ["line 3", "4 fields", "1 found"]),
    "open quote": (HEADER + '1,2,3,4\n"1,3,3,5\n1,4,3,5\n', ["line 3", "1 found"]),
    "endless quote": (HEADER + GOOD + '"' + "1,2,3,5\n" * 20_000, ["line 5", "field limit"]),
    "bad time": (HEADER + "1,2,3,4\n1,3,3,soon\n", ["line 3", "'soon'", "time"]),
    "no item": ("user,thing,rating\n1,2,3\n", ["item", "--item-col", "user, thing, rating"]),
    "no rating": ("user,item\n1,2\n", ["rating", "--rating-col"]),
    "too many": ("1,2,3,4,5\n1,2,3,4,5\n", ["5 columns", "header"]),
    "colliding ids": (HEADER + "a,2,3,4\n a,3,3,4\n", ["'a'", "' a'", "white space"]),
    "blank": (HEADER + "1,3,4,5\n  ,2,3,4\n", ["line 3", "user", "missing"]),
}


@pytest.mark.parametrize("case", BAD_TEXT)
def test_bad_text(bnmf: Command, tmp_path: Path, case: str) -> None:
    text, words = BAD_TEXT[case]
    path = tmp_path / "r.csv"
    path.write_text(text, "latin-1")
    bnmf("data", "ingest", path, "--out", tmp_path / "d").refused("r.csv", *words)
    bnmf("train", "--data", path, "--out", tmp_path / "run").refused("r.csv", *words)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.csv"]


def test_bad_parquet(bnmf: Command, tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    good: dict[str, object] = {"user": [1, 2], "item": ["a", "b"], "rating": [3.0, 4.0]}
    cases: list[tuple[dict[str, object], list[str]]] = [
        ({"rating": [1.0, float("nan")]}, ["row 2", "rating", "nan"]),
        ({"rating": [None, 1.0]}, ["row 1", "rating", "missing"]),
        ({"rating": ["4", "bad"]}, ["row 2, column rating", "must be numbers", "bad"]),
        ({"user": [1.0, 2.5]}, ["row 2, column user", "whole numbers"]),
        ({"time": ["2005-09-06", ""]}, ["row 2, column time", "seconds or ISO dates"]),
        ({"time": ["7", ""]}, ["row 2, column time", "seconds or ISO dates"]),
        ({"time": ["7", None]}, ["row 2", "time", "missing"]),
        ({"time": ["7", "2005-09-06"]}, ["column time", "seconds or ISO dates", "2005-09-06"]),
        ({"user": [[1], [2]]}, ["column user", "list"]),
        ({"item": ["a", None]}, ["row 2", "item", "missing"]),
        (dict.fromkeys(good, pa.array([], pa.int64())), ["holds no ratings"]),
    ]
    for change, words in cases:
        pq.write_table(pa.table({**good, **change}), path)
        outcome = bnmf("data", "ingest", path, "--out", tmp_path / "d")
        outcome.refused("r.parquet", *words)
    pq.write_table(pa.table(good), path)
    whole = path.read_bytes()
    for content in (whole[:-30], b"PAR1", whole[:20] + b"\x00" * 20 + whole[40:]):
        path.write_bytes(content)
        bnmf("data", "ingest", path, "--out", tmp_path / "d").refused("r.parquet")
    assert [p.name for p in tmp_path.iterdir()] == ["r.parquet"]


@pytest.mark.parametrize("name", ["../evil.csv", "/etc/ratings.csv", "a/../../b.csv", "C:\\x.csv"])
def test_a_zip_that_would_escape_is_refused(bnmf: Command, tmp_path: Path, name: str) -> None:
    path = tmp_path / "r.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ratings.csv", HEADER + GOOD)
        archive.writestr(name, HEADER + GOOD)
    bnmf("data", "ingest", path, "--out", tmp_path / "d").refused("r.zip", "escape")


def test_truncated_archives(bnmf: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text = HEADER + "".join(
        f"{u},{i},3,{rng.integers(10**9)}\n" for u in range(99) for i in range(99)
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ratings.csv", text)
    whole = buffer.getvalue()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 255
    packed = gzip.compress(text.encode())
    for name, content in (
        ("a.zip", whole[: len(whole) // 2]),
        ("b.zip", bytes(damaged)),
        ("c.csv.gz", packed[: len(packed) // 2]),
        ("d.csv.gz", b"not gzip at all"),
        ("e.zip", b""),
    ):
        (tmp_path / name).write_bytes(content)
        bnmf("data", "ingest", tmp_path / name, "--out", tmp_path / "d").refused(name)
    assert not (tmp_path / "d").exists()


def test_paths_that_hold_no_ratings(bnmf: Command, tmp_path: Path) -> None:
    out = tmp_path / "d"
    bnmf("data", "ingest", tmp_path / "no.csv", "--out", out).refused("no.csv", "ml-1m")
    (tmp_path / "empty").mkdir()
    bnmf("data", "ingest", tmp_path / "empty", "--out", out).refused("empty", "no file of ratings")
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "a.csv").write_text(HEADER + GOOD)
    pq.write_table(
        pa.table({"user": [1], "item": [2], "rating": [3]}), tmp_path / "mixed" / "b.parquet"
    )
    bnmf("data", "ingest", tmp_path / "mixed", "--out", out).refused("several kinds", "glob")
    path = tmp_path / "r.csv"
    path.write_text(HEADER + GOOD)
    bnmf("data", "ingest", path, "--out", out, "--user-col", "who").refused("'who'", "--user-col")
    bnmf("data", "ingest", path, "--out", out, "--duplicates", "first").refused("--duplicates")
    bnmf("data", "ingest", path, "--out", out, "--blocks", "9").refused("--blocks 9", "1 users")
    path.write_text("1,2,3\n")
    bnmf("data", "ingest", path, "--out", out, "--user-col", "u").refused("--user-col", "header")
    out.mkdir()
    (out / "mine").write_text("")
    bnmf("data", "ingest", path, "--out", out).refused(str(out), "exists")
    bnmf("data", "describe", out).refused(str(out), "not an ingested dataset")


# The command


def test_list_ingest_and_describe(bnmf: Command, ratings_csv: Path, tmp_path: Path) -> None:
    assert set(json.loads(bnmf("data", "list", "--json").out)) == set(NAMES)
    assert "netflix" in bnmf("data", "list").out
    made = bnmf("data", "ingest", ratings_csv, "--out", tmp_path / "d", "--blocks", "2", "--json")
    assert made.code == 0, made.err
    about = json.loads(made.out)
    assert about["blocks"] == 2 and sum(about["counts"].values()) == 1400
    assert json.loads(bnmf("data", "describe", tmp_path / "d", "--json").out) == about
    assert "70 x 50" in bnmf("data", "describe", tmp_path / "d").out
    run = bnmf("train", "--data", tmp_path / "d", "--out", tmp_path / "run", "--rank", "3",
               "--sweeps", "10")  # fmt: skip
    assert run.code == 0, run.err


def test_demo_is_as_it_says() -> None:
    """Half stars, skewed, and the truth is E[rating | rate]: within 5 standard errors by decile."""
    got = next(locate("demo").batches())
    rating, truth = got["rating"].to_numpy(), got["truth"].to_numpy()
    assert 90_000 < len(rating) < 110_000
    assert set(np.unique(rating)) == set(np.arange(0.5, 5.5, 0.5))
    pairs = set(zip(got["user"].to_pylist(), got["item"].to_pylist(), strict=True))
    assert len(pairs) == len(rating)
    popularity = np.sort(np.bincount(got["item"].to_numpy()))[::-1]
    assert popularity[:80].sum() > 0.3 * len(rating)
    edges = np.quantile(truth, np.linspace(0, 1, 11))
    for low, high in itertools.pairwise(edges):
        error = (rating - truth)[(truth >= low) & (truth <= high)]
        assert abs(error.mean()) < 5 * error.std() / np.sqrt(len(error))
    floor = np.sqrt(np.mean((rating - truth) ** 2))
    assert floor < 0.85 * rating.std()
