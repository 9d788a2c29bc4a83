"""How far off predictions are, and the baselines that any model must beat."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ratings = tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.floating]]


class Accuracy(NamedTuple):
    """Of point predictions, in rating units."""

    rmse: float
    mae: float


def accuracy(ratings: NDArray[np.floating], predictions: NDArray[np.floating]) -> Accuracy:
    """Root mean square and mean absolute error of (n,) predictions."""
    error = ratings.astype(np.float64) - predictions
    return Accuracy(float(np.sqrt(np.mean(error**2))), float(np.mean(np.abs(error))))


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
