"""How far off predictions are, how honest their spread, and the baseline that any must beat."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVELS = (50, 80, 90, 95)

Ratings = tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.floating]]


class Accuracy(NamedTuple):
    """Of point predictions, in rating units."""

    rmse: float
    mae: float


def accuracy(ratings: NDArray[np.floating], predictions: NDArray[np.floating]) -> Accuracy:
    """Root mean square and mean absolute error of (n,) predictions."""
    error = ratings.astype(np.float64) - predictions
    return Accuracy(float(np.sqrt(np.mean(error**2))), float(np.mean(np.abs(error))))


class Calibration(NamedTuple):
    """How a predictive distribution fared on ratings that it had not seen."""

    log_predictive_density: float  # mean log probability of the observed (rounded) rating
    coverage: dict[str, float]  # level in % -> share of ratings inside the central interval


def calibration(lower: NDArray[np.float64], upper: NDArray[np.float64]) -> Calibration:
    """From the predictive CDF at both edges of each observed rating's cell, each (n,).

    Ratings are rounded, so the probability integral transform u is uniform on (lower, upper) if
    the model is right; the c-interval covers when |u - 1/2| <= c/2. The share covered is its
    exact expectation over u, not one random u.
    """
    width = upper - lower
    tiny = np.finfo(np.float64).tiny
    coverage = {}
    for level in LEVELS:
        half = level / 200
        inside = np.minimum(upper, 0.5 + half) - np.maximum(lower, 0.5 - half)
        covered = np.where(
            width > tiny,
            np.maximum(inside, 0.0) / np.maximum(width, tiny),
            np.abs(lower - 0.5) <= half,
        )
        coverage[str(level)] = float(covered.mean())
    return Calibration(float(np.log(np.maximum(width, tiny)).mean()), coverage)


def by_activity(
    activity: NDArray[np.integer],
    users: NDArray[np.integer],
    ratings: NDArray[np.floating],
    predictions: NDArray[np.floating],
    lower: NDArray[np.float64],
    upper: NDArray[np.float64],
) -> list[dict[str, Any]]:
    """`accuracy` and `calibration` for each tenth of the users, from the least active up.

    ``activity`` (I,) counts each user's training ratings; the rest is of the n held-out ratings,
    (n,) each. Tenths are of the users who have any. Users of equal activity stay together, so
    that a tenth may be empty: it is left out.
    """
    own = activity[users]
    ranked = np.sort(activity[np.unique(users)])
    first = ranked[np.arange(1, 10) * len(ranked) // 10]  # of each tenth but the lowest
    tenth = np.searchsorted(first, own, side="right")
    return [
        {
            "training_ratings": [int(own[rows].min()), int(own[rows].max())],
            **accuracy(ratings[rows], predictions[rows])._asdict(),
            **calibration(lower[rows], upper[rows])._asdict(),
            "count": int(rows.sum()),
        }
        for rows in (tenth == number for number in np.unique(tenth))
    ]


class Biases(NamedTuple):
    """rating = mean + user bias + item bias: the biases-only baseline."""

    mean: float
    user: NDArray[np.float64]  # (I,)
    item: NDArray[np.float64]  # (J,)

    def predict(
        self, users: NDArray[np.integer], items: NDArray[np.integer]
    ) -> NDArray[np.float64]:
        """Predictions (n,) of index pairs, each (n,)."""
        prediction: NDArray[np.float64] = self.mean + self.user[users] + self.item[items]
        return prediction


def fit_biases(
    chunks: Callable[[], Iterable[Ratings]], shape: tuple[int, int], rounds: int = 10
) -> Biases:
    """Ridge regression on user and item indicators, by alternating exact solutions.

    The ridge is 15 for users and 10 for items, the usual values for ratings (Koren 2010,
    section 2.1, as in scikit-surprise's ``BaselineOnly``). ``chunks()`` goes through the
    training ratings (users, items, ratings), each (n,), once.
    """
    user, item = np.zeros(shape[0]), np.zeros(shape[1])
    user_n, item_n = np.zeros(shape[0]), np.zeros(shape[1])
    total = 0.0
    for users, items, ratings in chunks():
        user_n += np.bincount(users, minlength=shape[0])
        item_n += np.bincount(items, minlength=shape[1])
        total += ratings.sum(dtype=np.float64)
    mean = total / user_n.sum()
    for _ in range(rounds):
        sums = np.zeros(shape[1])
        for users, items, ratings in chunks():
            sums += np.bincount(items, ratings - mean - user[users], minlength=shape[1])
        item = sums / (10.0 + item_n)
        sums = np.zeros(shape[0])
        for users, items, ratings in chunks():
            sums += np.bincount(users, ratings - mean - item[items], minlength=shape[0])
        user = sums / (15.0 + user_n)
    return Biases(mean, user, item)
