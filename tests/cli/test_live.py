"""The live line of a terminal, and the lines of JSON elsewhere."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from bnmf.cli import live
from bnmf.cli.live import LiveLine
from bnmf.run import SweepEvent
from bnmf.tuning import Trial, TrialEvent

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
FORCED = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "TERM")
BOTH = {"valid_rmse_draw": 0.91234, "valid_rmse_mean": 0.87654, "test_rmse_draw": 0.7}


def frames(text: str) -> list[str]:
    """What a terminal would have shown, line after line."""
    shown = (ESCAPE.sub("", frame) for frame in re.split(r"[\r\n]+", text))
    return [frame.strip() for frame in shown if frame.strip()]


@pytest.fixture(params=[80, 120])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is written to a terminal of that width."""
    written = io.StringIO()

    def console(stderr: bool) -> Console:
        assert stderr, "stdout is for results"
        return Console(file=written, force_terminal=True, width=request.param, _environ={})

    monkeypatch.setattr(live, "Console", console)
    return written


def event(sweep: int, seconds: float, metrics: dict[str, float | None]) -> SweepEvent:
    return SweepEvent(sweep, 800, seconds, 64.4, 12_345_678.0, metrics)


def last_frame(screen: io.StringIO, *acts: Callable[[LiveLine], None]) -> str:
    """The line that stays; those before it depend on when the screen is drawn."""
    with LiveLine() as line:
        for act in acts:
            act(line)
    return frames(screen.getvalue())[-1]


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (BOTH, "  valid RMSE 0.9123, mean 0.8765"),
        ({"test_rmse_draw": 0.7, "test_rmse_mean": 0.65}, "  test RMSE 0.7000, mean 0.6500"),
        ({"test_rmse_draw": 0.7, "test_rmse_mean": None}, "  test RMSE 0.7000"),  # burn-in
        ({}, ""),  # nothing held out
    ],
    ids=["valid before test", "test", "burn-in", "nothing held out"],
)
def test_a_sweep_s_line(screen: io.StringIO, metrics: dict[str, float | None], words: str) -> None:
    line = last_frame(screen, *(lambda it, n=n: it.sweep(event(n, n, metrics)) for n in (1, 2, 37)))
    assert line.strip("━╸╺ ") == f"sweep 37/800  12.3 M ratings/s{words}  64 s left"


def test_several_chains_have_one_line(screen: io.StringIO) -> None:
    """The one furthest behind, all their ratings, the mean of their RMSEs, the longest wait."""
    first, second = BOTH, {"valid_rmse_draw": 0.9125, "valid_rmse_mean": 0.8768}

    def of(chain: int, sweep: int, left: float, metrics: dict[str, float | None]) -> SweepEvent:
        return SweepEvent(sweep, 800, 3.0, left, 6_000_000.0, metrics, chain, 2)

    events = [of(0, 37, 64.4, first), of(1, 35, 70.0, second), of(0, 38, 63.0, {})]
    line = last_frame(screen, *(lambda it, e=e: it.sweep(e) for e in events))
    assert line.strip("━╸╺ ") == (
        "2 chains: 35/800  12.0 M ratings/s  valid RMSE 0.9124, mean 0.8767  70 s left"
    )


def test_rows_and_bytes_of_reading(screen: io.StringIO) -> None:
    rows = last_frame(screen, lambda it: it.reading("reading small.csv", 2_340_000, None))
    assert rows.endswith(" reading small.csv: 2.3 M rows")
    part = last_frame(screen, lambda it: it.reading("fetching ml-1m", 2_600_000, 5_200_000))
    assert part.endswith(" fetching ml-1m: 3 MB")


def test_each_thing_has_a_bar_of_its_own(screen: io.StringIO) -> None:
    """Bytes give way to rows and rows to sweeps; no bar keeps the total of the one before."""
    with LiveLine() as line:
        line.reading("fetching ml-1m", 5_200_000, 5_200_000)
        bars = [*line._bar.tasks]
        line.reading("reading ml-1m", 1_000_000, None)
        bars += line._bar.tasks
        line.sweep(event(400, 9.0, {}))
        bars += line._bar.tasks
    amounts = [(bar.completed, bar.total) for bar in bars]
    assert amounts == [(5_200_000, 5_200_000), (0, None), (400, 800)]
    last = frames(screen.getvalue())[-1]
    assert "sweep 400/800" in last and "ml-1m" not in last and "rows" not in last


def test_a_line_a_trial_stays(screen: io.StringIO) -> None:
    good = Trial(7, "finished", 0.90157, 800, 4.2, {"step_size": 0.2452, "rank": 8})
    bad = Trial(8, "diverged", None, 3, 0.1, {"step_size": 0.39, "rank": 80})
    worse = Trial(9, "pruned", 0.95, 350, 2.0, {"step_size": 0.05, "rank": 5})
    last = last_frame(
        screen,
        lambda it: it.trial(TrialEvent(None, 6, 25, None)),
        *(lambda it, at=at, t=t: it.trial(TrialEvent(t, at, 25, good))
          for at, t in enumerate((good, bad, worse), start=7)),
    )  # fmt: skip
    assert last.strip("━╸╺ ") == "9 of 25 trials  best valid RMSE 0.9016"
    shown = frames(screen.getvalue())
    for line in (
        "trial   7   0.9016  step-size 0.2452, rank 8",
        "trial   8  no RMSE  step-size 0.39, rank 80 (diverged at sweep 3)",
        "trial   9   0.9500  step-size 0.05, rank 5 (pruned at sweep 350)",
    ):
        assert shown.count(line) == 1


def test_the_preset_is_said_before_the_first_sweep(screen: io.StringIO) -> None:
    overridden = {"rank": {"preset": 32, "now": 5}}
    preset = {"name": "accurate", "settings": {"burn_in": 150}, "overridden": overridden}
    run = SimpleNamespace(manifest={"preset": preset})
    last_frame(screen, lambda it: it.started(run), lambda it: it.sweep(event(1, 1.0, {})))
    shown = frames(screen.getvalue())
    assert "preset accurate: burn-in 150; rank 5 (not 32)" in shown[:2]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable that makes rich take a pipe for a terminal."""
    for name in FORCED:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("seconds", "printed"),
    [
        ([0.25 * n for n in range(1, 12)], [4, 8, 11]),  # 1 s, 2 s, and the last
        ([3.0, 6.0, 9.0], [1, 2, 3]),
        ([0.1, 0.2], [2]),
        ([0.5, 1.75, 2.5, 2.75, 3.5], [2, 4, 5]),  # a second since the last line, not on the clock
    ],
)
def test_off_a_terminal_a_line_of_json_a_second_and_the_last(
    capfd: pytest.CaptureFixture[str], seconds: list[float], printed: list[int]
) -> None:
    with LiveLine() as line:
        line.reading("reading small.csv", 1_000_000, None)
        for sweep, at in enumerate(seconds, start=1):
            line.sweep(SweepEvent(sweep, len(seconds), at, 1.26, 9.6, {"test_rmse_mean": None}))
    out, err = capfd.readouterr()
    assert out == ""
    assert [json.loads(text) for text in err.splitlines()] == [
        {
            "chain": 0,
            "sweep": sweep,
            "sweeps": len(seconds),
            "seconds": seconds[sweep - 1],
            "seconds_left": 1.3,
            "ratings_per_second": 10,
            "test_rmse_mean": None,
        }
        for sweep in printed
    ]


@pytest.mark.usefixtures("elsewhere")
def test_off_a_terminal_each_chain_has_its_lines(capfd: pytest.CaptureFixture[str]) -> None:
    seconds = {0: [0.9, 1.1, 1.2, 1.3], 1: [0.2, 0.4, 0.6, 0.8]}
    with LiveLine() as line:
        for sweep in range(4):
            for chain in (0, 1):
                at = seconds[chain][sweep]
                line.sweep(SweepEvent(sweep + 1, 4, at, 0.0, 1.0, {}, chain, 2))
    lines = map(json.loads, capfd.readouterr().err.splitlines())
    assert [(one["chain"], one["sweep"]) for one in lines] == [(0, 2), (0, 4), (1, 4)]


@pytest.mark.usefixtures("elsewhere")
def test_a_real_terminal_gets_the_line_and_stdout_the_result(
    ratings_csv: Path, tmp_path: Path
) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "bnmf.cli.main", "train", "--data", str(ratings_csv)]
    command += ["--out", str(tmp_path / "run"), "--rank", "3", "--sweeps", "20", "--json"]
    with (tmp_path / "stdout").open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        )
    os.close(theirs)
    text = b""
    with suppress(OSError):  # Linux: when the last writer has gone
        while more := os.read(ours, 4096):
            text += more
    os.close(ours)
    assert process.wait() == 0, text
    shown = frames(text.decode())
    assert re.search(r"sweep 20/20 .* M ratings/s  valid RMSE 0\.\d{4}, mean .*  0 s left$",
                     shown[-2]), shown  # fmt: skip
    assert shown[-1].startswith("warning: not converged")
    assert not any(line.startswith("{") for line in shown)
    (line,) = (tmp_path / "stdout").read_text().splitlines()
    assert json.loads(line)["run"] == str(tmp_path / "run")
