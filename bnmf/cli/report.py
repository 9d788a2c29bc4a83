"""How a run's result looks on a screen."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bnmf.diagnostics import LEVELS

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
        table.add_row("posterior mean", *_row(about))
        worst = max(about["by_activity"], key=_furthest_off)
        table.add_row("worst tenth", *_row(worst))
        for name, baseline in report["baselines"][part].items():
            row = (f"{baseline['rmse']:.4f}", f"{baseline['mae']:.4f}")
            table.add_row(BASELINES[name], *row)
        console.print(table)
        fewest, most = worst["training_ratings"]
        console.print(
            f"worst tenth: users of {fewest} to {most} training ratings, intervals furthest off\n"
        )
    console.print("log p: mean log probability; 50 %, ...: percent of ratings in that interval")
    console.print(f"run: {run_path}", soft_wrap=True, highlight=False)


def _row(about: dict[str, Any]) -> list[str]:
    numbers = (about[name] for name in ("rmse", "mae", "log_predictive_density"))
    shares = (about["coverage"][str(level)] for level in LEVELS)
    return [*(f"{number:.4f}" for number in numbers), *(f"{100 * share:.1f}" for share in shares)]


def _furthest_off(about: dict[str, Any]) -> float:
    """How much a share of covered ratings differs from its level, at most."""
    coverage: dict[str, float] = about["coverage"]
    return max(abs(coverage[str(level)] - level / 100) for level in LEVELS)
