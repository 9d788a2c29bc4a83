"""How good a run's held-out predictions are, from its files alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmf.config import config_of
from bnmf.convergence import HIGHEST, convergence
from bnmf.diagnostics import accuracy, by_activity, calibration
from bnmf.posterior import Posterior
from bnmf.run import Run
from data_pipeline.errors import InputError
from data_pipeline.files import replace_file
from data_pipeline.vocabulary import read_table

PARTS = ("test", "valid")


def evaluate(run: Run) -> dict[str, Any]:
    """The report of a finished run.

    Raises:
        InputError: the run is not finished, or a file is damaged.
    """
    _check_finished(run)
    return report_of(run)


def report_of(run: Run) -> dict[str, Any]:
    """How good the predictions are: a dictionary a part that has ratings, and the baselines.

    With a preset, also what it set (`TrainConfig.preset_in_force`).

    RMSE and MAE are of the predictive moving average over every sweep after burn-in; the log
    density and the coverage are of the mixture over the kept draws of the ratings' cells. All are
    of the chains together, and are there for each tenth of the users too, by their training
    ratings. ``settings`` are the main ones, chosen or given. ``convergence`` has a dictionary a traced quantity: how many numbers it is, their
    largest R-hat, how many are above `HIGHEST`, and their smallest effective sample sizes.

    Raises:
        InputError: there are no predictions yet, or a file is damaged.
    """
    preset = run.manifest.get("preset")
    report: dict[str, Any] = {"preset": preset} if preset else {}
    report["settings"] = run.manifest.get("settings", {})
    report["convergence"] = _convergence(run)
    baselines: dict[str, Any] = {}
    posterior = Posterior.load(run.path)
    mean_rating = run.manifest["dataset"]["rating"]["mean"]
    for part in PARTS:
        if not run.manifest["dataset"]["counts"][part]:
            continue
        path = run.path / "predictions" / f"{part}.parquet"
        table = read_table(path, ids=("user", "item"), numbers=("rating", "mean", "biases"))
        users, items = posterior.users.lookup(table["user"]), posterior.items.lookup(table["item"])
        if len(table) != run.manifest["dataset"]["counts"][part] or -1 in users or -1 in items:
            raise InputError(f"{path} is not of this run: restore it or train again")
        rating = table["rating"].to_numpy().astype(np.float64)
        lower, upper = posterior.distribution(users, items, rating)
        mean = table["mean"].to_numpy()
        report[part] = {
            **accuracy(rating, mean)._asdict(),
            **calibration(lower, upper)._asdict(),
            "count": len(rating),
            "by_activity": by_activity(posterior.users.counts, users, rating, mean, lower, upper),
        }
        baselines[part] = {
            "global_mean": accuracy(rating, np.full(len(rating), mean_rating))._asdict(),
            "biases": accuracy(rating, table["biases"].to_numpy())._asdict(),
        }
        if "truth" in table.column_names:
            floor = accuracy(rating, table["truth"].to_numpy())._asdict()
            baselines[part]["true_rates"] = floor
    return {**report, "baselines": baselines}


def write_inference_data(run: Run, path: Path) -> None:
    """The traces of a finished run as ArviZ's InferenceData, in netCDF; draws are sweeps.

    Raises:
        InputError: the run is not finished or damaged, ``path`` is a folder, or arviz is missing.
    """
    _check_finished(run)
    if path.is_dir():
        raise InputError(f"--inference-data {path} is a folder: name a file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of its next major version
            import arviz
    except ImportError as error:
        raise InputError("--inference-data needs arviz: pip install 'bnmf[arviz]'") from error
    sweeps, traces = _traces(run)
    data = arviz.from_dict(
        posterior={name: x[..., 0] if x.shape[2] == 1 else x for name, x in traces.items()},
        coords={"draw": sweeps},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as temporary:
        data.to_netcdf(str(temporary))


def _check_finished(run: Run) -> None:
    if run.status != "finished":
        raise InputError(f"{run.path} is {run.status}: finish it with --resume, then evaluate")


def _traces(run: Run) -> tuple[list[int], dict[str, NDArray[np.float64]]]:
    """The N sweeps that were traced, and what was, (chains, N, n), by name.

    Raises:
        InputError: a file is missing or damaged.
    """
    config = config_of(run.path)
    sweeps, first = run.chains[0].traces()
    shapes = {name: x.shape for name, x in first.items()}
    found = []
    for chain in run.chains:
        own, traces = chain.traces()
        same = own == sweeps and {name: x.shape for name, x in traces.items()} == shapes
        if not (traces and same and own[-1] == config.sweeps):
            raise InputError(f"{chain.path / 'traces.jsonl'} is damaged: restore it or train again")
        found.append(traces)
    return sweeps, {name: np.stack([traces[name] for traces in found]) for name in shapes}


def _convergence(run: Run) -> dict[str, dict[str, float | None]]:
    def worst(of: Callable[..., Any], values: NDArray[np.float64]) -> float | None:
        known = values[~np.isnan(values)]
        return float(of(known)) if len(known) else None

    report = {}
    for name, traces in _traces(run)[1].items():
        found = convergence(traces)
        report[name] = {
            "count": traces.shape[2],
            "rhat": worst(np.max, found.rhat),
            "above": int((found.rhat > HIGHEST).sum()),
            "ess_bulk": worst(np.min, found.ess_bulk),
            "ess_tail": worst(np.min, found.ess_tail),
        }
    return report
