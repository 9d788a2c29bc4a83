"""The run folder: everything that one training run leaves on disk.

    config.toml                  the resolved configuration, fit for ``--config``
    manifest.json                status, dataset, shape, versions
    users.parquet items.parquet  raw ids in index order, with their training counts
    predictions/                 held-out ratings with their predictive mean and spread
    cells.json                   edges between neighbouring ratings, for their probabilities
    report.json                  how good the predictions are, and whether the chains converged

and of its chain, or in chain-0/, chain-1/ and so on of each of several:

    metrics.jsonl                one line a sweep; the same bytes however often a run is resumed
    traces.jsonl                 what convergence is judged by, one line a sweep after burn-in
    timings.jsonl                seconds, one line a sweep: the only file that is not reproducible
    checkpoints/                 the last two states to go on from; the final one at the end
    draws/                       kept (W, H), and index.json with their weights and hashes

Every file is written beside its place and renamed.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field, FiniteFloat, PositiveFloat, ValidationError
from safetensors.torch import load, save
from torch import Tensor

from bnmf.cells import Cells
from bnmf.likelihoods import RatingScale
from bnmf.models import Curvature
from bnmf.pool import Tensors
from bnmf.training import Progress
from data_pipeline.errors import InputError
from data_pipeline.files import naming, replace_file, replace_folder

FORMAT = 2
LOGS = ("metrics.jsonl", "traces.jsonl", "timings.jsonl")


class _Rating(BaseModel):
    min: float
    max: float
    step: float
    mean: float


class _Dataset(BaseModel):
    digest: str
    counts: dict[str, int]
    rating: _Rating


class _Cells(BaseModel):
    edges: list[FiniteFloat]
    sharpness: PositiveFloat = Field(allow_inf_nan=False)


class _Manifest(BaseModel):
    """What is read of a manifest."""

    status: str
    chains: int = Field(ge=1)
    dataset: _Dataset


class Run:
    """A run folder that exists.

    Raises:
        InputError: on opening, the folder is not a run or its manifest is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "manifest.json").is_file():
            raise InputError(f"{path} is not a run folder: it has no manifest.json")
        self.manifest = read_json(path / "manifest.json")
        if self.manifest.get("format") != FORMAT:
            raise InputError(
                f"{path} has run format {self.manifest.get('format')}, this bnmf reads {FORMAT}: "
                "train again"
            )
        try:
            _Manifest(**self.manifest)
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            raise InputError(
                f"{path / 'manifest.json'} is damaged at {where}: restore it or train again"
            ) from error

    @staticmethod
    def create(
        path: Path, config_toml: str, manifest: Mapping[str, Any], vocabularies: Iterable[Path]
    ) -> Run:
        """A new run folder, with copies of the dataset's vocabularies.

        Raises:
            InputError: ``path`` exists and is not empty.
        """
        with replace_folder(path) as folder:
            (folder / "config.toml").write_text(config_toml, encoding="utf-8")
            for vocabulary in vocabularies:
                shutil.copyfile(vocabulary, folder / vocabulary.name)
            for place in _chain_folders(folder, manifest["chains"]):
                place.mkdir(exist_ok=True)
            write_json(folder / "manifest.json", {"format": FORMAT, **manifest})
        return Run(path)

    @property
    def chains(self) -> list[Chain]:
        """Where each chain's files lie."""
        return [Chain(folder) for folder in _chain_folders(self.path, self.manifest["chains"])]

    def cells(self) -> Cells | None:
        """Those fitted when training ended, or None.

        Raises:
            InputError: damaged.
        """
        path = self.path / "cells.json"
        if not path.exists() and self.status != "finished":
            return None
        rating = self.manifest["dataset"]["rating"]
        plain = Cells.rounding(RatingScale(*(rating[name] for name in ("min", "max", "step"))))
        try:
            about = _Cells(**read_json(path))
            edges = np.array(about.edges, np.float64)
            whole = edges.shape == plain.edges.shape and bool((np.diff(edges) > 0).all())
        except ValidationError:
            whole = False
        if not whole:
            raise InputError(f"{path} is damaged: restore it or train again")
        return Cells(plain.scale, edges, about.sharpness)

    def save_cells(self, cells: Cells) -> None:
        """For `cells`."""
        about = _Cells(edges=cells.edges.tolist(), sharpness=cells.sharpness)
        write_json(self.path / "cells.json", about.model_dump())

    @property
    def status(self) -> str:
        """running, interrupted, diverged or finished."""
        return str(self.manifest["status"])

    def set_status(self, status: str) -> None:
        """Write a new status."""
        self.manifest["status"] = status
        write_json(self.path / "manifest.json", self.manifest)

    def tidy(self) -> None:
        """Drop what a killed process left half-written: whatever begins with a dot."""
        for half in list(self.path.rglob(".*")):
            shutil.rmtree(half) if half.is_dir() else half.unlink(missing_ok=True)


def _chain_folders(run: Path, chains: int) -> list[Path]:
    return [run] if chains == 1 else [run / f"chain-{chain}" for chain in range(chains)]


class Chain:
    """The files of one chain: draws, checkpoints and logs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # Draws

    def draws(self) -> list[dict[str, Any]]:
        """The kept draws, oldest first: file, sweep, weight, sha256."""
        index = self.path / "draws" / "index.json"
        entries = read_json(index).get("draws") if index.exists() else []
        needed = {"file", "sweep", "weight", "sha256"}
        if not isinstance(entries, list) or not all(needed <= set(entry) for entry in entries):
            raise InputError(f"{index} is damaged: restore it or train again")
        return entries

    def load_draw(self, entry: Mapping[str, Any]) -> dict[str, Tensor]:
        """The designs W (I, width) and H (J, width) of one entry of `draws`, and hyper-parameters.

        Raises:
            InputError: the file is missing or not the one that was written.
        """
        path = self.path / "draws" / str(entry["file"])
        return load_tensors(path, str(entry["sha256"]))

    def add_draw(self, sweep: int, weight: float, tensors: Tensors) -> None:
        """Keep a draw; the same sweep's is replaced."""
        name = f"sweep-{sweep:06d}.safetensors"
        digest = save_tensors(self.path / "draws" / name, tensors)
        self._index_draws(
            [
                *(entry for entry in self.draws() if entry["sweep"] < sweep),
                {"file": name, "sweep": sweep, "weight": weight, "sha256": digest},
            ]
        )

    def _index_draws(self, entries: list[dict[str, Any]]) -> None:
        write_json(self.path / "draws" / "index.json", {"draws": entries})

    # Checkpoints

    def save_checkpoint(self, progress: Progress, snapshot: Mapping[str, Tensors]) -> None:
        """Commit a checkpoint: one file a block, the manifest with their hashes last."""
        final = self._checkpoint(progress.sweep)
        if final.exists():
            shutil.rmtree(final)
        with replace_folder(final) as folder:
            hashes = {
                name: save_tensors(folder / f"{name}.safetensors", tensors)
                for name, tensors in {**snapshot, "model": dict(progress.hyper)}.items()
            }
            about = {
                "sweep": progress.sweep,
                "row_curvature": progress.row_curvature,
                "col_curvature": progress.col_curvature,
            }
            write_json(folder / "manifest.json", {"progress": about, "sha256": hashes})
        self.prune_checkpoints(keep=2)

    def load_checkpoint(self) -> tuple[Progress, dict[str, Tensors]] | None:
        """The newest checkpoint that is whole, or None when there is none.

        Raises:
            InputError: there are checkpoints, all of them damaged.
        """
        problem: InputError | None = None
        for folder in reversed(self._checkpoints()):
            try:
                progress, hashes = self._checkpoint_manifest(folder)
                snapshot = {
                    name: load_tensors(folder / f"{name}.safetensors", digest)
                    for name, digest in hashes.items()
                }
                return replace(progress, hyper=snapshot.pop("model")), snapshot
            except InputError as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return None

    def _checkpoint_manifest(self, folder: Path) -> tuple[Progress, dict[str, str]]:
        """How far the chain was, and the hash of each of its files.

        Raises:
            InputError: missing or damaged.
        """
        path = folder / "manifest.json"
        content = read_json(path)
        try:
            about, hashes = content["progress"], dict(content["sha256"])
            row, col = (_curvature(*about[name]) for name in ("row_curvature", "col_curvature"))
            progress = Progress(about["sweep"], row, col, {})
            whole = (
                folder == self._checkpoint(progress.sweep)
                and "model" in hashes
                and hashes.keys() == {file.stem for file in folder.glob("*.safetensors")}
            )
        except (KeyError, TypeError, ValueError):
            whole = False
        if not whole:
            raise InputError(f"{path} is damaged: restore it or train again")
        return progress, hashes

    def prune_checkpoints(self, keep: int) -> None:
        """Delete all but the newest."""
        for old in self._checkpoints()[:-keep]:
            shutil.rmtree(old)

    def _checkpoint(self, sweep: int) -> Path:
        return self.path / "checkpoints" / f"sweep-{sweep:06d}"

    def _checkpoints(self) -> list[Path]:
        return sorted((self.path / "checkpoints").glob("sweep-*"))

    def rewind(self, sweep: int) -> None:
        """Drop what was written after ``sweep``, so that going on from there adds it anew."""
        kept = []
        for entry in self.draws():
            if entry["sweep"] <= sweep:
                kept.append(entry)
            else:
                (self.path / "draws" / str(entry["file"])).unlink(missing_ok=True)
        if kept or (self.path / "draws").exists():
            self._index_draws(kept)
        for path in (self.path / log for log in LOGS):
            if path.exists():
                lines = path.read_text().splitlines(True)
                with replace_file(path) as temporary:
                    temporary.write_text("".join(x for x in lines if _sweep_of(x, path) <= sweep))

    # Traces

    def traces(self) -> tuple[list[int], dict[str, NDArray[np.float64]]]:
        """The N sweeps after burn-in that were traced, and each quantity, (N, n), by name.

        Raises:
            InputError: the file is missing or damaged.
        """
        path = self.path / "traces.jsonl"
        sweeps: list[int] = []
        columns: dict[str, list[list[float]]] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            for line in lines:
                traced = json.loads(line)
                sweeps.append(traced.pop("sweep"))
                for name, values in traced.items():
                    columns.setdefault(name, []).append(values)
            traces = {name: np.array(rows, np.float64) for name, rows in columns.items()}
            whole = all(x.ndim == 2 and len(x) == len(lines) for x in traces.values())
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; train again") from error
        except (ValueError, TypeError, AttributeError, KeyError):
            whole = False
        if not whole:
            raise InputError(f"{path} is damaged: restore it or train again")
        return sweeps, traces


def _curvature(base: Any, per_rating: Any) -> Curvature:
    """From JSON, where a tuple is a list.

    Raises:
        TypeError, ValueError: not made of finite numbers.
    """

    def numbers(value: Any) -> float | tuple[float, ...]:
        return tuple(map(number, value)) if isinstance(value, list) else number(value)

    def number(value: Any) -> float:
        if not math.isfinite(value):
            raise ValueError(value)
        return float(value)

    return Curvature(numbers(base), numbers(per_rating))


class SweepEvent(NamedTuple):
    """What a listener hears after every sweep."""

    sweep: int  # counted from 1
    sweeps: int
    seconds: float  # since training began in this process
    seconds_left: float
    ratings_per_second: float
    metrics: Mapping[str, float | None]
    chain: int = 0
    chains: int = 1

    def as_dict(self) -> dict[str, float | None]:
        """Flat, for a line of JSON."""
        return {
            "chain": self.chain,
            "sweep": self.sweep,
            "sweeps": self.sweeps,
            "seconds": round(self.seconds, 3),
            "seconds_left": round(self.seconds_left, 1),
            "ratings_per_second": round(self.ratings_per_second),
            **self.metrics,
        }


Listener = Callable[[SweepEvent], None]


class RunRecorder:
    """Writes one chain's results into a run folder (`training.Recorder`)."""

    def __init__(
        self,
        run: Run,
        chain: int,
        listener: Listener,
        checkpoint_seconds: float,
        sweeps: int,
        ratings: int,  # that a sweep takes in
    ) -> None:
        self._number, self._of = chain, len(run.chains)
        self._chain = run.chains[chain]
        self._listener = listener
        self._checkpoint_seconds = checkpoint_seconds
        self._sweeps, self._ratings = sweeps, ratings
        self._done = 0
        self._began = time.monotonic()
        self._committed = -float("inf")  # the first sweep is committed: a chain may diverge soon
        self._metrics, self._traces, self._timings = (
            (self._chain.path / log).open("a", encoding="utf-8") for log in LOGS
        )

    def close(self) -> None:
        """Close the logs."""
        for log in (self._metrics, self._traces, self._timings):
            log.close()

    def metrics(self, sweep: int, values: Mapping[str, float | None]) -> None:
        """Append a line and tell the listener."""
        seconds = time.monotonic() - self._began
        self._done += 1
        _append(self._metrics, {"sweep": sweep, **values})
        _append(self._timings, {"sweep": sweep, "seconds": round(seconds, 4)})
        a_sweep = seconds / self._done
        self._listener(
            SweepEvent(
                sweep,
                self._sweeps,
                seconds,
                (self._sweeps - sweep) * a_sweep,
                self._ratings / a_sweep,
                values,
                self._number,
                self._of,
            )
        )

    def trace(self, sweep: int, values: Mapping[str, list[float]]) -> None:
        """Append a line."""
        _append(self._traces, {"sweep": sweep, **values})

    def draw(
        self, sweep: int, weight: float, w: Tensor, h: Tensor, hyper: Mapping[str, Tensor]
    ) -> None:
        """Keep a draw."""
        self._chain.add_draw(sweep, weight, {"W": w, "H": h, **hyper})

    def checkpoint_due(self) -> bool:
        """Whether the time between checkpoints has passed."""
        return time.monotonic() - self._committed >= self._checkpoint_seconds

    def checkpoint(self, progress: Progress, snapshot: Mapping[str, Tensors]) -> None:
        """Commit a checkpoint."""
        self._chain.save_checkpoint(progress, snapshot)
        self._committed = time.monotonic()


def _append(log: TextIO, line: Mapping[str, object]) -> None:
    with naming(Path(log.name)):
        log.write(json.dumps(line) + "\n")
        log.flush()


def _sweep_of(line: str, path: Path) -> float:
    """The sweep of a line of a log; a last line that was cut short belongs to none."""
    if not line.endswith("\n"):
        return math.inf
    try:
        return int(json.loads(line)["sweep"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged: restore it or train again") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        InputError: missing, or not a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}; restore it or train again") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is damaged: it holds no JSON object")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object, replacing the file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def save_tensors(path: Path, tensors: Tensors) -> str:
    """Write a safetensors file, replacing it at once; returns its sha256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    with replace_file(path) as temporary:
        temporary.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def load_tensors(path: Path, sha256: str) -> dict[str, torch.Tensor]:
    """Read a safetensors file that `save_tensors` wrote.

    Raises:
        InputError: missing, cut short, or changed since.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; train again") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise InputError(f"{path} is damaged (its sha256 differs): restore it or train again")
    return load(content)
