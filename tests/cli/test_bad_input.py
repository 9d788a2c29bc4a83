"""Bad input: one line that names the place and the way out, exit code 2, nothing half-written."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bnmf.run import Run, read_json, save_tensors, write_json
from tests.bnmf.small import same_progress
from tests.conftest import Command

QUICK = ("--rank", "3", "--sweeps", "12", "--blocks", "2", "--thin", "3")


def trained(bnmf: Command, data: Path, out: Path) -> Path:
    outcome = bnmf("train", "--data", data, "--out", out, *QUICK)
    assert outcome.code == 0, outcome.err
    return out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--rank", "0"), ("--rank", "greater")),
        (("--rank", "51"), ("--rank 51", "50 items", "at most 50")),
        (("--rank", "two"), ("--rank",)),
        (("--step-size", "-0.1"), ("--step-size",)),
        (("--step-size", "nan"), ("--step-size",)),
        (("--step-size", "inf"), ("--step-size",)),
        (("--blocks", "60"), ("--blocks", "60")),
        (("--blocks", "0"), ("--blocks",)),
        (("--sweeps", "0"), ("--sweeps",)),
        (("--burn-in", "1500"), ("--burn-in 1500", "--sweeps")),
        (("--temperature", "-1"), ("--temperature",)),
        (("--counts-per-unit", "0"), ("--counts-per-unit",)),
        (("--schedule", "polynomial:0.4:1"), ("schedule", "GAMMA")),
        (("--schedule", "cosine"), ("schedule", "cosine")),
        (("--sampler", "gibbs"), ("--sampler", "gibbs", "sgld")),
        (("--transform", "sigmoid"), ("--transform", "softplus")),
        (("--domain", "ito"), ("--domain ito", "--sampler sgld", "sgnht")),
        (("--transform", "identity"), ("--transform identity", "(0, inf)", "icll")),
        (("--step-size", "5"), ("--step-size 5", "--friction 0.5")),
        (("--sampler", "sghmc", "--noise-estimate", "99"), ("--noise-estimate 99", "--friction")),
        (("--sampler", "sgld", "--friction", "1"), ("--friction", "sghmc", "sgld")),
        (("--monomial", "2"), ("--monomial", "sgmgt")),
        (("--diffusion", "1"), ("--diffusion", "sgmgt-d")),
        (("--sweeps", "8", "--burn-in", "2", "--thin", "7"), ("--thin 7", "6 sweeps")),
        (("--sampler", "sgmgt", "--monomial", "3"), ("--monomial", "3")),
        (("--noise-estimate", "1"), ("--noise-estimate", "sghmc")),
        (
            ("--prior", "exponential", "--domain", "mirror", "--transform", "exp"),
            ("--transform", "mirror", "corv"),
        ),
        (("--resample-every", "0"), ("--resample-every",)),
        (("--model", "svd"), ("--model",)),
        (
            ("--model", "gaussian-mf", "--transform", "softplus"),
            ("--transform softplus", "identity"),
        ),
        (("--domain", "mirror"), ("--domain mirror", "--prior exponential")),
        (
            ("--model", "gaussian-mf", "--prior", "exponential"),
            ("--prior exponential", "poisson-nmf"),
        ),
        (("--prior", "exponential", "--no-implicit"), ("--implicit", "--prior hierarchical")),
        (("--prior", "exponential", "--non-negative"), ("--non-negative", "hierarchical")),
        (("--counts-per-unit", "2"), ("--counts-per-unit", "--prior exponential")),
        (("--preset", "fast"), ("--preset fast", "corv-paper")),
        (("--split", "0.8:0.2"), ("--split",)),
        (("--split", "0.8:0.1:0.2"), ("--split", "1")),
        (("--split", "0:0.5:0.5"), ("--split",)),
        (("--split", "a:b:c"), ("--split",)),
        (("--folds", "5"), ("--fold",)),
        (("--folds", "5", "--fold", "6"), ("--fold",)),
        (("--no-such-flag",), ("--no-such-flag",)),
        (("--config", "nowhere.toml"), ("nowhere.toml", "--config")),
        (("--resume",), ("no-run", "not a run folder")),
    ],
    ids=lambda value: " ".join(value),
)
def test_flags(
    bnmf: Command,
    ratings_csv: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = bnmf("train", "--data", ratings_csv, "--out", tmp_path / "no-run", *flags)
    outcome.refused(*words)
    assert not (tmp_path / "no-run").exists() and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rank = 3\nrnk = 4\n", ("config.toml: rnk", "spelling")),
        ("rank = -3\n", ("config.toml: rank", "-3")),
        ("rank = \n", ("config.toml", "TOML")),
        ("rank = 'three'\n", ("config.toml: rank", "three")),
    ],
)
def test_config_files(
    bnmf: Command, ratings_csv: Path, tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "config.toml").write_text(text)
    bnmf(
        "train", "--data", ratings_csv, "--config", tmp_path / "config.toml",
        "--out", tmp_path / "run",
    ).refused(*words)  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_train_needs_data(bnmf: Command) -> None:
    bnmf("train").refused("--data", "required")
    bnmf("train", "--data", "ml-2m").refused("ml-2m", "ml-1m")
    bnmf("train", "--resume").refused("--resume", "--out")


def test_negative_and_zero_ratings_do_not_suit_poisson(bnmf: Command, tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    rows = [f"{u},{i},{(u * i) % 5 - 1}" for u in range(20) for i in range(10)]
    path.write_text("user,item,rating\n" + "\n".join(rows))
    bnmf("train", "--data", path, "--out", tmp_path / "run", *QUICK).refused("-1", "poisson-nmf")
    path.write_text("user,item,rating\n" + "\n".join(f"{n},{n % 7},0" for n in range(50)))
    bnmf("train", "--data", path, "--out", tmp_path / "run", *QUICK).refused("all", "0")
    assert not (tmp_path / "run").exists()


def test_an_existing_folder_is_never_overwritten(
    bnmf: Command, ratings_csv: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    bnmf("train", "--data", ratings_csv, "--out", tmp_path / "mine").refused("--out", "exists")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_resume_takes_the_runs_own_configuration_and_data(
    bnmf: Command, ratings_csv: Path, tmp_path: Path
) -> None:
    run = trained(bnmf, ratings_csv, tmp_path / "run")
    bnmf("train", "--out", run, "--resume", "--rank", "4").refused("--rank 4", "3")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["status"] = "interrupted"
    (run / "manifest.json").write_text(json.dumps(manifest))
    lines = ratings_csv.read_text().splitlines()
    ratings_csv.write_text("\n".join(lines[:-1]))
    bnmf("train", "--out", run, "--resume").refused(str(run), "another dataset")


def test_folders_that_are_no_runs(bnmf: Command, tmp_path: Path) -> None:
    pairs = tmp_path / "p.csv"
    pairs.write_text("user,item\n1,2\n")
    for folder in (tmp_path / "nowhere", tmp_path):
        bnmf("evaluate", folder).refused(str(folder), "not a run folder")
        bnmf("score", folder, "--pairs", pairs, "--out", tmp_path / "s").refused("not a run folder")
    (tmp_path / "manifest.json").write_text("{")
    bnmf("evaluate", tmp_path).refused("manifest.json", "damaged")
    (tmp_path / "manifest.json").write_text('{"format": 99}')
    bnmf("evaluate", tmp_path).refused("99")


def test_damaged_draws(bnmf: Command, ratings_csv: Path, tmp_path: Path) -> None:
    run = trained(bnmf, ratings_csv, tmp_path / "run")
    pairs, out = tmp_path / "p.csv", tmp_path / "s.parquet"
    pairs.write_text("user,item\nu1,100\n")
    draw = min((run / "draws").glob("*.safetensors"))
    whole = draw.read_bytes()
    flipped = bytearray(whole)
    flipped[-3] ^= 1
    for content in (whole[: len(whole) // 2], b"", bytes(flipped)):
        draw.write_bytes(content)
        bnmf("score", run, "--pairs", pairs, "--out", out).refused(draw.name, "train again")
    draw.unlink()
    bnmf("score", run, "--pairs", pairs, "--out", out).refused(draw.name)
    digest = save_tensors(draw, {"W": torch.zeros(2, 3), "H": torch.zeros(2, 3)})
    index = json.loads((run / "draws" / "index.json").read_text())
    index["draws"][0]["sha256"] = digest
    (run / "draws" / "index.json").write_text(json.dumps(index))
    bnmf("score", run, "--pairs", pairs, "--out", out).refused(draw.name, "not a draw of this run")
    shutil.rmtree(run / "draws")
    bnmf("score", run, "--pairs", pairs, "--out", out).refused("no draws")
    assert not out.exists()


@pytest.mark.parametrize(
    "damage",
    [
        {"edges": []},
        {"edges": [1.0, 2.0]},
        {"edges": [float("nan")] * 9},
        {"edges": [4.5 - 0.5 * k for k in range(9)]},
        {"edges": None},
        {"sharpness": 0.0},
        {"sharpness": float("inf")},
    ],
    ids=str,
)
def test_damaged_cells(
    bnmf: Command, ratings_csv: Path, tmp_path: Path, damage: dict[str, object]
) -> None:
    run = trained(bnmf, ratings_csv, tmp_path / "run")
    whole = read_json(run / "cells.json")
    write_json(run / "cells.json", whole | damage)
    bnmf("evaluate", run).refused("cells.json", "train again")
    (run / "cells.json").unlink()
    bnmf("evaluate", run).refused("cells.json")
    write_json(run / "cells.json", whole)
    assert bnmf("evaluate", run).code == 0


def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    bnmf: Command, ratings_csv: Path, tmp_path: Path
) -> None:
    run = Run(trained(bnmf, ratings_csv, tmp_path / "run"))
    (chain,) = run.chains
    progress, snapshot = chain.load_checkpoint() or pytest.fail("no checkpoint")
    newer = replace(progress, sweep=progress.sweep + 1)
    chain.save_checkpoint(newer, snapshot)
    assert same_progress((chain.load_checkpoint() or pytest.fail())[0], newer)
    folder = run.path / "checkpoints" / "sweep-000013"
    manifest = read_json(folder / "manifest.json")
    for damaged in (
        {},
        {**manifest, "sha256": {}},
        {**manifest, "sha256": None},
        {**manifest, "progress": {"sweep": 13}},
        {**manifest, "progress": {**manifest["progress"], "sweep": "13"}},
        {**manifest, "progress": {**manifest["progress"], "row_curvature": None}},
        {**manifest, "progress": {**manifest["progress"], "row_curvature": [1.0, [None]]}},
    ):
        write_json(folder / "manifest.json", damaged)
        assert same_progress((chain.load_checkpoint() or pytest.fail())[0], progress), damaged
    write_json(folder / "manifest.json", manifest)
    assert same_progress((chain.load_checkpoint() or pytest.fail())[0], newer)
    for path in folder.glob("row-000*"):
        path.write_bytes(path.read_bytes()[:-1])
    assert same_progress((chain.load_checkpoint() or pytest.fail())[0], progress)
    write_json(run.path / "checkpoints" / "sweep-000012" / "manifest.json", {})
    write_json(folder / "manifest.json", {})
    run.set_status("interrupted")
    bnmf("train", "--out", run.path, "--resume").refused("sweep-000013", "manifest.json", "damaged")


def test_damaged_predictions(bnmf: Command, ratings_csv: Path, tmp_path: Path) -> None:
    run = trained(bnmf, ratings_csv, tmp_path / "run")
    path = run / "predictions" / "test.parquet"
    whole = pq.read_table(path)
    path.write_bytes(path.read_bytes()[:-100])
    bnmf("evaluate", run).refused("test.parquet", "damaged", "make it again")
    path.unlink()
    bnmf("evaluate", run).refused("test.parquet")
    for other in (
        pa.table({"x": [1]}),
        whole.set_column(2, "rating", whole["rating"].cast(pa.string())),
        whole.slice(1),
        whole.set_column(0, "user", pa.array([f"v{n}" for n in range(len(whole))])),
    ):
        pq.write_table(other, path)
        bnmf("evaluate", run).refused("test.parquet", "restore it")


def test_a_full_disk(
    bnmf: Command, ratings_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up while a draw is written: one line, and the run can be resumed."""
    out = tmp_path / "run"
    write_bytes = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if "sweep-000009" in path.name:
            write_bytes(path, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write_bytes(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        outcome = bnmf("train", "--data", ratings_csv, "--out", out, *QUICK)
    outcome.refused("disk is full", "sweep-000009")
    assert all(
        "sweep" not in p.name or p.suffix == ".safetensors" for p in (out / "draws").iterdir()
    )
    assert bnmf("train", "--out", out, "--resume").code == 0
    assert bnmf("evaluate", out).code == 0


def test_damaged_data_leave_no_run(bnmf: Command, ratings_csv: Path, tmp_path: Path) -> None:
    assert bnmf("data", "ingest", ratings_csv, "--out", tmp_path / "d").code == 0
    with (tmp_path / "d" / "train" / "row-block-000.parquet").open("ab") as file:
        file.write(b"x")
    outcome = bnmf("train", "--data", tmp_path / "d", "--out", tmp_path / "run", *QUICK[:4])
    outcome.refused("row-block-000.parquet", "ingest again")
    assert not (tmp_path / "run").exists()


def test_a_run_that_lost_its_report_gets_it_on_resume(
    bnmf: Command, ratings_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(run: Run) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bnmf.api.report_of", interrupted)
        out = tmp_path / "run"
        assert bnmf("train", "--data", ratings_csv, "--out", out, *QUICK).code == 130
    assert bnmf("train", "--out", out, "--resume").code == 0
    assert (out / "report.json").exists() and bnmf("evaluate", out).code == 0


def test_a_folder_in_the_way_does_not_take_a_data_sets_name(
    bnmf: Command, ratings_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert bnmf("data", "ingest", ratings_csv, "--out", "demo").code == 0
    outcome = bnmf("train", "--data", "demo", "--out", "run", "--sweeps", "4", "--json")
    assert json.loads(outcome.out)["test"]["count"] > 10_000


def test_damaged_run_files(bnmf: Command, ratings_csv: Path, tmp_path: Path) -> None:
    run = trained(bnmf, ratings_csv, tmp_path / "run")
    for name, content in (
        ("draws/index.json", '{"draws": [{}]}'),
        ("config.toml", 'data = "x"'),
        ("manifest.json", '{"format": 2}'),
        ("manifest.json", (run / "manifest.json").read_text().replace('"mean"', '"man"')),
    ):
        whole = (run / name).read_text()
        (run / name).write_text(content)
        bnmf("evaluate", run).refused(name, "train again")
        (run / name).write_text(whole)


def test_a_damaged_log_stops_a_resume(bnmf: Command, ratings_csv: Path, tmp_path: Path) -> None:
    run = trained(bnmf, ratings_csv, tmp_path / "run")
    manifest = run / "manifest.json"
    manifest.write_text(manifest.read_text().replace("finished", "interrupted"))
    log = run / "metrics.jsonl"
    lines = log.read_text().splitlines(True)
    log.write_text("".join([lines[0], lines[1][:9] + "\n", *lines[2:]]))
    bnmf("train", "--out", run, "--resume").refused("metrics.jsonl", "damaged")
    log.write_text("".join([*lines[:-1], lines[-1][:9]]))  # a kill cuts the last line alone
    assert bnmf("train", "--out", run, "--resume").code == 0


def test_the_configuration_of_a_run_is_named_as_its_own(
    bnmf: Command, ratings_csv: Path, tmp_path: Path
) -> None:
    run = trained(bnmf, ratings_csv, tmp_path / "run")
    path = run / "config.toml"
    whole = path.read_text()
    for content, words in (
        (None, ("cannot be read", "restore it")),
        ("rank =", ("TOML", "restore it")),
        (whole.replace("rank = 3", "rank = -3"), ("rank", "-3")),
        (whole + 'preset = "fast"\n', ("preset fast",)),
        (whole.replace("thin = 3", ""), ("damaged", "restore it")),
    ):
        path.unlink() if content is None else path.write_text(content)
        for command in (("evaluate", run), ("train", "--out", run, "--resume")):
            outcome = bnmf(*command)
            outcome.refused(str(path), *words)
            assert "--" not in outcome.err
    path.write_text(whole)
    bnmf("train", "--out", run, "--resume", "--threads", "0").refused("--threads")
    assert bnmf("train", "--out", run, "--resume", "--threads", "1").code == 0


def test_blank_lines_before_a_header(bnmf: Command, ratings_csv: Path, tmp_path: Path) -> None:
    run = trained(bnmf, ratings_csv, tmp_path / "run")
    (tmp_path / "p.csv").write_text("\n\nuser,item\nu1,100\n")
    scored = bnmf("score", run, "--pairs", tmp_path / "p.csv", "--out", tmp_path / "s", "--json")
    assert json.loads(scored.out)["pairs"] == 1
    missing = tmp_path / "nowhere" / "s"
    bnmf("score", run, "--pairs", tmp_path / "no.csv", "--out", missing).refused("no.csv")
    assert not missing.parent.exists()
