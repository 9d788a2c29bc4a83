"""How a run's result looks on a screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bnmf.predictive import LEVELS

BASELINES = {
    "biases": "biases only",
    "global_mean": "global mean",
    "true_rates": "true rates (floor)",
}


def show(run_path: str, report: dict[str, Any]) -> None:
    """Print the tables of `bnmf.evaluation.evaluate` and where the run lies."""
    console = Console()
    for part in ("valid", "test"):
        if part not in report:
            continue
        about = report[part]
        table = Table(
            title=f"{part}: {about['count']:,} ratings", title_justify="left", box=box.SIMPLE_HEAD
        )
        table.add_column("", no_wrap=True)
        for name in ("RMSE", "MAE", "log p", *(f"{level} %" for level in LEVELS)):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_row(
            "posterior mean",
            f"{about['rmse']:.4f}",
            f"{about['mae']:.4f}",
            f"{about['log_predictive_density']:.4f}",
            *(f"{100 * about['coverage'][str(level)]:.1f}" for level in LEVELS),
        )
        for name, baseline in report["baselines"][part].items():
            row = (f"{baseline['rmse']:.4f}", f"{baseline['mae']:.4f}")
            table.add_row(BASELINES[name], *row)
        console.print(table)
    if "preset" in report:
        console.print(preset_in_words(report["preset"]), soft_wrap=True, highlight=False)
    console.print("log p: mean log probability; 50 %, ...: percent of ratings in that interval")
    console.print(f"run: {run_path}", soft_wrap=True, highlight=False)


def preset_in_words(preset: Mapping[str, Any]) -> str:
    """One line of `TrainConfig.preset_in_force`."""
    words = f"preset {preset['name']}: {in_words(preset['settings']) or 'all overridden'}"
    changes = (
        f"{in_words({name: change['now']})} (not {_word(change['preset'])})"
        for name, change in preset["overridden"].items()
    )
    return "; ".join([words, ", ".join(changes)]) if preset["overridden"] else words


def in_words(settings: Mapping[str, Any]) -> str:
    """Settings by their flags' names."""
    return ", ".join(f"{k.replace('_', '-')} {_word(value)}" for k, value in settings.items())


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
