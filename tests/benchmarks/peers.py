"""bnmf beside other packages on the same split: test RMSE, seconds and peak memory.

    pip install "setuptools<80" myfm==0.4.0
    python tests/benchmarks/peers.py [--data ml-1m] [--rank 20] [--seed 1]

Every contender runs in a process of its own and gets ids and ratings only. Seconds are those of
fitting and predicting, reading apart. What is not installed is left out and named.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from data_pipeline.dataset import Dataset
from data_pipeline.ingest import prepare
from data_pipeline.split import split_from_flags

Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]  # users, items, ratings; each (n,)


def pairs(dataset: Dataset, part: str) -> Pairs:
    """All ratings of a part."""
    blocks = [b for k in range(dataset.manifest.blocks) for b in dataset.part(part, k)]
    columns = zip(*((b.user, b.item, b.rating) for b in blocks), strict=True)
    users, items, ratings = (np.concatenate(column) for column in columns)
    return users, items, ratings


def ours(dataset: Dataset, rank: int, seed: int) -> np.ndarray:
    """`bnmf train` with its defaults: non-negative factors."""
    import pyarrow.parquet as pq

    import bnmf

    with tempfile.TemporaryDirectory() as folder:
        run = bnmf.train(str(dataset.path), out=Path(folder) / "run", rank=rank, seed=seed)
        return pq.read_table(run.path / "predictions" / "test.parquet")["mean"].to_numpy()


def myfm(dataset: Dataset, rank: int, seed: int) -> np.ndarray:
    """Gibbs sampling of a Gaussian factorization machine on the ids, 300 sweeps."""
    import myfm
    from scipy import sparse

    shape = dataset.manifest.users, dataset.manifest.items

    def one_hot(users: np.ndarray, items: np.ndarray) -> sparse.csr_matrix:
        columns = np.stack([users, shape[0] + items.astype(np.int64)], axis=1).ravel()
        starts = np.arange(0, len(columns) + 1, 2)
        return sparse.csr_matrix((np.ones(len(columns)), columns, starts), (len(users), sum(shape)))

    users, items, ratings = pairs(dataset, "train")
    machine = myfm.MyFMRegressor(rank=rank, random_seed=seed)
    machine.fit(one_hot(users, items), ratings.astype(float), n_iter=300, group_shapes=list(shape))
    return np.asarray(machine.predict(one_hot(*pairs(dataset, "test")[:2])))


CONTENDERS: dict[str, Callable[[Dataset, int, int], np.ndarray]] = {"bnmf": ours, "myfm": myfm}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="ml-1m")
    parser.add_argument("--split", default="0.8:0:0.2")
    parser.add_argument("--rank", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.child:
        name, path = flags.child
        dataset = Dataset(Path(path))
        began = time.perf_counter()
        predictions = CONTENDERS[name](dataset, flags.rank, flags.seed)
        seconds = time.perf_counter() - began
        error = predictions - pairs(dataset, "test")[2]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(json.dumps([float(np.sqrt(np.mean(error**2))), seconds, peak]))
        return
    split = split_from_flags(flags.split, None, None, None, None)
    dataset = prepare(flags.data, split=split, seed=flags.seed)
    print(f"{flags.data}, split {flags.split}, seed {flags.seed}, rank {flags.rank}")
    for name, contender in CONTENDERS.items():
        command = [sys.executable, __file__, "--child", name, str(dataset.path)]
        command += ["--rank", str(flags.rank), "--seed", str(flags.seed)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode:
            print(f"{name:<6} left out: {answer.stderr.strip().splitlines()[-1]}")
            continue
        rmse, seconds, peak = json.loads(answer.stdout.splitlines()[-1])
        what = (contender.__doc__ or "").strip()
        print(f"{name:<6} RMSE {rmse:.4f} {seconds:7.1f} s {peak:5.2f} GB  {what}", flush=True)


if __name__ == "__main__":
    main()
