"""`bnmf train`: from ratings to a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bnmf import api
from bnmf.cli.live import LiveLine
from bnmf.cli.report import show, warn
from bnmf.cli.settings import option, takes_settings
from bnmf.run import read_json


@takes_settings
def train(
    *,
    out: Annotated[
        Path | None, option("The run folder; runs/NAME-001 and so on by default.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    config: Annotated[Path | None, option("A TOML file of settings; flags override it.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
    **settings: Any,
) -> None:
    """Sample the posterior of a factorization of a table of ratings."""
    with LiveLine() as live:
        run = api.train(
            out=out,
            resume=resume,
            config=config,
            started=live.started,
            listener=live.sweep,
            progress=live.reading,
            **settings,
        )
    result = read_json(run.path / "report.json")
    if as_json:
        print(json.dumps({"run": str(run.path), **result}))
    else:
        show(str(run.path), result)
    warn(result)
