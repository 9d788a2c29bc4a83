"""`bnmf evaluate`: how good a run's held-out predictions are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bnmf import evaluation
from bnmf.cli.report import show, warn
from bnmf.run import Run


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    inference_data: Annotated[
        Path | None, typer.Option(help="A netCDF file to write the traces to, for ArviZ.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """RMSE, MAE, log predictive density and interval coverage of held-out ratings; convergence."""
    opened = Run(run)
    if inference_data is not None:
        evaluation.write_inference_data(opened, inference_data)
    report = evaluation.evaluate(opened)
    if as_json:
        print(json.dumps(report))
    else:
        show(str(run), report)
    warn(report)
