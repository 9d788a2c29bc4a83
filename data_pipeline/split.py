"""Which ratings train, which validate, which test: from a seed, never from the file's order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import InputError

PARTS = ("train", "valid", "test")
TRAIN, VALID, TEST = range(3)


@dataclass(frozen=True)
class Split:
    """Shares of the ratings, at random or in order of time; or fold k of K; or a test file."""

    shares: tuple[float, float, float] = (0.75, 0.125, 0.125)
    by_time: bool = False
    fold: tuple[int, int] | None = None  # (k, K), k counted from 1
    test_file: str | None = None

    @property
    def flag(self) -> str:
        """The flag that asks for this split."""
        if self.test_file is not None:
            return "--test-file"
        return "--folds" if self.fold else "--split-by" if self.by_time else "--split"

    def describe(self, seed: int) -> dict[str, Any]:
        """For a manifest: everything the assignment depends on besides the ratings."""
        if self.test_file is not None:
            return {"kind": "file", "file": self.test_file}
        if self.fold is not None:
            return {"kind": "folds", "fold": self.fold[0], "folds": self.fold[1], "seed": seed}
        kind = "time" if self.by_time else "random"
        return {"kind": kind, "shares": list(self.shares), "seed": seed}

    def assign(
        self, n: int, seed: int, time: NDArray[np.int64] | None, in_test_file: NDArray[np.bool_]
    ) -> NDArray[np.uint8]:
        """The part of each of n ratings in canonical order, (n,): 0 train, 1 valid, 2 test.

        Raises:
            InputError: no rating is left to train on, or a split by time without times.
        """
        part = np.zeros(n, np.uint8)
        if self.test_file is not None:
            part[in_test_file] = TEST
        else:
            order = np.random.default_rng(seed).permutation(n)
            if self.fold is not None:
                k, folds = self.fold
                part[order[k - 1 :: folds]] = TEST
            else:
                if self.by_time:
                    if time is None:
                        raise InputError(
                            "--split-by time needs a time column: name it by --time-col"
                        )
                    order = order[np.argsort(time[order], kind="stable")]
                ends = np.rint(np.cumsum(self.shares) * n).astype(int)
                part[order[ends[0] : ends[1]]] = VALID
                part[order[ends[1] :]] = TEST
        if not np.any(part == TRAIN):
            given = f" {self.test_file}" if self.test_file is not None else ""
            raise InputError(
                f"{self.flag}{given} leaves none of the {n} ratings to train on: hold out fewer"
            )
        return part


def split_from_flags(
    split: str | None,
    folds: int | None,
    fold: int | None,
    test_file: str | None,
    split_by: str | None,
) -> Split | None:
    """The split that flags ask for, None when none was given.

    Raises:
        InputError: a flag is no split, or two contradict each other; names it.
    """
    given = [
        name
        for name, value in (("--split", split), ("--folds", folds), ("--test-file", test_file))
        if value is not None
    ]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} contradict each other: keep one")
    if (folds is None) != (fold is None):
        raise InputError("--folds K and --fold k go together: which fold of how many is the test?")
    if split_by is not None and split_by != "time":
        raise InputError(f"--split-by {split_by}: only 'time' is known")
    if split_by is not None and (folds is not None or test_file is not None):
        raise InputError(f"--split-by time goes with --split, not with {given[0]}")
    if folds is not None and fold is not None:
        if folds < 2:
            raise InputError(f"--folds {folds}: at least 2 are needed")
        if not 1 <= fold <= folds:
            raise InputError(f"--fold {fold}: a number from 1 to {folds}")
        return Split(fold=(fold, folds))
    if test_file is not None:
        return Split(test_file=test_file)
    if split is None and split_by is None:
        return None
    return Split(_shares(split) if split is not None else Split().shares, split_by is not None)


def _shares(text: str) -> tuple[float, float, float]:
    try:
        train, valid, test = (float(share) for share in text.split(":"))
    except ValueError as error:
        raise InputError(
            f"--split {text}: three shares TRAIN:VALID:TEST are needed, such as 0.8:0:0.2"
        ) from error
    if not all(0.0 <= share <= 1.0 for share in (train, valid, test)):
        raise InputError(f"--split {text}: shares lie between 0 and 1")
    if abs(train + valid + test - 1.0) > 1e-9:
        raise InputError(f"--split {text}: the shares sum to {train + valid + test:g}, not to 1")
    if train == 0.0:
        raise InputError(f"--split {text} leaves no ratings to train on: raise the first share")
    return train, valid, test
