"""`bnmf score`: any pairs, in order, raw ids in and out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from bnmf.config import config_of
from bnmf.posterior import Posterior
from bnmf.run import Run
from tests.conftest import Command


@pytest.fixture
def run(bnmf: Command, ratings_csv: Path, tmp_path: Path) -> Path:
    out = tmp_path / "run"
    flags = ("--rank", "3", "--sweeps", "40", "--blocks", "2", "--split", "1:0:0")
    outcome = bnmf("train", "--data", ratings_csv, "--out", out, *flags)
    assert outcome.code == 0, outcome.err
    return out


def by_hand(run: Path, user: str, item: int) -> tuple[float, float, float]:
    """(mean, std, epistemic std) of a known pair by brute force over the draws' files."""
    users = pq.read_table(run / "users.parquet")["id"].to_pylist()
    items = pq.read_table(run / "items.parquet")["id"].to_pylist()
    rates, weights, noise = [], [], []
    for entry in Run(run).chains[0].draws():
        weights.append(entry["weight"])
        draw = load_file(run / "draws" / entry["file"])
        w, h = draw["W"][users.index(user)].astype(float), draw["H"][items.index(item)]
        rates.append(w @ h)
        noise.append(rates[-1] / np.exp(w[-2] + h[-1]))  # Poisson: mu / s
    mean = np.average(rates, weights=weights)
    variance = np.average((np.array(rates) - mean) ** 2, weights=weights)
    spread = variance + np.average(noise, weights=weights)
    return float(mean), float(np.sqrt(spread)), float(np.sqrt(variance))


def test_pairs_keep_their_order_and_their_ids(bnmf: Command, run: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.parquet"
    rng = np.random.default_rng(0)
    users = [f"u{n}" for n in rng.integers(0, 90, 5000)]
    items = rng.integers(90, 160, 5000)
    pq.write_table(pa.table({"item": items, "note": ["x"] * 5000, "user": users}), pairs)
    out = tmp_path / "scores.parquet"
    outcome = bnmf("score", run, "--pairs", pairs, "--out", out, "--json")
    assert outcome.code == 0, outcome.err
    scores = pq.read_table(out)
    assert scores.column_names == [
        "user", "item", "mean", "std", "std_epistemic", "known_user", "known_item",
    ]  # fmt: skip
    assert scores["user"].to_pylist() == users
    assert scores["item"].to_pylist() == items.tolist()
    known = np.array([int(u[1:]) < 70 for u in users]), (items >= 100) & (items < 150)
    np.testing.assert_array_equal(scores["known_user"], known[0])
    np.testing.assert_array_equal(scores["known_item"], known[1])
    unknown = int((~(known[0] & known[1])).sum())
    assert json.loads(outcome.out) == {"out": str(out), "pairs": 5000, "unknown": unknown}
    for at in np.flatnonzero(known[0] & known[1])[:20]:
        row = scores.slice(int(at), 1).to_pylist()[0]
        mean, std, epistemic = by_hand(run, row["user"], row["item"])
        assert row["mean"] == pytest.approx(mean, rel=1e-5)
        assert row["std"] == pytest.approx(std, rel=1e-4)
        assert row["std_epistemic"] == pytest.approx(epistemic, rel=1e-3)


def test_unknown_ids_get_the_priors_prediction(
    bnmf: Command, ratings_csv: Path, tmp_path: Path
) -> None:
    """Against Monte Carlo from the Exponential prior, within 5 standard errors."""
    run = tmp_path / "exponential"
    flags = ("--rank", "3", "--sweeps", "40", "--split", "1:0:0", "--prior", "exponential")
    assert bnmf("train", "--data", ratings_csv, "--out", run, *flags).code == 0
    posterior = Posterior.load(run)
    got = posterior.predict(["nobody", "nobody", "u3"], [100, -1, -1])
    assert got.known_user.tolist() == [False, False, True]
    assert got.known_item.tolist() == [True, False, False]
    config = config_of(run).model_dump()
    rng = np.random.default_rng(1)
    n, k = 400_000, config["rank"]
    w = rng.exponential(1 / config["prior_rate_w"], (n, k))
    h = rng.exponential(1 / config["prior_rate_h"], (n, k))
    draw = rng.integers(0, posterior.w.shape[1], n)
    item = posterior.h[int(posterior.items.lookup([100])[0])].numpy()[draw]
    user = posterior.w[int(posterior.users.lookup(["u3"])[0])].numpy()[draw]
    for at, (x, y) in enumerate([(w, item), (w, h), (user, h)]):
        rate = (x * y).sum(1)
        assert abs(got.mean[at] - rate.mean()) < 5 * rate.std() / np.sqrt(n)
        square = (rate - rate.mean()) ** 2
        assert abs(got.std_epistemic[at] ** 2 - rate.var()) < 5 * square.std() / np.sqrt(n)
        expected = got.std_epistemic[at] ** 2 + got.mean[at] / config["counts_per_unit"]
        assert got.std[at] ** 2 == pytest.approx(expected, rel=1e-9)


def test_draws_count_by_their_weights(bnmf: Command, ratings_csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = ("--rank", "3", "--sweeps", "40", "--schedule", "polynomial:0.9:1", "--thin", "1")
    assert bnmf("train", "--data", ratings_csv, "--out", out, *flags).code == 0
    mean, std, epistemic = by_hand(out, "u1", 100)
    got = Posterior.load(out).predict(["u1"], [100])
    assert got.mean[0] == pytest.approx(mean, rel=1e-5)
    assert got.std[0] == pytest.approx(std, rel=1e-4)
    assert got.std_epistemic[0] == pytest.approx(epistemic, rel=1e-3)


def test_ids_that_only_the_test_file_has_are_unknown(
    bnmf: Command, ratings_csv: Path, tmp_path: Path
) -> None:
    (tmp_path / "test.csv").write_text("user,item,rating\nnew,100,3\nu1,101,4\n")
    flags = ("--rank", "3", "--sweeps", "20", "--test-file", tmp_path / "test.csv")
    outcome = bnmf("train", "--data", ratings_csv, "--out", tmp_path / "run", *flags)
    assert outcome.code == 0, outcome.err
    got = Posterior.load(tmp_path / "run").predict(["new", "u1", "nobody"], [100, 100, 100])
    assert got.known_user.tolist() == [False, True, False]
    assert (got.mean[0], got.std[0]) == pytest.approx((got.mean[2], got.std[2]), rel=1e-12)


def test_csv_pairs_and_parquet_pairs_score_alike(bnmf: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("movie_id,who\n100,u1\n149,u69\nx,u0\n")
    table = pa.table({"who": ["u1", "u69", "u0"], "movie_id": ["100", "149", "x"]})
    pq.write_table(table, tmp_path / "p.parquet")
    scores = []
    for kind in ("csv", "parquet"):
        out = tmp_path / f"{kind}.scores"
        outcome = bnmf(
            "score", run, "--pairs", tmp_path / f"p.{kind}", "--out", out, "--user-col", "who"
        )
        assert outcome.code == 0, outcome.err
        scores.append(pq.read_table(out).select(["mean", "std", "known_user", "known_item"]))
    assert scores[0].equals(scores[1])
    assert scores[0]["known_item"].to_pylist() == [True, True, False]


def test_bad_pairs_are_refused_and_leave_nothing(bnmf: Command, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.parquet"
    pairs = tmp_path / "pairs.csv"
    bnmf("score", run, "--pairs", pairs, "--out", out).refused(str(pairs))
    pairs.write_text("")
    bnmf("score", run, "--pairs", pairs, "--out", out).refused(str(pairs))
    pairs.write_text("user,item\n")
    bnmf("score", run, "--pairs", pairs, "--out", out).refused(str(pairs))
    pairs.write_text("who,what\nu1,100\n")
    bnmf("score", run, "--pairs", pairs, "--out", out).refused(str(pairs), "--user-col", "who")
    pairs.write_text("user,item\nu1,100\n")
    bnmf("score", run, "--pairs", pairs, "--out", pairs).refused("--out", "--pairs")
    assert pairs.read_text() == "user,item\nu1,100\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.csv", "run", "small.csv"]


PEAK = """
import sys
from pathlib import Path
from bnmf.cli.main import run
from data_pipeline import readers
readers.BATCH_ROWS = 1 << 14
assert run(sys.argv[1:]) == 0
(line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x[:6] == "VmHWM:")
print(line.split()[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_memory_does_not_grow_with_the_number_of_pairs(run: Path, tmp_path: Path) -> None:
    """Peak of 100 k pairs and of 800 k, in batches of 16 k: both fill several batches.

    With ids of 100 characters, to hold the 700 k pairs more, or their scores, would take 140 MB
    for the ids alone. What does grow is small: the allocators' slack, the footer of the Parquet
    file, 10 to 20 MB. (VmHWM, since ru_maxrss starts at the peak of the process that forked.)
    """
    ids = pa.array([f"{n:0100d}" for n in range(100)])
    rng = np.random.default_rng(0)
    peaks = []
    for n in (100_000, 800_000):
        pairs, out = tmp_path / f"{n}.parquet", tmp_path / f"{n}.scores"
        columns = {name: ids.take(pa.array(rng.integers(0, 100, n))) for name in ("user", "item")}
        pq.write_table(pa.table(columns), pairs)
        command = [sys.executable, "-c", PEAK, "score", run, "--pairs", pairs, "--out", out]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        peaks.append(int(printed.splitlines()[-1]) * 1024)
        assert pq.read_metadata(out).num_rows == n
    assert peaks[1] - peaks[0] < 70e6, peaks
