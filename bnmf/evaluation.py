"""How good a run's held-out predictions are, from its files alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from bnmf.diagnostics import accuracy, by_activity, calibration
from bnmf.posterior import Posterior
from bnmf.run import Run
from data_pipeline.errors import InputError
from data_pipeline.vocabulary import read_table

PARTS = ("test", "valid")


def evaluate(run: Run) -> dict[str, Any]:
    """The report of a finished run.

    Raises:
        InputError: the run is not finished, or a file is damaged.
    """
    if run.status != "finished":
        raise InputError(f"{run.path} is {run.status}: finish it with --resume, then evaluate")
    return report_of(run)


def report_of(run: Run) -> dict[str, Any]:
    """How good the predictions are: a dictionary a part that has ratings, and the baselines.

    RMSE and MAE are of the predictive moving average over every sweep after burn-in; the log
    density and the coverage are of the mixture of the likelihood over the kept draws. All of them
    are there for each tenth of the users too, by their training ratings.

    Raises:
        InputError: there are no predictions yet, or a file is damaged.
    """
    report: dict[str, Any] = {}
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
        lower, upper = _predictive_cdf(posterior, users, items, rating)
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


def _predictive_cdf(
    posterior: Posterior, users: np.ndarray, items: np.ndarray, rating: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The predictive CDF at both edges of each rating's cell, averaged over draws; (n,) each."""
    lower, upper = np.empty(len(rating)), np.empty(len(rating))
    weights = posterior.weights.numpy()

    def of(start: int) -> None:
        part = slice(start, start + posterior.pairs_at_once)
        below, above = posterior.model.cdf(
            rating[part, None], posterior.rates(users[part], items[part]), posterior.scale
        )
        lower[part], upper[part] = below @ weights, above @ weights

    # Incomplete Gamma functions take most of an evaluation's time, and leave Python alone.
    with ThreadPoolExecutor() as threads:
        list(threads.map(of, range(0, len(rating), posterior.pairs_at_once)))
    return lower, upper
