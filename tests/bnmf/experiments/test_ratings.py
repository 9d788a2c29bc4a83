"""CoRV against the mirroring trick: chains as `bnmf.train`'s, tuning that can be interrupted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import bnmf as package
from bnmf.experiments import EXPERIMENTS, ratings
from bnmf.experiments.ratings import CONTENDERS, STRIDE, Curve, Final, Setting, Size, pool_of
from bnmf.pool import LocalPool
from bnmf.training import run
from data_pipeline.dataset import Dataset
from data_pipeline.ingest import prepare
from tests.conftest import Command
from tests.oracles import SEED

Data = tuple[Dataset, LocalPool]


@pytest.fixture
def data(ratings_csv: Path) -> Iterator[Data]:
    dataset = prepare(str(ratings_csv), blocks=1, seed=SEED)
    with pool_of(dataset) as pool:
        yield dataset, pool


def _setting(data: Path | str, contender: str = "CoRV, softplus", **changes: Any) -> Setting:
    size = Size(str(data), (2,), 200, 40, 200, 100, 6)._replace(**changes)
    return Setting(size, size.ranks[0], contender, SEED)


def test_what_a_curve_says() -> None:
    curve = Curve("valid")
    for sweep, mean in enumerate([None, 1.2, 0.9, 1.0, 0.8], 1):
        values = {"valid_rmse_mean": mean, "valid_rmse_draw": 2.0, "test_rmse_mean": 0.0}
        curve.metrics(sweep, values)
    assert [curve.reached(level) for level in (1.3, 0.9, 0.85)] == [40.0, 60.0, 100.0]
    assert math.isnan(curve.reached(0.7))
    assert curve.after(80) == 1.0
    assert math.isnan(curve.after(20)) and math.isnan(curve.after(120))
    curve.clock = [0.0, 1.0, 1.5, 2.0, 9.0]
    assert curve.seconds == 0.75 / STRIDE


@pytest.mark.parametrize("contender", CONTENDERS)
def test_a_chain_is_that_of_train(
    ratings_csv: Path, tmp_path: Path, data: Data, contender: str
) -> None:
    """The experiment's curve ends where the run of the same settings does."""
    dataset, pool = data
    setting, curve = _setting(ratings_csv, contender), Curve("test")
    run(pool, setting.job(dataset, 3e-3, 200, 0), curve)
    flags = {"preset": "corv-paper", "rank": 2, "batch_size": 200, "step_size": 3e-3}
    flags |= {"sweeps": 10, "burn_in": 2, "local_steps": STRIDE, "seed": SEED, "blocks": 1}
    done = package.train(str(ratings_csv), out=tmp_path / "run", **flags | CONTENDERS[contender])
    report = json.loads((done.path / "report.json").read_text())
    assert curve.iterations == list(range(60, 220, STRIDE))
    assert curve.of_mean[-1] == pytest.approx(report["test"]["rmse"], rel=1e-6)


def test_tuning_goes_on_where_it_was_interrupted(
    ratings_csv: Path, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = _setting(ratings_csv)
    chains = []

    def counted(*args: Any) -> None:
        chains.append(args)
        if len(chains) == 4:
            raise KeyboardInterrupt
        run(*args)

    monkeypatch.setattr(ratings, "run", counted)
    with pytest.raises(KeyboardInterrupt):
        setting.tune(*data)
    found = setting.tune(*data)
    assert len(chains) == 1 + setting.size.trials
    assert setting.tune(*data) == found and len(chains) == 1 + setting.size.trials
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    assert setting.tune(*data) == found and len(chains) == 1 + 2 * setting.size.trials
    assert [job.chain for _, job, _ in chains] == [1, 2, 3, 4, 4, 5, 6, 1, 2, 3, 4, 5, 6]


def test_tuning_looks_at_validation_ratings_alone(
    ratings_csv: Path, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it never ends with a step that leaves the finite numbers."""
    dataset, pool = data
    setting = _setting(ratings_csv, "SGLD, mirror")
    monkeypatch.setattr(ratings, "STEPS", (1e-7, 1e3))
    monkeypatch.setattr(ratings, "FIRST_STEPS", (1e2, 1e-4, 1e3))
    found = setting.tune(*data)
    run(pool, setting.job(dataset, found, 200, 0), Curve("test"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    for row in pool.held_out["test"]:
        for held in row:
            held.ratings.fill_(100.0)
    assert setting.tune(*data) == found
    for row in pool.held_out["valid"]:
        for held in row:
            held.ratings.fill_(100.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a third"))
    assert setting.tune(*data) != found


def test_figure_3() -> None:
    """Every chain learns; the levels are mirrored SGLD's own, and the verdicts what the table says."""
    result = EXPERIMENTS["corv-vs-mirror"].run(True, SEED)
    table = {name: np.array(values) for name, values in result.table.items()}
    assert list(table["contender"]) == list(CONTENDERS)
    last, end = table["RMSE after 400"], table["iterations to SGLD's at 400"]
    deviation = prepare("demo", blocks=1, seed=SEED).part("test", 0)[0].rating.std()
    assert np.all(last < 0.9 * deviation)
    assert np.all(last < table["RMSE after 40"])
    assert table["iterations to SGLD's at 40"][0] == 40 and end[0] == 400
    third, ahead, _ = result.claims
    assert third.holds == bool(np.all(end[3:] <= 160))
    assert ahead.holds == bool(last[2:].max() < last[:2].min())


def _finals(needs: Sequence[int], diverged: str = "") -> dict[str, Final]:
    """Errors that get to mirrored SGLD's last after so many of five draws."""
    finals = {}
    for name, draws in zip(CONTENDERS, needs, strict=True):
        curve = Curve("test")
        for sweep in range(1, 2 if name == diverged else 6):
            mean = None if name == diverged else 2.0 - sweep / draws
            curve.metrics(sweep, {"test_rmse_mean": mean, "test_rmse_draw": 1.0 + sweep})
        curve.clock = [0.0, 1.0]
        finals[name] = Final(_setting("demo", name, iterations=100), 1e-3, curve)
    return finals


@pytest.mark.parametrize(
    ("needs", "third", "ahead"),
    [([5, 2, 2], True, False), ([2, 5, 2], False, False), ([3, 1, 2], True, True)],
)
def test_verdicts(needs: list[int], third: bool, ahead: bool) -> None:
    for claim, holds in zip(ratings._claims(_finals([5, 4, *needs])), (third, ahead), strict=True):
        assert claim.holds == holds, claim


@pytest.mark.parametrize("diverged", CONTENDERS)
def test_a_chain_that_diverged_is_shown_as_such(diverged: str) -> None:
    finals = _finals([5, 4, 3, 1, 2], diverged)
    table = ratings._table({2: finals})
    lost = np.isnan(np.array(table["RMSE after 100"]))
    assert [name for name, gone in zip(finals, lost, strict=True) if gone] == [diverged]
    assert not ratings._claims(finals)[1].holds
    figure = Figure()
    ratings._draw({2: finals}, figure)
    assert len(figure.axes) == 2


def test_missing_ratings_are_one_line(
    bnmf: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BNMF_MIRROR", "http://127.0.0.1:9")
    out = tmp_path / "out"
    bnmf("experiment", "corv-vs-mirror", "--out", out).refused("ml-1m", "BNMF_MIRROR")
    assert not out.exists()


@pytest.mark.realdata
@pytest.mark.parametrize("contender", ["SGLD, mirror", "CoRV, softplus"])
def test_both_learn_from_real_ratings(
    real_data: Path, monkeypatch: pytest.MonkeyPatch, contender: str
) -> None:
    """500 iterations are six times the training ratings; biases alone have 0.91, the mean 1.12."""
    monkeypatch.setenv("BNMF_DATA_DIR", str(real_data))
    dataset = prepare("ml-1m", blocks=1, seed=SEED)
    curve = Curve("test")
    setting = _setting("ml-1m", contender, ranks=(20,), batch_size=10_000, burn_in=300)
    with pool_of(dataset) as pool:
        run(pool, setting.job(dataset, 1e-3, 500, 0), curve)
    assert 0.91 < curve.of_mean[-1] < 1.0
