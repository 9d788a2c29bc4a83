"""`bnmf tune` end to end: what it finds, what it leaves alone, how it stops and goes on."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from bnmf import tuning
from bnmf.cli.live import LiveLine
from bnmf.config import TrainConfig
from bnmf.training import ChainDiverged, Interrupted
from bnmf.tuning import Report, TrialEvent
from tests.conftest import Command

QUICK = ("--rank", "3", "--sweeps", "40", "--blocks", "2", "--threads", "1")


def tune(bnmf: Command, out: Path, *flags: object) -> dict:
    outcome = bnmf("tune", "--out", out, "--json", *flags)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def trials(tune: Path) -> list[dict]:
    """What became of each trial, but for its seconds, by number."""
    ended = {}
    for line in (tune / "journal.log").read_text().splitlines():
        trial = json.loads(line).get("user_attr", {}).get("ended")
        if trial:
            ended[trial["number"]] = {**trial, "seconds": None}
    return [ended[number] for number in sorted(ended)]


class Curve:
    """A workplace whose RMSE falls to step_size + 1 / rank; no chain, no time."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, config: TrainConfig, report: Report) -> float:
        config = config.sized(1000, 50)
        assert config.step_size and config.rank and config.sweeps
        if config.step_size > 0.25:
            raise ChainDiverged("too large")
        for sweep in range(1, config.sweeps):
            falling = config.step_size + 1 / config.rank + 1 / sweep
            if not report(sweep, falling if sweep > config.sweeps // 4 else None):
                raise Interrupted("as told")
        return config.step_size + 1 / config.rank


@pytest.fixture
def curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "Bench", Curve)


def test_the_best_file_beats_a_bad_step_and_trains_to_the_rmse_it_names(
    bnmf: Command, ratings_csv: Path, tmp_path: Path
) -> None:
    out, run, bad = tmp_path / "tune", tmp_path / "run", ("--step-size", "0.002")
    flags = ("--data", ratings_csv, *QUICK, *bad, "--search", "step-size=0.002:0.3,friction")
    found = tune(bnmf, out, *flags, "--trials", "8")
    assert sum(found["outcomes"].values()) == 8 and found["config"] == str(out / "best.toml")
    assert found["rmse"] == min(t["rmse"] for t in trials(out) if t["outcome"] == "finished")
    settings = tomllib.loads((out / "best.toml").read_text())
    assert settings == {
        "data": str(ratings_csv), "model": "poisson-nmf", "prior": "hierarchical", "rank": 3,
        "sweeps": 40, "blocks": 2,
        **found["settings"],
    }  # fmt: skip
    comments = (out / "best.toml").read_text().splitlines()
    assert comments[0].startswith("# best of 8 trials")
    assert f"validation RMSE {found['rmse']:.4f} in trial {found['number']}" in comments[1]

    assert bnmf("train", "--config", out / "best.toml", "--out", run).code == 0
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["valid_rmse_mean"] == found["rmse"]
    before = bnmf("train", "--data", ratings_csv, *QUICK, *bad, "--json", "--out", tmp_path / "bad")
    bad_rmse = json.loads(before.out)["valid"]["rmse"]
    assert found["first_rmse"] == pytest.approx(bad_rmse, rel=1e-6)
    assert found["rmse"] < 0.9 * bad_rmse


def test_test_ratings_change_nothing_and_are_not_read(
    bnmf: Command, ratings_csv: Path, tmp_path: Path
) -> None:
    flags = ("--data", ratings_csv, *QUICK, "--trials", "4", "--seed", "3")
    tune(bnmf, tmp_path / "a", *flags)
    train = ("train", "--data", ratings_csv, *QUICK, "--seed", "3", "--out")
    assert bnmf(*train, tmp_path / "before").code == 0
    held = pq.read_table(tmp_path / "before" / "predictions" / "test.parquet").to_pylist()
    tested = {(row["user"], row["item"]) for row in held}
    lines = ["user,item,rating,timestamp"]
    for row in pyarrow.csv.read_csv(ratings_csv).to_pylist():
        stars = 5.5 - row["rating"] if (row["user"], row["item"]) in tested else row["rating"]
        lines.append(f"{row['user']},{row['item']},{stars},{row['timestamp']}")
    ratings_csv.write_text("\n".join(lines) + "\n")
    assert bnmf(*train, tmp_path / "after").code == 0
    reports = [json.loads((tmp_path / x / "report.json").read_text()) for x in ("before", "after")]
    assert reports[0]["test"] != reports[1]["test"] and reports[0]["valid"] == reports[1]["valid"]

    tune(bnmf, tmp_path / "b", *flags)
    assert trials(tmp_path / "a") == trials(tmp_path / "b")
    files = [(tmp_path / x / "best.toml").read_text() for x in ("a", "b")]
    assert files[0] == files[1]

    folder = tmp_path / "ingested"
    ingest = ("data", "ingest", ratings_csv, "--blocks", "2", "--seed", "3", "--out", folder)
    assert bnmf(*ingest).code == 0
    for part in (folder / "test").iterdir():
        part.unlink()
    tune(bnmf, tmp_path / "c", "--data", folder, *QUICK, "--trials", "4", "--seed", "3")
    assert trials(tmp_path / "a") == trials(tmp_path / "c")


class Killed(BaseException):
    """Nothing runs after it."""


@pytest.mark.usefixtures("curve")
def test_a_killed_and_an_interrupted_search_end_like_one_straight_through(
    bnmf: Command, ratings_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--data", ratings_csv, "--trials", "13", "--search", "step-size,rank=3:40")
    tune(bnmf, tmp_path / "straight", *flags)
    stopped = tmp_path / "stopped"

    run, begun = Curve.run, []

    def killed_in_the_fifth(self: Curve, config: TrainConfig, report: Report) -> float:
        begun.append(config)
        if len(begun) == 5:
            raise Killed
        return run(self, config, report)

    monkeypatch.setattr(Curve, "run", killed_in_the_fifth)
    with pytest.raises(Killed):
        bnmf("tune", "--out", stopped, *flags)
    assert len(trials(stopped)) == 4
    journal = stopped / "journal.log"
    journal.write_bytes(journal.read_bytes() + b'{"op_code":4,"wor')
    (stopped / "journal.log.lock").symlink_to(journal)

    def ctrl_c_in_the_twelfth(self: LiveLine, event: TrialEvent) -> None:
        if event.done == 11:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(LiveLine, "trial", ctrl_c_in_the_twelfth)
        interrupted = bnmf("tune", "--out", stopped, "--resume")
    assert interrupted.code == 130
    words = f"error: stopped after 11 of 13 trials in {stopped}; go on with --resume"
    assert interrupted.err.splitlines() == [words]
    assert tomllib.loads((stopped / "best.toml").read_text())

    tune(bnmf, stopped, "--resume", "--threads", "1")
    assert trials(stopped) == trials(tmp_path / "straight")
    assert (stopped / "best.toml").read_text() == (tmp_path / "straight/best.toml").read_text()
    more = tune(bnmf, stopped, "--resume", "--trials", "14")
    assert sum(more["outcomes"].values()) == 14
    assert trials(stopped)[:13] == trials(tmp_path / "straight")
    assert tune(bnmf, stopped, "--resume") == more


@pytest.mark.usefixtures("curve")
def test_trials_above_the_median_are_pruned_and_diverged_ones_are_survived(
    bnmf: Command, ratings_csv: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tune"
    flags = ("--sweeps", "400", "--trials", "20", "--rank", "5", "--search", "step-size=0.01:0.4")
    found = tune(bnmf, out, "--data", ratings_csv, *flags)
    finished: list[float] = []
    for trial in trials(out):
        step = trial["settings"]["step_size"]
        if step > 0.25:
            assert (trial["outcome"], trial["rmse"]) == ("diverged", None)
        elif len(finished) >= 5 and step > np.median(finished):
            assert trial["outcome"] == "pruned" and 100 < trial["sweep"] < 200
        if trial["outcome"] == "finished":
            assert trial["rmse"] == pytest.approx(step + 0.2)
            finished.append(step)
    assert found["outcomes"].keys() == {"finished", "pruned", "diverged"}
    assert found["settings"]["step_size"] == min(finished) < 0.02


@pytest.mark.usefixtures("curve")
def test_settings_that_do_not_go_together_are_survived(
    bnmf: Command, ratings_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 h C > 2, as implicit weights move by 2 h: momenta would grow without end."""

    def checked(self: Curve, config: TrainConfig, report: Report) -> float:
        from bnmf.parts import domain_of, sampler_of

        resolved = config.sized(1000, 50).resolved(3.0)
        sampler_of(resolved, domain_of(resolved))
        return 1.0

    monkeypatch.setattr(Curve, "run", checked)
    search = "step-size=0.1:10,friction=0.1:10"
    flags = ("--data", ratings_csv, "--trials", "20", "--search", search)
    found = tune(bnmf, tmp_path / "tune", *flags)
    assert found["outcomes"].keys() == {"finished", "refused"}
    for trial in trials(tmp_path / "tune"):
        product = trial["settings"]["step_size"] * trial["settings"]["friction"]
        assert (trial["outcome"] == "refused") == (product > 1)


@pytest.mark.slow
def test_processes_side_by_side_run_the_same_chains(
    bnmf: Command, ratings_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a Ctrl-C, which a terminal sends to all of them, and the death of one."""
    out = tmp_path / "tune"
    flags = ("--data", ratings_csv, *QUICK, "--trials", "40", "--chains", "2", "--jobs", "2")

    pressed = []

    def ctrl_c(self: LiveLine, event: TrialEvent) -> None:
        """Once: a second one ends a process without a word."""
        if pressed:
            return
        pressed.append(event)
        for process in (*multiprocessing.active_children(), multiprocessing.current_process()):
            assert process.pid is not None
            os.kill(process.pid, signal.SIGINT)

    def kill_a_process(self: LiveLine, event: TrialEvent) -> None:
        multiprocessing.active_children()[0].kill()

    with monkeypatch.context() as patch:
        patch.setattr(LiveLine, "trial", lambda self, event: event.trial and ctrl_c(self, event))
        interrupted = bnmf("tune", "--out", out, *flags)
        assert interrupted.code == 130, interrupted.err
        ended = len(trials(out))
        words = f"error: stopped after {ended} of 40 trials in {out}; go on with --resume"
        assert interrupted.err.splitlines() == [words] and 1 <= ended < 40
        patch.setattr(LiveLine, "trial", kill_a_process)
        died = bnmf("tune", "--out", out, "--resume", "--jobs", "2")
    died.refused("process", "died", "--resume", "--jobs")
    assert not multiprocessing.active_children()

    wanted = len(trials(out)) + 2
    tune(bnmf, out, "--resume", "--threads", "1", "--trials", wanted)
    assert [trial["number"] for trial in trials(out)] == list(range(1, wanted + 1))
    for trial in (trials(out)[0], trials(out)[-1]):
        run, step = tmp_path / f"run-{trial['number']}", trial["settings"]["step_size"]
        alone = ("train", "--data", ratings_csv, *QUICK, "--step-size", step, "--out", run)
        assert bnmf(*alone).code == 0
        lines = (run / "metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[trial["sweep"] - 1])["valid_rmse_mean"] == trial["rmse"]


def test_whole_settings_are_searched_in_whole_numbers() -> None:
    assert [tuning._setting("rank", value) for value in (2.5, 0.2)] == [2, 1]
    assert tuning._setting("step_size", 0.123456) == 0.1235


BAD = [
    (("--search", "stepsize"), ("--search stepsize", "step-size")),
    (("--search", "rank=3:9,rank"), ("--search rank", "twice")),
    (("--search", "rank=9:3"), ("--search rank=9:3", "LOW < HIGH")),
    (("--search", "rank=0:3"), ("--search rank=0:3", "0 < LOW")),
    (("--search", "rank=3"), ("--search rank=3", "LOW:HIGH")),
    (("--search", "rank=3:60"), ("--search rank=3:60", "50 items", "at most 50")),
    (("--rank", "20", "--search", "rank"), ("--search rank", "at most 50")),
    (("--search", "friction", "--sampler", "sgld"), ("--search friction", "sgld")),
    (("--search", "noise-estimate", "--sampler", "sghmc"), ("noise-estimate=LOW:HIGH",)),
    (("--search", "counts-per-unit"), ("--search counts-per-unit", "--prior exponential")),
    (("--search", "prior-rate-w=1:2"), ("--search prior-rate-w=1:2", "--prior exponential")),
    (("--search", "diffusion=1:2"), ("--search diffusion=1:2", "sgmgt-d")),
    (("--split", "0.8:0:0.2"), ("validation", "--split", "0.8:0.1:0.1")),
    (("--folds", "5", "--fold", "1"), ("validation", "--split")),
    (("--trials", "0"), ("--trials 0", "at least 1")),
    (("--jobs", "0"), ("--jobs 0", "at least 1")),
    (("--rank", "0"), ("--rank",)),
    (("--transform", "sigmoid"), ("--transform sigmoid", "softplus")),
    (("--step-size", "5"), ("--step-size 5", "--friction 0.5")),
    (("--resume",), ("no-tune", "tune.json")),
    (("--config", "nowhere.toml"), ("nowhere.toml", "--config")),
]


@pytest.mark.parametrize(("flags", "words"), BAD, ids=lambda value: " ".join(value))
def test_bad_input(
    bnmf: Command, ratings_csv: Path, tmp_path: Path, flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    out = tmp_path / "no-tune"
    data = () if "--resume" in flags else ("--data", ratings_csv)
    bnmf("tune", "--out", out, *data, *flags).refused(*words)
    assert not out.exists() and not (tmp_path / "tunes").exists()


@pytest.mark.usefixtures("curve")
@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("tune.json", lambda text: text.replace('"trials": 3', '"trials": "three"')),
        ("tune.json", lambda text: text[:-20]),
        ("journal.log", lambda text: text.replace('"op_code":4', '"op_code":"four"')),
        ("journal.log", lambda text: text.replace("{", "[", 1)),
    ],
    ids=["a wrong type", "cut short", "an unknown event", "no JSON"],
)
def test_a_damaged_search(
    bnmf: Command, ratings_csv: Path, tmp_path: Path, file: str, damage: Callable[[str], str]
) -> None:
    out = tmp_path / "tune"
    tune(bnmf, out, "--data", ratings_csv, "--trials", "3")
    text = (out / file).read_text()
    (out / file).write_text(damage(text))
    assert (out / file).read_text() != text
    bnmf("tune", "--out", out, "--resume").refused(file, "damaged")


@pytest.mark.usefixtures("curve")
def test_going_on_takes_the_search_s_own_settings_and_data(
    bnmf: Command, ratings_csv: Path, tmp_path: Path
) -> None:
    out, flags = tmp_path / "tune", ("--data", ratings_csv, "--trials", "2")
    tune(bnmf, out, *flags)
    bnmf("tune", "--out", out, *flags).refused(str(out), "exists", "--resume")
    bnmf("tune", "--resume").refused("--resume", "--out")
    bnmf("tune", "--out", out, "--resume", "--rank", "4").refused("--rank", "leave it out")
    bnmf("tune", "--out", out, "--resume", "--search", "rank").refused("--search", "leave it out")
    ratings_csv.write_text(ratings_csv.read_text() + "u1,999,3.0,5\n")
    bnmf("tune", "--out", out, "--resume").refused("another dataset", "tune anew")


def test_without_optuna(
    bnmf: Command, ratings_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    bnmf("tune", "--data", ratings_csv, "--out", tmp_path / "t").refused("optuna", "bnmf[tune]")


@pytest.mark.usefixtures("curve")
def test_no_trial_that_stands(bnmf: Command, ratings_csv: Path, tmp_path: Path) -> None:
    flags = ("--data", ratings_csv, "--search", "step-size=0.3:2", "--trials", "3")
    bnmf("tune", "--out", tmp_path / "tune", *flags).refused("none of 3 trials", "step-size=")
    assert not (tmp_path / "tune" / "best.toml").exists()
