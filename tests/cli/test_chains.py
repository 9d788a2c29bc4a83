"""`bnmf train --chains`: side by side, pooled, gone on with, and judged."""

from __future__ import annotations

import errno
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from bnmf.posterior import Posterior
from bnmf.run import Run
from tests.conftest import Command
from tests.oracles import numpy_noise

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import arviz
    import h5py

QUICK = ("--rank", "3", "--sweeps", "24", "--blocks", "2", "--threads", "2", "--thin", "1")
WARNING = "warning: not converged: R-hat above 1.05 of "


def trained(bnmf: Command, data: Path, out: Path, *flags: object) -> Path:
    outcome = bnmf("train", "--data", data, "--out", out, *QUICK, *flags)
    assert outcome.code == 0, outcome.err
    return out


def contents(folder: Path) -> dict[str, bytes]:
    """Every file that must be the same however the run was made."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("timings.jsonl", "config.toml")
    }


@pytest.fixture
def both(bnmf: Command, ratings_csv: Path, tmp_path: Path) -> Path:
    return trained(bnmf, ratings_csv, tmp_path / "both", "--chains", "2")


def test_a_chain_writes_what_it_would_alone(
    bnmf: Command, ratings_csv: Path, tmp_path: Path, both: Path
) -> None:
    alone = contents(trained(bnmf, ratings_csv, tmp_path / "alone"))
    first = contents(both / "chain-0")
    assert {name.split("/")[0] for name in first} == {
        "metrics.jsonl", "traces.jsonl", "draws", "checkpoints",
    }  # fmt: skip
    assert first.items() <= alone.items()
    assert first["metrics.jsonl"] != (both / "chain-1" / "metrics.jsonl").read_bytes()
    three = trained(bnmf, ratings_csv, tmp_path / "three", "--chains", "3", "--threads", "6")
    assert contents(three / "chain-1") == contents(both / "chain-1")


def test_predictions_are_pooled(bnmf: Command, both: Path) -> None:
    """By brute force: every draw after burn-in is kept."""
    table = pq.read_table(both / "predictions" / "test.parquet")
    places = []
    for name in ("user", "item"):
        ids = pq.read_table(both / f"{name}s.parquet")["id"].to_pylist()
        places.append([ids.index(x) for x in table[name].to_pylist()])
    files = sorted(both.glob("chain-*/draws/*.safetensors"))
    assert len(files) == 2 * 18
    draws = [load_file(file) for file in files]
    rates = np.array(
        [np.einsum("nk,nk->n", d["W"][places[0]].astype(float), d["H"][places[1]]) for d in draws]
    )
    np.testing.assert_allclose(table["mean"], rates.mean(0), rtol=1e-5)
    np.testing.assert_allclose(table["std_epistemic"], rates.std(0), rtol=1e-3)
    posterior = Posterior.load(both)
    assert len(posterior.weights) == 36
    mean, _ = posterior.score(table["user"].to_pylist(), table["item"].to_pylist())
    np.testing.assert_allclose(mean, rates.mean(0), rtol=1e-5)
    error = table["rating"].to_numpy() - rates.mean(0)
    report = json.loads(bnmf("evaluate", both, "--json").out)
    assert report["test"]["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-5)


def test_stopped_chains_go_on_from_where_each_was(
    bnmf: Command,
    ratings_csv: Path,
    tmp_path: Path,
    both: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk is full when the second chain keeps a draw: the first one stops somewhere."""
    out = tmp_path / "stopped"
    write_bytes = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if "sweep-000011" in path.name and path.parts[-3] == "chain-1":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write_bytes(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        flags = ("--data", ratings_csv, "--out", out, *QUICK, "--chains", "2")
        bnmf("train", *flags).refused("disk is full", "sweep-000011")
    bnmf("train", "--out", out, "--resume", "--chains", "4").refused("--chains 4", "the run's 2")
    (out / "chain-1" / "draws" / ".half.tmp").touch()
    again = bnmf("train", "--out", out, "--resume", "--chains", "2", "--threads", "1")
    assert again.code == 0, again.err
    assert contents(out) == contents(both)


@pytest.mark.parametrize("chains", ["0", "-1", "two"])
def test_numbers_of_chains_that_cannot_be(
    bnmf: Command, ratings_csv: Path, tmp_path: Path, chains: str
) -> None:
    out = tmp_path / "run"
    bnmf("train", "--data", ratings_csv, "--out", out, "--chains", chains).refused("--chains")
    assert not out.exists()


def test_a_chain_that_diverges_is_refused(bnmf: Command, ratings_csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = ("--data", ratings_csv, "--out", out, "--step-size", "1.2", "--chains", "2")
    bnmf("train", *flags).refused("non-finite at sweep", "--step-size")
    assert Run(out).status == "diverged"


# -- convergence ----------------------------------------------------------------------------


def rewritten(run: Path, change: float) -> np.ndarray:
    """White noise for traces, the second chain's predictions ``change`` away; (2, 18, 5)."""
    x = numpy_noise(8).normal(size=(2, 18, 5))
    x[1, :, 1:] += change
    for chain, traces in enumerate(x):
        lines = [
            json.dumps({"sweep": 7 + t, "log_prob": row[:1].tolist(), "rates": row[1:].tolist()})
            for t, row in enumerate(traces)
        ]
        (run / f"chain-{chain}" / "traces.jsonl").write_text("\n".join(lines) + "\n")
    return x


def test_chains_apart_are_warned_of_with_the_way_out(bnmf: Command, both: Path) -> None:
    x = rewritten(both, 4.0)
    outcome = bnmf("evaluate", both, "--json")
    assert outcome.code == 0
    (warning,) = outcome.err.splitlines()
    report = json.loads(outcome.out)["convergence"]
    assert warning.startswith(WARNING) and f"rates up to {report['rates']['rhat']:.2f}" in warning
    assert "--sweeps" in warning and "--burn-in" in warning
    known = [
        (arviz.rhat(x[..., n]), *(arviz.ess(x[..., n], method=m) for m in ("bulk", "tail")))
        for n in range(1, 5)
    ]
    rhat, bulk, tail = np.array(known).T
    assert report["rates"] == pytest.approx(
        {"count": 4, "rhat": rhat.max(), "above": 4, "ess_bulk": bulk.min(), "ess_tail": tail.min()}
    )
    shown = bnmf("evaluate", both).out
    assert f"{rhat.max():.3f}" in shown and "log-likelihood" in shown


def test_a_short_run_is_warned_of_and_its_report_says_so(
    bnmf: Command, ratings_csv: Path, tmp_path: Path
) -> None:
    """One chain, compared with itself: 24 sweeps from a far start."""
    out = tmp_path / "run"
    outcome = bnmf("train", "--data", ratings_csv, "--out", out, *QUICK, "--burn-in", "0")
    assert outcome.code == 0 and WARNING in outcome.err
    report = json.loads((out / "report.json").read_text())["convergence"]
    assert report["log_prob"]["rhat"] > 1.05 and report["log_prob"]["above"] == 1
    assert report["predictions"]["count"] == 64


def test_two_sweeps_say_nothing(bnmf: Command, ratings_csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    outcome = bnmf("train", "--data", ratings_csv, "--out", out, *QUICK, "--burn-in", "22")
    assert outcome.code == 0 and WARNING not in outcome.err
    report = json.loads((out / "report.json").read_text())["convergence"]
    assert report["log_prob"] == {
        "count": 1, "rhat": None, "above": 0, "ess_bulk": None, "ess_tail": None,
    }  # fmt: skip
    assert "log-likelihood" in outcome.out


def test_damaged_traces(bnmf: Command, both: Path) -> None:
    path = both / "chain-1" / "traces.jsonl"
    whole = path.read_text()
    lines = whole.splitlines(True)
    for content in (
        whole[:-9], "".join(lines[:-1]), whole.replace("predictions", "rates"), "3\n" * 18, "",
        whole.replace("[", "", 1), whole.replace('"log_prob": [', '"log_prob": [1.0, ', 1),
    ):  # fmt: skip
        path.write_text(content)
        bnmf("evaluate", both).refused("chain-1/traces.jsonl", "damaged", "train again")
    path.unlink()
    bnmf("evaluate", both).refused("chain-1/traces.jsonl", "train again")


def test_inference_data(bnmf: Command, both: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "traces.nc"
    outcome = bnmf("evaluate", both, "--inference-data", path, "--json")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)["convergence"]
    data = arviz.from_netcdf(path)
    assert data.posterior.sizes["chain"] == 2
    assert data.posterior.draw.values.tolist() == list(range(7, 25))
    for chain in range(2):
        lines = (both / f"chain-{chain}" / "traces.jsonl").read_text().splitlines()
        for t, line in enumerate(map(json.loads, lines)):
            assert data.posterior.predictions[chain, t].values.tolist() == line["predictions"]
            assert [float(data.posterior.log_prob[chain, t])] == line["log_prob"]
    rhat = arviz.rhat(data, var_names=["predictions"])
    assert float(rhat.predictions.max()) == pytest.approx(report["predictions"]["rhat"])
    data.close()
    with h5py.File(path) as file:  # plain numbers: nothing to unpickle
        kinds: set[str] = set()
        file.visititems(lambda _, node: kinds.add(getattr(node, "dtype", np.dtype("f8")).kind))
    assert kinds <= {"f", "i"}
    assert [p.name for p in path.parent.iterdir()] == ["traces.nc"]


def test_inference_data_that_cannot_be_written(
    bnmf: Command, both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bnmf("evaluate", both, "--inference-data", tmp_path).refused("--inference-data", "folder")
    missing = tmp_path / "new" / "traces.nc"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "arviz", None)
        outcome = bnmf("evaluate", both, "--inference-data", missing)
    outcome.refused("--inference-data", "bnmf[arviz]")
    Run(both).set_status("interrupted")
    bnmf("evaluate", both, "--inference-data", missing).refused("interrupted", "--resume")
    assert not missing.parent.exists()
