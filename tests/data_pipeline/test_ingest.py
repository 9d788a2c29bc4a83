"""Ingest against brute force: nothing lost, nothing moved by the order of rows."""

from __future__ import annotations

import gzip
import itertools
import json
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.dataset import FORMAT, Dataset
from data_pipeline.errors import InputError
from data_pipeline.ingest import ingest, prepare
from data_pipeline.partition import deal, default_blocks
from data_pipeline.readers import Columns
from data_pipeline.sources import locate
from data_pipeline.split import PARTS, Split

Row = tuple[object, object, float, int]


def rows(seed: int = 0, users: int = 30, items: int = 20, n: int = 240) -> list[Row]:
    """Distinct pairs with half stars and distinct times, in random order."""
    rng = np.random.default_rng(seed)
    cells = rng.choice(users * items, n, replace=False)
    times = rng.permutation(n)
    return [
        (int(c // items) + 5, int(c % items) + 100, float(rng.integers(1, 11)) / 2, 10_000 + int(t))
        for c, t in zip(cells, times, strict=True)
    ]


def write_csv(path: Path, of: list[Row], header: str = "user,item,rating,timestamp") -> Path:
    lines = [header] if header else []
    path.write_text("\n".join([*lines, *(",".join(map(str, row)) for row in of)]) + "\n")
    return path


def made(path: Path | str, out: Path, **options: object) -> Dataset:
    test = locate(str(options.pop("test"))) if "test" in options else None
    return ingest(locate(str(path)), out, test=test, **options)  # type: ignore[arg-type]


def contents(of: Dataset, part: str) -> list[Row]:
    """Raw rows of a part, in the dataset's order, checking on the way that blocks are blocks."""
    users, items = of.users(), of.items()
    found: list[Row] = []
    for b in range(of.manifest.blocks):
        for c, columns in enumerate(of.part(part, b)):
            for column, offsets, k in (
                (columns.user, users.offsets, b),
                (columns.item, items.offsets, c),
            ):
                assert ((column >= offsets[k]) & (column < offsets[k + 1])).all()
            pairs = list(zip(columns.user.tolist(), columns.item.tolist(), strict=True))
            assert pairs == sorted(set(pairs))
            times = columns.time if columns.time is not None else np.zeros(len(pairs), int)
            found += [
                (users.ids[u].as_py(), items.ids[i].as_py(), float(x), int(t))
                for (u, i), x, t in zip(pairs, columns.rating, times, strict=True)
            ]
    return found


def everything(of: Dataset) -> list[Row]:
    return sorted(itertools.chain.from_iterable(contents(of, part) for part in PARTS))


@pytest.mark.parametrize("blocks", [1, 3])
def test_every_rating_arrives_once_with_its_raw_ids(tmp_path: Path, blocks: int) -> None:
    source = rows()
    of = made(write_csv(tmp_path / "r.csv", source), tmp_path / "d", blocks=blocks)
    assert everything(of) == sorted(source)
    train = contents(of, "train")
    for vocabulary, side in ((of.users(), 0), (of.items(), 1)):
        counted = [sum(row[side] == one for row in train) for one in vocabulary.ids.to_pylist()]
        assert vocabulary.counts.tolist() == counted
        assert len(vocabulary.offsets) == blocks + 1
    about = of.manifest
    assert about.counts == {part: len(contents(of, part)) for part in PARTS}
    ratings = [row[2] for row in train]
    assert about.rating["mean"] == pytest.approx(np.mean(ratings), rel=1e-9)
    assert (about.rating["min"], about.rating["max"]) == (min(ratings), max(ratings))
    assert about.rating["step"] == 0.5
    assert Dataset(tmp_path / "d").manifest == about


def layouts(folder: Path, source: list[Row]) -> dict[str, Path | str]:
    """The same ratings in every format."""
    table = pa.table(
        dict(zip(("UserID", "movie_id", "Rating", "ts"), zip(*source, strict=True), strict=True))
    )
    text = write_csv(folder / "plain.csv", source).read_text()
    found: dict[str, Path | str] = {"csv": folder / "plain.csv"}
    for name, delimiter in (("tabs.tsv", "\t"), ("colons.dat", "::"), ("semi.csv", ";")):
        (folder / name).write_text(text.replace(",", delimiter))
        found[name] = folder / name
    for name, delimiter in (("u.data", "\t"), ("ratings.dat", "::"), ("bare.csv", ",")):
        (folder / name).write_text(text.split("\n", 1)[1].replace(",", delimiter))
        found[name] = folder / name
    (folder / "dos.csv").write_text("\ufeff" + text.replace("\n", "\r\n"), newline="")
    found["dos"] = folder / "dos.csv"
    (folder / "quoted.csv").write_text(text.replace("user,", '"user",'))
    found["quoted"] = folder / "quoted.csv"
    with gzip.open(folder / "r.csv.gz", "wt") as file:
        file.write(text)
    found["gz"] = folder / "r.csv.gz"
    with zipfile.ZipFile(folder / "r.zip", "w") as archive:
        archive.writestr("deep/ratings.csv", text)
        archive.writestr("deep/README", "read me")
    found["zip"] = folder / "r.zip"
    pq.write_table(table, folder / "r.parquet", row_group_size=50)
    found["parquet"] = folder / "r.parquet"
    as_text = table.set_column(0, "user", table["UserID"].cast(pa.string()).dictionary_encode())
    seconds = table["ts"].cast(pa.timestamp("s"))
    pq.write_table(as_text.set_column(3, "date", seconds), folder / "text.parquet")
    found["text parquet"] = folder / "text.parquet"
    (folder / "parts").mkdir()
    for k in range(3):
        pq.write_table(table.slice(k * 80, 80), folder / "parts" / f"part-{k}.parquet")
    found["folder"] = folder / "parts"
    found["glob"] = str(folder / "parts" / "*.parquet")
    return found


def test_every_format_gives_the_same_dataset(tmp_path: Path) -> None:
    source = rows()
    digests = {}
    for name, path in layouts(tmp_path, source).items():
        of = made(path, tmp_path / "made" / name.replace(" ", "-"), seed=4, blocks=2)
        assert everything(of) == sorted(source), name
        digests[name] = of.manifest.digest
    assert len(set(digests.values())) == 1, digests


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(tmp_path_factory, seed, random) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("order")
    source = rows(seed % 7)
    source += [(*row[:2], 0.5, row[3] - 5000) for row in source[:9]]  # older duplicates
    source += [(*row[:2], 0.5, row[3]) for row in source[20:25]]  # at the same time
    first = made(write_csv(folder / "a.csv", source), folder / "a", seed=seed, blocks=2)
    random.shuffle(source)
    second = made(write_csv(folder / "b.csv", source), folder / "b", seed=seed, blocks=2)
    assert first.manifest.digest == second.manifest.digest
    assert first.manifest.duplicates == {"policy": "last", "count": 14}


def test_the_seed_decides_the_split(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "r.csv", rows())
    digests = {made(path, tmp_path / f"d{s}", seed=s).manifest.digest for s in (0, 1, 2)}
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("policy", "expected"), [("last", [4.0, 5.0, 3.0]), ("mean", [2.5, 4.0, 3.0])]
)
def test_duplicated_pairs(tmp_path: Path, policy: str, expected: list[float]) -> None:
    doubled: list[Row] = [
        (1, 1, 4.0, 50), (1, 1, 1.0, 40), (1, 2, 3.0, 7), (1, 2, 5.0, 7), (2, 1, 3.0, 9),
    ]  # fmt: skip
    path = write_csv(tmp_path / "r.csv", doubled)
    of = made(path, tmp_path / "d", split=Split((1.0, 0.0, 0.0)), duplicates=policy)
    assert [row[2] for row in sorted(contents(of, "train"))] == expected
    assert of.manifest.duplicates == {"policy": policy, "count": 2}
    with pytest.raises(InputError, match=r"r\.csv: user 1 rates item 1 2 times.*--duplicates"):
        made(path, tmp_path / "e", duplicates="error")
    assert not (tmp_path / "e").exists()


def test_without_times_the_last_in_the_file_wins(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("user,item,rating\na,x,5\na,x,1\nb,x,2\na,x,3\n")
    of = made(path, tmp_path / "d", split=Split((1.0, 0.0, 0.0)))
    assert [row[:3] for row in contents(of, "train")] == [("a", "x", 3.0), ("b", "x", 2.0)]


# Splits


@pytest.mark.parametrize(
    ("shares", "counts"),
    [
        ((0.75, 0.125, 0.125), (180, 30, 30)),
        ((0.8, 0.0, 0.2), (192, 0, 48)),
        ((1.0, 0.0, 0.0), (240, 0, 0)),
    ],
)
def test_shares_are_exact(
    tmp_path: Path, shares: tuple[float, float, float], counts: tuple[int, int, int]
) -> None:
    of = made(write_csv(tmp_path / "r.csv", rows()), tmp_path / "d", split=Split(shares))
    assert tuple(of.manifest.counts.values()) == counts


def test_folds_test_every_rating_once(tmp_path: Path) -> None:
    source = rows()
    path = write_csv(tmp_path / "r.csv", source)
    tested = []
    for k in (1, 2, 3):
        of = made(path, tmp_path / f"d{k}", split=Split(fold=(k, 3)), seed=1)
        tested += contents(of, "test")
        assert of.manifest.counts["valid"] == 0
    assert sorted(tested) == sorted(source)


def test_a_split_by_time_puts_the_past_before_the_future(tmp_path: Path) -> None:
    of = made(write_csv(tmp_path / "r.csv", rows()), tmp_path / "d", split=Split(by_time=True))
    times = [[row[3] for row in contents(of, part)] for part in PARTS]
    assert max(times[0]) < min(times[1]) and max(times[1]) < min(times[2])
    path = tmp_path / "timeless.csv"
    path.write_text("user,item,rating\n1,2,3\n1,3,4\n")
    with pytest.raises(InputError, match="--time-col"):
        made(path, tmp_path / "e", split=Split(by_time=True))


def test_the_pairs_of_a_test_file_leave_the_training_part(tmp_path: Path) -> None:
    source = rows()
    held: list[Row] = [(*row[:2], 1.5, row[3]) for row in source[::8]]
    held.append((999, 100, 2.0, 10_000))  # a user that only the test file knows
    path = write_csv(tmp_path / "r.csv", source)
    test = write_csv(tmp_path / "t.csv", held)
    of = made(path, tmp_path / "d", split=Split(test_file=str(test)), test=test)
    assert sorted(contents(of, "test")) == sorted(held)
    assert sorted(contents(of, "train")) == sorted(set(source) - set(source[::8]))
    assert of.users().counts[of.users().lookup([999])].tolist() == [0]
    assert of.manifest.duplicates["count"] == 0
    with pytest.raises(InputError, match=r"^--test-file .*r\.csv leaves none of the 240 ratings"):
        prepare(str(path), split=Split(test_file=str(path)))


# Blocks


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200), st.integers(1, 8))
def test_groups_are_balanced(counts: list[int], groups: int) -> None:
    group = deal(np.array(counts), groups)
    sizes = np.bincount(group, minlength=groups)
    assert sizes.max() - sizes.min() <= 1
    totals = np.bincount(group, counts, minlength=groups)
    # dealt forth and back, two groups differ by at most the largest count
    assert totals.max() - totals.min() <= max(counts)


def test_default_blocks_never_exceed_users_or_items() -> None:
    assert default_blocks(10**7, 3, 10**6) == 3
    assert default_blocks(10**7, 10**6, 2) == 2
    assert [default_blocks(n, 10**6, 10**6) for n in (10**3, 10**5, 10**6, 10**8)] == [1, 2, 4, 8]


# The cache and ingested folders


def test_a_source_is_ingested_once_for_each_set_of_options(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "r.csv", rows())
    first = prepare(str(path), seed=1)
    stamp = (first.path / "manifest.json").stat().st_mtime_ns
    assert prepare(str(path), seed=1).path == first.path
    assert (first.path / "manifest.json").stat().st_mtime_ns == stamp
    others = [
        prepare(str(path), seed=2),
        prepare(str(path), seed=1, blocks=2),
        prepare(str(path), seed=1, split=Split((0.8, 0.0, 0.2))),
        prepare(str(path), seed=1, duplicates="mean"),
        prepare(str(path), seed=1, columns=Columns(user="item", item="user")),
    ]
    write_csv(path, rows(9))
    others.append(prepare(str(path), seed=1))
    assert len({first.path, *(of.path for of in others)}) == 7


def test_an_ingested_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "r.csv", rows())
    of = made(path, tmp_path / "d", blocks=2, seed=8)
    assert prepare(str(tmp_path / "d"), seed=3).manifest == of.manifest
    assert prepare(str(tmp_path / "d"), blocks=2, split=Split()).manifest == of.manifest
    with pytest.raises(InputError, match=r"--blocks 3.*2 x 2.*ingest again"):
        prepare(str(tmp_path / "d"), blocks=3)
    with pytest.raises(InputError, match=r"--split.*ingest again"):
        prepare(str(tmp_path / "d"), split=Split((0.8, 0.0, 0.2)))
    assert prepare(str(tmp_path / "d"), duplicates="last").manifest == of.manifest
    with pytest.raises(InputError, match=r"--duplicates mean.*with last.*ingest again"):
        prepare(str(tmp_path / "d"), duplicates="mean")
    with pytest.raises(InputError, match=r"--item-col.*ingested already"):
        prepare(str(tmp_path / "d"), columns=Columns(item="item"))


def test_what_was_chosen_for_a_cached_dataset_finds_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As --resume asks: the number of blocks in full, the test file by its whole path."""
    source = rows()
    path = str(write_csv(tmp_path / "r.csv", source))
    write_csv(tmp_path / "t.csv", source[::8])
    monkeypatch.chdir(tmp_path)
    for short, whole in ((None, None), ("t.csv", str(tmp_path / "t.csv"))):
        first = prepare(path, split=Split(test_file=short))
        again = prepare(path, split=Split(test_file=whole), blocks=first.manifest.blocks)
        assert again.path == first.path
    assert prepare(path, blocks=2).manifest.blocks == 2


def test_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    of = made(write_csv(tmp_path / "r.csv", rows()), tmp_path / "d", blocks=2)
    before = contents(of, "train")
    rng = np.random.default_rng(0)
    for name in ("train/row-block-000.parquet", "users.parquet"):
        path = of.path / name
        whole = path.read_bytes()
        for at in rng.choice(len(whole), 50, replace=False):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << int(rng.integers(8))
            path.write_bytes(bytes(flipped))
            with pytest.raises(InputError, match=f"{path.name} is damaged.*ingest again"):
                contents(of, "train")
        path.write_bytes(whole)
    assert contents(of, "train") == before


def test_two_that_ingest_the_same_at_once_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(write_csv(tmp_path / "r.csv", rows()))
    assign, faster = Split.assign, []

    def overtaken(self: Split, *arguments: object) -> object:
        monkeypatch.undo()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        faster.append(prepare(path))
        return assign(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Split, "assign", overtaken)
    slower = prepare(path)
    assert slower.path == faster[0].path and slower.manifest == faster[0].manifest
    assert len(list(slower.path.parent.iterdir())) == 1


def test_a_cached_dataset_with_a_damaged_manifest_is_made_again(tmp_path: Path) -> None:
    path = str(write_csv(tmp_path / "r.csv", rows()))
    first = prepare(path)
    (first.path / "manifest.json").write_text("{")
    assert prepare(path).manifest == first.manifest


@pytest.mark.parametrize(
    ("ratings", "scale"),
    [
        ([4.1, 4.0, 0.3], (0.3, 4.1, 0.1)),
        ([2.0, 2.0, 2.0], (2.0, 2.0, 1.0)),
        ([1e-20, 3e-20, 5e-20], (1e-20, 5e-20, 2e-20)),
        (np.linspace(1.0, 11.0, 2001).tolist(), (1.0, 11.0, 0.01)),
    ],
    ids=["tenths", "one value", "tiny", "continuous"],
)
def test_the_scale_of_the_ratings(
    tmp_path: Path, ratings: list[float], scale: tuple[float, float, float]
) -> None:
    path = tmp_path / "r.csv"
    path.write_text("user,item,rating\n" + "".join(f"1,{i},{x}\n" for i, x in enumerate(ratings)))
    about = made(path, tmp_path / "d", split=Split((1.0, 0.0, 0.0))).manifest.rating
    assert (about["min"], about["max"], about["step"]) == scale


def test_damaged_datasets_are_named(tmp_path: Path) -> None:
    of = made(write_csv(tmp_path / "r.csv", rows()), tmp_path / "d", blocks=2)
    block = tmp_path / "d" / "train" / "row-block-001.parquet"
    whole = block.read_bytes()
    flipped = bytearray(whole)
    flipped[60] ^= 255
    for content in (whole[:-20], b"", bytes(flipped)):
        block.write_bytes(content)
        with pytest.raises(InputError, match=r"row-block-001\.parquet.*ingest again"):
            of.part("train", 1)
    block.write_bytes((tmp_path / "d" / "train" / "row-block-000.parquet").read_bytes())
    with pytest.raises(InputError, match=r"row-block-001\.parquet is damaged"):
        of.part("train", 1)
    other = made(write_csv(tmp_path / "s.csv", rows(1, users=40)), tmp_path / "e", blocks=2)
    (tmp_path / "d" / "users.parquet").write_bytes((other.path / "users.parquet").read_bytes())
    with pytest.raises(InputError, match=r"users\.parquet is damaged"):
        of.users()
    (tmp_path / "d" / "users.parquet").unlink()
    with pytest.raises(InputError, match=r"users\.parquet"):
        of.users()
    (tmp_path / "d" / "manifest.json").write_text(json.dumps({"format": FORMAT}))
    with pytest.raises(InputError, match=r"manifest\.json"):
        Dataset(tmp_path / "d")
    with pytest.raises(InputError, match="not an ingested dataset"):
        Dataset(tmp_path)
