"""bnmf beside other packages on the same split: errors, honesty of the spread, seconds, memory.

    pip install "setuptools<81" myfm==0.4.0 cmfrec scikit-surprise lenskit smurff
    python tests/benchmarks/peers.py --data ml-1m --split 0.8:0:0.2 --seed 1
    python tests/benchmarks/peers.py --data ml-100k --folds             # u1 ... u5, averaged
    python tests/benchmarks/peers.py --data ml-100k --tune --only lenskit smurff

All of these go with numpy 2 (cmfrec 3.5.1, scikit-surprise 1.1.5, lenskit 2025.8.1, smurff 1.1);
myFM imports pkg_resources, which later setuptools lack. What is not installed is left out and named.

Every contender runs in a process of its own, on the same ratings with the same indices for ids.

- ``log p``: mean log probability of the observed rating, in nats, and the shares of ratings
  within the central intervals: of the mixture over draws, where a package gives one. Tails
  beyond the ends of the scale belong to its last ratings.
- ``seconds``: fitting and predicting. Those of bnmf also hold its reading, baselines and report.
- ``GB``: peak resident memory of the whole process, libraries and data included.

Means of other packages are clipped to the scale, bnmf's are not. Settings are the packages'
defaults but for those named, which were best on the validation part of ``--tune`` (0.8:0.1:0.1,
another seed; the grids are below, their errors in ``bnmf/experiments/LOG.md``). That split holds
the test ratings too, in other places: if anything it helps the others.

Left out: ``implicit``. Its models rank. They fit preferences 0 and 1, all pairs without a rating
count as 0, and the rating only says how sure that is, so that no setting predicts a rating.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse, special

from bnmf.diagnostics import LEVELS, accuracy, calibration
from data_pipeline.dataset import Dataset

Scores = dict[str, Any]  # rmse, mae; log_predictive_density and coverage if there is a law


class Pairs(NamedTuple):
    """Indices and ratings; each (n,)."""

    users: np.ndarray
    items: np.ndarray
    ratings: np.ndarray


class Task:
    """Train on one part of a dataset, predict another."""

    def __init__(self, path: Path, part: str, seed: int) -> None:
        self.path, self.part, self.seed = path, part, seed
        dataset = Dataset(path)
        about = dataset.manifest
        self.shape = about.users, about.items
        self.low, self.high, self.step = (about.rating[name] for name in ("min", "max", "step"))
        self.train, self.held = (
            Pairs(*map(np.concatenate, zip(*columns(dataset, of), strict=True)))
            for of in ("train", part)
        )

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """The cell of each held-out rating; the first and the last are open. (n,) each."""
        x, half = self.held.ratings, self.step / 2
        below = np.where(x <= self.low, -np.inf, x - half)
        return below, np.where(x >= self.high, np.inf, x + half)

    def scores(self, mean: np.ndarray, *cdf: np.ndarray) -> Scores:
        """Of point predictions (n,), and the distribution function at both edges if there is one."""
        known = np.where(np.isnan(mean), self.train.ratings.mean(), mean)
        clipped = np.clip(known, self.low, self.high)
        law = calibration(*cdf)._asdict() if cdf else {}
        return {**accuracy(self.held.ratings, clipped)._asdict(), **law}

    def normal_mixture(self, draws: Iterable[tuple[np.ndarray, float]]) -> Scores:
        """Of draws of means (n,) and a precision: x ~ N(mean, 1 / precision), averaged."""
        below, above = self.edges()
        mean, lower, upper = np.zeros((3, len(below)))
        count = 0
        for of_draw, precision in draws:
            root = precision**0.5
            mean += of_draw
            lower += special.ndtr((below - of_draw) * root)
            upper += special.ndtr((above - of_draw) * root)
            count += 1
        return self.scores(mean / count, lower / count, upper / count)


def columns(dataset: Dataset, part: str) -> Iterable[Pairs]:
    """The ratings of a part, block by block."""
    for b in range(dataset.manifest.blocks):
        for block in dataset.part(part, b):
            yield Pairs(block.user, block.item, block.rating)


# The contenders: a task and settings -> scores


def bnmf(task: Task, **settings: Any) -> Scores:
    import bnmf

    with tempfile.TemporaryDirectory() as folder:
        run = bnmf.train(str(task.path), out=Path(folder) / "run", seed=task.seed, **settings)
        return json.loads((run.path / "report.json").read_text())[task.part]


def one_hot(task: Task, pairs: Pairs) -> sparse.csr_matrix:
    ones = np.stack([pairs.users, task.shape[0] + pairs.items.astype(np.int64)], axis=1).ravel()
    starts = np.arange(0, len(ones) + 1, 2)
    return sparse.csr_matrix((np.ones(len(ones)), ones, starts), (len(starts) - 1, sum(task.shape)))


def myfm(task: Task, rank: int, n_iter: int) -> Scores:
    from myfm import MyFMRegressor

    machine = MyFMRegressor(rank=rank, random_seed=task.seed)
    ratings = task.train.ratings.astype(float)
    machine.fit(one_hot(task, task.train), ratings, n_iter=n_iter, group_shapes=list(task.shape))
    draws = machine.predictor_.samples
    precisions = [hyper.alpha for hyper in machine.history_.hypers[-len(draws) :]]
    held = one_hot(task, task.held)
    means = (np.asarray(draw.predict_score(held, [])) for draw in draws)
    return task.normal_mixture(zip(means, precisions, strict=True))


def myfm_probit(task: Task, rank: int, n_iter: int) -> Scores:
    from myfm import MyFMOrderedProbit

    def level(ratings: np.ndarray) -> np.ndarray:
        return np.rint((ratings - task.low) / task.step).astype(int)

    machine = MyFMOrderedProbit(rank=rank, random_seed=task.seed)
    levels = level(task.train.ratings)
    machine.fit(one_hot(task, task.train), levels, n_iter=n_iter, group_shapes=list(task.shape))
    chances = np.asarray(machine.predict_proba(one_hot(task, task.held)))
    mean = chances @ (task.low + task.step * np.arange(chances.shape[1]))
    here = np.arange(len(mean)), level(task.held.ratings)
    upper = chances.cumsum(1)[here]
    return task.scores(mean, upper - chances[here], upper)


def cmfrec(task: Task, **settings: Any) -> Scores:
    from cmfrec import CMF

    users, items, ratings = task.train
    model = CMF(random_state=task.seed, verbose=False, **settings)
    model.fit(sparse.coo_matrix((ratings, (users, items)), task.shape))
    return task.scores(model.predict(task.held.users, task.held.items))


def surprise(task: Task, algorithm: str, **settings: Any) -> Scores:
    import surprise
    from pandas import DataFrame

    reader = surprise.Reader(rating_scale=(task.low, task.high))
    train = surprise.Dataset.load_from_df(DataFrame(task.train._asdict()), reader)
    model = getattr(surprise, algorithm)(random_state=task.seed, **settings)
    model.fit(train.build_full_trainset())
    pairs = zip(*(column.tolist() for column in task.held), strict=True)
    return task.scores(np.array([predicted.est for predicted in model.test(list(pairs))]))


def lenskit(task: Task, **settings: Any) -> Scores:
    from lenskit.als import BiasedMFScorer
    from lenskit.data import ItemList, from_interactions_df
    from lenskit.training import TrainingOptions
    from pandas import DataFrame

    users, items, ratings = task.train
    train = from_interactions_df(DataFrame({"user_id": users, "item_id": items, "rating": ratings}))
    model = BiasedMFScorer(**settings)
    model.train(train, TrainingOptions(rng=task.seed))
    mean = np.empty(len(task.held.users))
    order = np.argsort(task.held.users, kind="stable")
    ends = np.flatnonzero(np.diff(task.held.users[order])) + 1
    for rows in np.split(order, ends):
        of_user = ItemList(item_ids=task.held.items[rows])
        mean[rows] = model(task.held.users[rows[0]], of_user).scores()
    return task.scores(mean)


def smurff(task: Task, precision: float, **settings: Any) -> Scores:
    from smurff import FixedNoise, TrainSession

    users, items, ratings = task.train
    middle = ratings.mean()
    train = sparse.csr_matrix((ratings - middle, (users, items)), task.shape)
    # It hands predictions back with their pairs, in an order of its own.
    places = 1.0 + np.arange(len(task.held.users))
    held = sparse.csr_matrix((places, task.held[:2]), task.shape)
    session = TrainSession(priors=["normal", "normal"], seed=task.seed, verbose=0, **settings)
    session.addTrainAndTest(train, held, FixedNoise(precision))
    found = session.run()
    draws = np.empty((settings["nsamples"], len(found)))
    for one in found:
        draws[:, int(one.val) - 1] = one.pred_all
    return task.normal_mixture((middle + draw, precision) for draw in draws)


@dataclass(frozen=True)
class Contender:
    """One line of the table."""

    fit: Callable[..., Scores]
    package: str  # what pip calls it
    settings: dict[str, Any]
    grid: tuple[dict[str, Any], ...] = ()  # what --tune tries instead of some of them


def every(**options: tuple[Any, ...]) -> tuple[dict[str, Any], ...]:
    """All combinations."""
    return tuple(dict(zip(options, values, strict=True)) for values in product(*options.values()))


# Rank 10 has the better RMSE by 0.002, higher ranks the better log p.
MYFM = {"rank": 20, "n_iter": 300}
CONTENDERS = {
    "bnmf": Contender(bnmf, "bnmf", {}),
    "bnmf-accurate": Contender(bnmf, "bnmf", {"preset": "accurate"}),
    "bnmf-quick": Contender(bnmf, "bnmf", {"preset": "quick"}),
    "myfm": Contender(myfm, "myfm", MYFM, every(rank=(10, 20, 32))),
    "myfm-probit": Contender(myfm_probit, "myfm", MYFM, every(rank=(10, 20, 32))),
    "cmfrec": Contender(
        cmfrec,
        "cmfrec",
        {"k": 80, "lambda_": 0.1, "scale_lam": True},
        every(k=(20, 40, 80), lambda_=(0.06, 0.1, 0.15, 0.2))
        + every(k=(20, 40), lambda_=(5.0, 10.0, 20.0), scale_lam=(False,)),
    ),
    # Centred ratings are of both signs: no mean is taken off.
    "cmfrec-nonneg": Contender(
        cmfrec,
        "cmfrec",
        {"nonneg": True, "center": False, "k": 20, "lambda_": 0.1, "scale_lam": True},
        every(k=(10, 20, 40), lambda_=(0.06, 0.1, 0.15)),
    ),
    "surprise-svd": Contender(
        surprise,
        "scikit-surprise",
        {"algorithm": "SVD", "n_epochs": 100, "reg_all": 0.1},
        every(n_epochs=(20, 50, 100, 200), reg_all=(0.02, 0.05, 0.1, 0.15)),
    ),
    "surprise-svdpp": Contender(
        surprise,
        "scikit-surprise",
        {"algorithm": "SVDpp", "n_epochs": 40, "reg_all": 0.1},
        every(n_factors=(20, 50), n_epochs=(20, 40), reg_all=(0.05, 0.1))
        + every(n_epochs=(80,), reg_all=(0.05, 0.1)),
    ),
    "surprise-nmf": Contender(
        surprise,
        "scikit-surprise",
        {"algorithm": "NMF", "n_factors": 50, "reg_pu": 0.06, "reg_qi": 0.2},
        every(n_factors=(15, 50, 100), reg_pu=(0.06, 0.12, 0.2), reg_qi=(0.06, 0.12, 0.2)),
    ),
    "lenskit": Contender(
        lenskit,
        "lenskit",
        {"features": 100, "regularization": 0.12},
        every(features=(25, 50, 100), regularization=(0.05, 0.1, 0.12, 0.15, 0.2)),
    ),
    "smurff": Contender(
        smurff,
        "smurff",
        {"num_latent": 20, "precision": 1.5, "burnin": 50, "nsamples": 250},
        every(num_latent=(10, 20), precision=(1.2, 1.5, 2.0)),
    ),
}
FOLDS = (1, 2, 3, 4, 5)
HEAD = ("contender", "RMSE", "log p", *(f"{level} %" for level in LEVELS), "seconds", "GB")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="ml-1m", help="a data set's name or a path of ratings")
    parser.add_argument("--split", help="TRAIN:VALID:TEST; 0.8:0:0.2 by default")
    parser.add_argument(
        "--folds", type=int, nargs="*", help="official folds of ml-100k: all, or those named"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--tune", action="store_true", help="grids on a validation part instead")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.child:
        child(**json.loads(flags.child))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            datasets = [
                ingest(flags.data, Path(folder) / str(number), how)
                for number, how in enumerate(splits(flags))
            ]
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        rows = [
            row
            for name in flags.only
            for choice in (CONTENDERS[name].grid if flags.tune else [{}])
            if (row := measured(name, choice, datasets, flags)) is not None
        ]
    if flags.json:
        print(json.dumps(rows))
    else:
        print("\n".join(table(rows)))
    return 0


def splits(flags: argparse.Namespace) -> list[list[str]]:
    """The flags of `bnmf data ingest` for each test set.

    Raises:
        ValueError: a flag is bad; names it.
    """
    if flags.tune:
        return [["--split", "0.8:0.1:0.1", "--seed", "99"]]
    if flags.folds is None:
        return [["--split", flags.split or "0.8:0:0.2", "--seed", str(flags.seed)]]
    files = [
        Path(os.environ.get("BNMF_DATA_DIR", ".")) / "ml-100k" / f"u{fold}.test"
        for fold in flags.folds or FOLDS
    ]
    for file in files:
        if flags.data != "ml-100k" or flags.split or not file.is_file():
            raise ValueError(
                f"error: --folds needs --data ml-100k, no --split, and {file}: unpack ml-100k.zip "
                "in BNMF_DATA_DIR"
            )
    return [["--test-file", str(file)] for file in files]


def ingest(data: str, out: Path, split: list[str]) -> Path:
    """Done by another process, so that this one stays small: a child's peak starts from it.

    Raises:
        ValueError: what `bnmf data ingest` says of bad data.
    """
    command = [sys.executable, "-m", "bnmf.cli.main", "data", "ingest", data, "--out", str(out)]
    answer = subprocess.run([*command, *split], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise ValueError(answer.stderr.strip())
    return out


def measured(
    name: str, choice: dict[str, Any], datasets: list[Path], flags: argparse.Namespace
) -> Scores | None:
    """A row, averaged over the datasets; None where the contender failed, having said so."""
    package, settings = CONTENDERS[name].package, CONTENDERS[name].settings | choice
    rows = []
    for path in datasets:
        part = "valid" if flags.tune else "test"
        task = {"name": name, "path": str(path), "part": part, "seed": flags.seed}
        command = [sys.executable, __file__, "--child", json.dumps({**task, "settings": settings})]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode:
            reason = (answer.stderr.strip() or f"exit code {answer.returncode}").splitlines()[-1]
            way = f"pip install {package}, as at the head of {Path(__file__).name}"
            print(f"{name} left out: {reason}: {way}", file=sys.stderr)
            return None
        rows.append(json.loads(answer.stdout.splitlines()[-1]))
        print(f"{name} {settings}: {rows[-1]}", file=sys.stderr)
    about = {"contender": name, "package": f"{package} {version(package)}", "settings": settings}
    return {**about, **{key: float(np.mean([row[key] for row in rows])) for key in rows[0]}}


def child(name: str, settings: dict[str, Any], path: str, part: str, seed: int) -> None:
    """Fit and predict; prints one row as JSON."""
    task = Task(Path(path), part, seed)
    began = time.perf_counter()
    scores = CONTENDERS[name].fit(task, **settings)
    seconds = time.perf_counter() - began
    row = {"rmse": scores["rmse"], "seconds": seconds}
    row["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    if "coverage" in scores:
        row["log_p"] = scores["log_predictive_density"]
        row |= {f"{level} %": scores["coverage"][str(level)] for level in LEVELS}
    print(json.dumps(row))


def table(rows: list[Scores]) -> Iterable[str]:
    """Markdown, a line a row; then what was set."""
    yield f"| {' | '.join(HEAD)} | settings |"
    yield "|---" * (len(HEAD) + 1) + "|"
    for row in rows:
        law = [f"{row['log_p']:.4f}"] if "log_p" in row else ["" for _ in HEAD[2:-2]]
        if "log_p" in row:
            law += [f"{100 * row[f'{level} %']:.1f}" for level in LEVELS]
        settings = ", ".join(f"{key} {value}" for key, value in row["settings"].items())
        cells = [row["contender"], f"{row['rmse']:.4f}", *law, f"{row['seconds']:.1f}"]
        cells += [f"{row['peak_gb']:.2f}", settings]
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
