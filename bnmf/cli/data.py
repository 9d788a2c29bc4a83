"""`bnmf data`: find, fetch, ingest and describe ratings; and the flags it shares with train."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bnmf.cli.live import LiveLine
from data_pipeline import sources
from data_pipeline.dataset import Dataset, Manifest
from data_pipeline.errors import InputError
from data_pipeline.ingest import ingest as ingest_source
from data_pipeline.sources import NAMES, Columns
from data_pipeline.split import split_from_flags

app = typer.Typer(help="Find, fetch, ingest and describe ratings.")

SplitFlag = Annotated[
    str | None,
    typer.Option(help="Shares TRAIN:VALID:TEST of the ratings; 0.75:0.125:0.125 by default."),
]
SplitByFlag = Annotated[
    str | None, typer.Option(help="'time': the earliest ratings train, the latest test.")
]
FoldsFlag = Annotated[int | None, typer.Option(help="Number of folds; with --fold.")]
FoldFlag = Annotated[int | None, typer.Option(help="The fold that tests, from 1.")]
TestFileFlag = Annotated[
    str | None, typer.Option(help="A file of test ratings; its pairs leave the training part.")
]
DuplicatesFlag = Annotated[
    str | None, typer.Option(help="Of a pair's ratings keep the last (default), mean, or error.")
]
UserColFlag = Annotated[str | None, typer.Option(help="Name of the column of users.")]
ItemColFlag = Annotated[str | None, typer.Option(help="Name of the column of items.")]
RatingColFlag = Annotated[str | None, typer.Option(help="Name of the column of ratings.")]
TimeColFlag = Annotated[str | None, typer.Option(help="Name of the column of times.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("list")
def list_sets(as_json: JsonFlag = False) -> None:
    """The data sets known by name."""
    if as_json:
        print(json.dumps({name: named.about for name, named in NAMES.items()}))
        return
    table = Table(box=None, show_header=False)
    for name, named in NAMES.items():
        table.add_row(name, named.about)
    Console().print(table)


@app.command()
def fetch(name: Annotated[str, typer.Argument(help="See `bnmf data list`.")]) -> None:
    """Download a data set into the cache and check it."""
    with LiveLine() as live:
        path = sources.fetch(name, live.reading)
    print(path)


@app.command()
def ingest(
    source: Annotated[str, typer.Argument(help="A data set's name or a path of ratings.")],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    blocks: Annotated[int | None, typer.Option(help="Blocks a side of the grid.", min=1)] = None,
    split: SplitFlag = None,
    folds: FoldsFlag = None,
    fold: FoldFlag = None,
    test_file: TestFileFlag = None,
    split_by: SplitByFlag = None,
    duplicates: DuplicatesFlag = None,
    user_col: UserColFlag = None,
    item_col: ItemColFlag = None,
    rating_col: RatingColFlag = None,
    time_col: TimeColFlag = None,
    seed: Annotated[int, typer.Option(help="Seed of the split.", min=0)] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Write ratings as a blocked Parquet dataset."""
    policy = duplicates or "last"
    if policy not in ("last", "error", "mean"):
        raise InputError(f"--duplicates {policy}: choose from last, error, mean")
    columns = Columns(user_col, item_col, rating_col, time_col)
    with LiveLine() as live:
        ratings, test = sources.locate_both(source, test_file, columns, live.reading)
        made = ingest_source(
            ratings,
            out,
            split=split_from_flags(split, folds, fold, test_file, split_by),
            seed=seed,
            blocks=blocks,
            duplicates=policy,
            test=test,
            progress=live.reading,
        )
    _show(made, as_json)


@app.command()
def describe(
    folder: Annotated[Path, typer.Argument(help="An ingested dataset.")], as_json: JsonFlag = False
) -> None:
    """What a dataset holds."""
    _show(Dataset(folder), as_json)


def _show(made: Dataset, as_json: bool) -> None:
    about = made.manifest
    if as_json:
        print(json.dumps({"path": str(made.path), **asdict(about)}))
        return
    table = Table(box=None, show_header=False)
    for name, value in _lines(made, about):
        table.add_row(name, value)
    Console().print(table)


def _lines(made: Dataset, about: Manifest) -> Iterator[tuple[str, str]]:
    yield "dataset", str(made.path)
    yield "name", about.name
    yield "users x items", f"{about.users:,} x {about.items:,}"
    yield "ratings", ", ".join(f"{part} {count:,}" for part, count in about.counts.items())
    yield "scale", "{min:g} to {max:g}, {step:g} apart, mean {mean:.4f}".format(**about.rating)
    yield "split", ", ".join(f"{name} {value}" for name, value in about.split.items())
    yield "duplicates", "{count:,} ({policy})".format(**about.duplicates)
    yield "blocks", f"{about.blocks} x {about.blocks}, {_balance(made)}"
    yield "digest", about.digest


def _balance(made: Dataset) -> str:
    blocks = range(made.manifest.blocks)
    sizes = [len(block.rating) for b in blocks for block in made.part("train", b)]
    return f"the largest {max(sizes) * len(sizes) / sum(sizes):.2f} x the mean"
