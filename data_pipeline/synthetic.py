"""The `demo` set: ratings drawn from a known non-negative model."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

USERS, ITEMS, RANK, RATINGS = 1_200, 800, 5, 100_000
COUNTS_PER_UNIT = 4
SEED = 20140608
LOW, HIGH, STEP = 0.5, 5.0, 0.5


def demo() -> pa.RecordBatch:
    """About 100,000 ratings in half stars: user, item, rating, time, truth.

    A rating is a Poisson count of quarter stars at the rate w.h, rounded to half stars and held
    between 0.5 and 5. ``truth`` is its exact expectation given the rate, rounding and bounds
    included: no model can have a smaller expected squared error. Users differ in activity and
    items in popularity by a factor of hundreds.
    """
    rng = np.random.default_rng(SEED)
    w = rng.gamma(0.7, 1.0, (USERS, RANK))
    h = rng.gamma(0.7, 1.0, (ITEMS, RANK))
    rate = w @ h.T
    rate *= 3.4 / rate.mean()
    rate = 1.2 + 0.65 * rate  # a common part: few films are hated by everybody
    activity = rng.lognormal(0.0, 1.0, USERS)
    popularity = rng.lognormal(0.0, 1.2, ITEMS)
    chance = np.outer(activity, popularity)
    users, items = np.nonzero(rng.random(chance.shape) < np.minimum(1.0, _scale(chance) * chance))
    rates = rate[users, items]
    rating = _stars(rng.poisson(COUNTS_PER_UNIT * rates))
    time = 1_000_000_000 + rng.integers(0, 100_000_000, len(rating))
    return pa.record_batch(
        {
            "user": users.astype(np.int64) + 1,
            "item": items.astype(np.int64) + 1,
            "rating": rating,
            "time": time,
            "truth": _expectation(rates).astype(np.float32),
        }
    )


def _stars(counts: np.ndarray) -> np.ndarray:
    return np.clip(np.floor(counts / COUNTS_PER_UNIT / STEP + 0.5) * STEP, LOW, HIGH)


def _expectation(rates: np.ndarray) -> np.ndarray:
    """E[rating | rate] exactly: HIGH less what each count below it falls short of HIGH."""
    rate = COUNTS_PER_UNIT * rates
    chance = np.exp(-rate)  # of the count
    expected = np.full(len(rates), HIGH)
    for count in range(COUNTS_PER_UNIT * int(HIGH)):
        expected -= chance * (HIGH - _stars(np.array(count)))
        chance *= rate / (count + 1)
    return expected


def _scale(chance: np.ndarray) -> float:
    """The factor at which the expected number of ratings is RATINGS."""
    low, high = 0.0, 100 * RATINGS / float(chance.sum())
    for _ in range(50):
        middle = (low + high) / 2
        enough = np.minimum(1.0, middle * chance).sum() >= RATINGS
        low, high = (low, middle) if enough else (middle, high)
    return high
