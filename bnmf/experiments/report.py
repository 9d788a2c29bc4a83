"""An experiment's result on disk: NAME.parquet, NAME.md and NAME.png."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bnmf.experiments.base import Experiment, Result
from data_pipeline.errors import InputError
from data_pipeline.files import replace_file


def write(experiment: Experiment, result: Result, command: str, out: Path) -> dict[str, Path]:
    """Write all three; returns their paths by suffix.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "experiments need matplotlib and optuna: pip install 'bnmf[experiments]'"
        ) from error
    out.mkdir(parents=True, exist_ok=True)
    paths = {suffix: out / f"{experiment.name}.{suffix}" for suffix in ("parquet", "md", "png")}
    figure = Figure(figsize=(9.0, 5.5), dpi=120, layout="constrained")
    result.draw(figure)
    with replace_file(paths["parquet"]) as temporary:
        pq.write_table(pa.table(dict(result.table)), temporary)
    with replace_file(paths["md"]) as temporary:
        temporary.write_text(markdown(experiment, result, command), encoding="utf-8")
    with replace_file(paths["png"]) as temporary:
        figure.savefig(temporary, format="png")
    return paths


def markdown(experiment: Experiment, result: Result, command: str) -> str:
    """The table and the verdicts, for people."""
    names = list(result.table)
    rows = zip(*result.table.values(), strict=True)
    lines = [
        f"# {experiment.name}",
        "",
        f"{experiment.shows} ({experiment.source})",
        "",
        f"Made by `{command}`.",
        "",
        "| " + " | ".join(names) + " |",
        "|" + "---|" * len(names),
        *("| " + " | ".join(_cell(value) for value in row) + " |" for row in rows),
        "",
        "| claim | found | holds |",
        "|---|---|---|",
        *(f"| {c.says} | {c.found} | {'yes' if c.holds else '**no**'} |" for c in result.claims),
    ]
    return "\n".join(lines) + "\n"


def _cell(value: str | float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
