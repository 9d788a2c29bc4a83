"""`bnmf experiment`: a paper's experiment, made again."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bnmf.experiments import EXPERIMENTS
from bnmf.experiments.base import one_thread
from bnmf.experiments.report import write
from data_pipeline.errors import InputError


def experiment(
    name: Annotated[str, typer.Argument(help="An experiment's name, or 'list'.")],
    quick: Annotated[bool, typer.Option("--quick", help="A smaller form, in seconds.")] = False,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("experiments"),
    seed: Annotated[int, typer.Option(min=0, help="Of all random numbers.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run one of the papers' experiments: a table, a figure, and which claims hold."""
    if name == "list":
        _list(as_json)
        return
    if name not in EXPERIMENTS:
        raise InputError(f"experiment {name} is unknown: see `bnmf experiment list`")
    if out.is_file():
        raise InputError(f"--out {out} is a file: name a folder")
    began = time.monotonic()
    with one_thread():
        result = EXPERIMENTS[name].run(quick, seed)
    seconds = time.monotonic() - began
    command = f"bnmf experiment {name}{' --quick' if quick else ''} --seed {seed}"
    paths = write(EXPERIMENTS[name], result, command, out)
    if as_json:
        claims = [claim._asdict() for claim in result.claims]
        files = {suffix: str(path) for suffix, path in paths.items()}
        print(json.dumps({"name": name, "seconds": round(seconds, 1), **files, "claims": claims}))
        return
    for claim in result.claims:
        print(f"{'holds' if claim.holds else 'does not hold'}: {claim.says}: {claim.found}")
    for path in paths.values():
        print(path)


def _list(as_json: bool) -> None:
    known = EXPERIMENTS.values()
    if as_json:
        print(json.dumps([{"name": e.name, "source": e.source, "shows": e.shows} for e in known]))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    for one in known:
        table.add_row(one.name, f"{one.shows} ({one.source})")
    Console().print(table)
