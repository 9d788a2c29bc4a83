"""How a run's result looks on a screen."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bnmf.convergence import HIGHEST
from bnmf.diagnostics import LEVELS

NAMES = {"log_prob": "log-likelihood"}
BASELINES = {
    "biases": "biases only",
    "global_mean": "global mean",
    "true_rates": "true rates (floor)",
}


def warn(report: dict[str, Any]) -> None:
    """Say on stderr, in plain words, what is wrong with a run and what to do."""
    for part, baselines in report["baselines"].items():
        if report[part]["rmse"] > baselines["global_mean"]["rmse"]:
            warning = f"{part} predictions are worse than the global mean: lower --step-size"
            print(f"warning: {warning}, or raise --sweeps", file=sys.stderr)
    above = [
        f"{NAMES.get(name, name)} up to {about['rhat']:.2f}"
        for name, about in report["convergence"].items()
        if about["above"]
    ]
    if above:
        print(
            f"warning: not converged: R-hat above {HIGHEST} of {', '.join(above)}; train with more "
            "--sweeps or a larger --burn-in",
            file=sys.stderr,
        )


def _show_convergence(console: Console, report: dict[str, dict[str, float | None]]) -> None:
    table = Table(title="convergence", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for name in ("traced", "R-hat", f"above {HIGHEST}", "bulk ESS", "tail ESS"):
        table.add_column(name, justify="right", no_wrap=True)
    forms = {"count": "", "rhat": ".3f", "above": "", "ess_bulk": ",.0f", "ess_tail": ",.0f"}
    for name, about in report.items():
        cells = (
            "" if about[key] is None else f"{about[key]:{form}}" for key, form in forms.items()
        )
        table.add_row(NAMES.get(name, name), *cells)
    console.print(table)


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
    _show_convergence(console, report["convergence"])
    console.print(in_words(report["settings"]), soft_wrap=True, highlight=False)
    if "preset" in report:
        console.print(preset_in_words(report["preset"]), soft_wrap=True, highlight=False)
    if report["baselines"]:
        console.print("log p: mean log probability; 50 %, ...: percent of ratings in that interval")
    console.print("R-hat: the largest of those traced; ESS: their smallest effective sample size")
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


def _row(about: dict[str, Any]) -> list[str]:
    numbers = (about[name] for name in ("rmse", "mae", "log_predictive_density"))
    shares = (about["coverage"][str(level)] for level in LEVELS)
    return [*(f"{number:.4f}" for number in numbers), *(f"{100 * share:.1f}" for share in shares)]


def _furthest_off(about: dict[str, Any]) -> float:
    """How much a share of covered ratings differs from its level, at most."""
    coverage: dict[str, float] = about["coverage"]
    return max(abs(coverage[str(level)] - level / 100) for level in LEVELS)
