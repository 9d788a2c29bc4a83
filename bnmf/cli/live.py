"""What a command shows while it works: one live line on a terminal, JSON lines elsewhere."""

from __future__ import annotations

import json
import sys
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from bnmf.cli.report import in_words, preset_in_words
from bnmf.run import Run, SweepEvent
from bnmf.tuning import Trial, TrialEvent


class LiveLine:
    """On stderr, so that stdout holds results alone."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._terminal = console.is_terminal
        self._bar = Progress(
            BarColumn(bar_width=20),
            TextColumn("{task.description}"),
            console=console,
            disable=not self._terminal,
        )
        self._task: TaskID | None = None
        self._about = ""
        self._printed: dict[int, float] = {}  # a chain
        self._newest: dict[int, SweepEvent] = {}

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def reading(self, what: str, done: int, total: int | None) -> None:
        """Rows read, or bytes fetched of ``total``."""
        amount = f"{done / 1e6:.1f} M rows" if total is None else f"{done / 1e6:.0f} MB"
        self._show(what, f"{what}: {amount}", done if total else None, total)

    def started(self, run: Run) -> None:
        """What a run that begins was set to, and by which preset."""
        settings = run.manifest.get("settings")
        if settings and self._terminal:
            self._stay(in_words(settings))
        preset = run.manifest.get("preset")
        if preset and self._terminal:
            self._stay(preset_in_words(preset))
        elif preset:
            print(json.dumps({"preset": preset}), file=sys.stderr, flush=True)

    def sweep(self, event: SweepEvent) -> None:
        """One sweep of a chain; off a terminal at most one line a second, and the last, of each."""
        if self._terminal:
            before = self._newest.get(event.chain, event)
            # not every sweep is evaluated
            self._newest[event.chain] = event._replace(metrics={**before.metrics, **event.metrics})
            newest = list(self._newest.values())
            behind = min(event.sweep for event in newest)
            self._show("sweeps", _describe(newest), behind, event.sweeps)
        elif (
            event.sweep == event.sweeps
            or event.seconds - self._printed.get(event.chain, 0.0) >= 1.0
        ):
            self._printed[event.chain] = event.seconds
            print(json.dumps(event.as_dict()), file=sys.stderr, flush=True)

    def trial(self, event: TrialEvent) -> None:
        """One trial of a search: on a terminal a line that stays."""
        if self._terminal:
            if event.trial:
                self._stay(_ended(event.trial))
            best = f"  best valid RMSE {event.best.rmse:.4f}" if event.best else ""
            words = f"{event.done} of {event.trials} trials{best}"
            self._show("trials", words, event.done, event.trials)
        elif event.trial:
            print(json.dumps(event.as_dict()), file=sys.stderr, flush=True)

    def _stay(self, words: str) -> None:
        self._bar.console.print(words, highlight=False, soft_wrap=True)

    def _show(self, about: str, words: str, done: int | None, total: int | None) -> None:
        if self._task is not None and about != self._about:
            self._bar.remove_task(self._task)  # a bar with a total keeps it
            self._task = None
        if self._task is None:
            self._task, self._about = self._bar.add_task(words, total=total), about
        self._bar.update(self._task, description=words, completed=done, total=total)


def _describe(newest: list[SweepEvent]) -> str:
    """The chains in one line: the one furthest behind, and RMSEs averaged over them."""
    first = newest[0]
    about = "sweep" if first.chains == 1 else f"{first.chains} chains:"  # short: 80 columns
    rate = sum(event.ratings_per_second for event in newest)
    words = [
        f"{about} {min(event.sweep for event in newest)}/{first.sweeps}",
        f"{rate / 1e6:.1f} M ratings/s",
    ]
    part = "valid" if "valid_rmse_draw" in first.metrics else "test"
    draw, mean = (_average(newest, f"{part}_rmse_{of}") for of in ("draw", "mean"))
    if draw is not None:
        words.append(f"{part} RMSE {draw:.4f}" + (f", mean {mean:.4f}" if mean else ""))
    words.append(f"{max(event.seconds_left for event in newest):.0f} s left")
    return "  ".join(words)


def _ended(trial: Trial) -> str:
    rmse = "no RMSE" if trial.rmse is None else f"{trial.rmse:7.4f}"
    words = "" if trial.outcome == "finished" else f" ({trial.outcome} at sweep {trial.sweep})"
    return f"trial {trial.number:>3}  {rmse}  {in_words(trial.settings)}{words}"


def _average(newest: list[SweepEvent], name: str) -> float | None:
    """Over the chains that have the metric."""
    values = [value for event in newest if (value := event.metrics.get(name)) is not None]
    return sum(values) / len(values) if values else None
