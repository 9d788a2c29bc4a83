"""Ingest of a made file in ml-10m's exact format, beside a plain read of the same file.

    python tests/benchmarks/ingest.py [--ratings 10000000]

Each runs in a process of its own, so that peak memory is its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

USERS, ITEMS = 71_567, 10_681


def make(path: Path, ratings: int) -> int:
    """About ``ratings`` distinct lines `user::item::rating::time`, halves as 3.5, wholes as 4."""
    rng = np.random.default_rng(0)
    users = max(USERS, ratings // 140)
    names = np.sort(rng.choice(65_133, ITEMS, replace=False)) + 1
    stars = pa.array(["0.5", "1", "1.5", "2", "2.5", "3", "3.5", "4", "4.5", "5"])
    written = 0
    with path.open("wb") as file:
        for first in range(0, users, 5_000):
            here = min(5_000, users - first)
            n = ratings * here // users
            user = (here * rng.random(2 * n) ** 1.2).astype(np.int64)
            item = (ITEMS * rng.random(2 * n) ** 1.5).astype(np.int64)
            cells = np.unique(user * ITEMS + item)
            cells = np.sort(rng.choice(cells, min(n, len(cells)), replace=False))
            columns = (
                pa.array(first + cells // ITEMS + 1).cast(pa.string()),
                pa.array(names[cells % ITEMS]).cast(pa.string()),
                stars.take(pa.array(rng.integers(0, 10, len(cells)))),
                pa.array(rng.integers(789_652_009, 1_231_131_736, len(cells))).cast(pa.string()),
            )
            lines = pa.table([pc.binary_join_element_wise(*columns, "::")], ["line"])
            pyarrow.csv.write_csv(
                lines,
                file,
                pyarrow.csv.WriteOptions(include_header=False, quoting_style="none"),
            )
            written += len(cells)
    return written


def plain_read(path: str) -> None:
    """What any reader must do: parse the columns."""
    names = ["user", "a", "item", "b", "rating", "c", "time"]
    pyarrow.csv.read_csv(
        path,
        pyarrow.csv.ReadOptions(column_names=names),
        pyarrow.csv.ParseOptions(delimiter=":"),
        pyarrow.csv.ConvertOptions(include_columns=names[::2]),
    )


def ingest(path: str) -> None:
    """The whole way to a blocked dataset."""
    from data_pipeline.ingest import ingest
    from data_pipeline.sources import locate

    with tempfile.TemporaryDirectory() as folder:
        ingest(locate(path), Path(folder) / "dataset")


def child(work: str, path: str) -> None:
    """Run one of the two and print its seconds and peak memory."""
    began = time.perf_counter()
    {"plain_read": plain_read, "ingest": ingest}[work](path)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(time.perf_counter() - began, peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratings", type=int, default=10_000_000)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.child:
        child(*flags.child)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ratings.dat"
        ratings = make(path, flags.ratings)
        print(f"{ratings:,} lines, {path.stat().st_size / 1e6:.0f} MB")
        base = 0.0
        for work in ("plain_read", "ingest"):
            command = [sys.executable, __file__, "--child", work, str(path)]
            answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            seconds, peak = map(float, answer.stdout.split())
            base = base or seconds
            print(
                f"{work:<11}{seconds:7.2f} s {ratings / seconds / 1e6:7.2f} M rows/s "
                f"{peak:6.2f} GB peak {seconds / base:6.2f} x plain read"
            )


if __name__ == "__main__":
    main()
