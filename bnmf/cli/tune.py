"""`bnmf tune`: settings that predict validation ratings better."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bnmf import tuning
from bnmf.cli.live import LiveLine
from bnmf.cli.report import in_words
from bnmf.cli.settings import option, takes_settings


@takes_settings
def tune(
    *,
    trials: Annotated[int | None, option("Trials in all; 50 by default.")] = None,
    search: Annotated[
        str | None,
        option(
            f"What is searched, of {', '.join(tuning.SEARCHED).replace('_', '-')}: NAME or "
            "NAME=LOW:HIGH, between commas; step-size by default."
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option(help="Trials at once, each with the ratings in a process of its own.")
    ] = 1,
    out: Annotated[
        Path | None, option("The search's folder; tunes/NAME-001 and so on by default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the search in --out.")
    ] = False,
    config: Annotated[Path | None, option("A TOML file of settings; flags override it.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the best trial as one JSON object.")
    ] = False,
    **settings: Any,
) -> None:
    """Search the settings that predict validation ratings best; test ratings are left alone."""
    with LiveLine() as live:
        tuned = tuning.tune(
            trials=trials,
            search=search,
            jobs=jobs,
            out=out,
            resume=resume,
            config=config,
            listener=live.trial,
            progress=live.reading,
            **settings,
        )
    if as_json:
        found = {**tuned.best._asdict(), "first_rmse": tuned.first.rmse}
        about = {"tune": str(tuned.path), "config": str(tuned.config), "outcomes": tuned.outcomes}
        print(json.dumps({**about, **found}))
        return
    console = Console(highlight=False, soft_wrap=True)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in tuned.outcomes.items())
    console.print(f"{sum(tuned.outcomes.values())} trials: {counts}")
    for trial, words in ((tuned.first, "where it began"), (tuned.best, "best")):
        rmse = "none" if trial.rmse is None else f"{trial.rmse:.4f}"
        settings_tried = in_words(trial.settings)
        console.print(f"valid RMSE {rmse}, {words} (trial {trial.number}): {settings_tried}")
    console.print(f"train with it: bnmf train --config {tuned.config}")
