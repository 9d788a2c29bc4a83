"""Where a sweep's time goes, on a set of ml-10m's shape.

    python tests/benchmarks/sweep.py [--ratings 7500000] [--rank 20] [--blocks 4] [--threads 2]

Prints the rate of the gradients beside the textbook formulation with gathers and ``index_add_``
(measured in the same run), then the step (transform, noise, update) and the evaluation of held-out
pairs (1/6 of the training ratings, the share of a 75:12.5:12.5 split) as shares of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from bnmf.blocks import RatingBlock, column_block
from bnmf.domains import CoRV
from bnmf.gradients import likelihood_gradients
from bnmf.models import Curvature, PoissonNMF
from bnmf.pool import HeldOut, LocalPool
from bnmf.random import Key
from bnmf.samplers.sgnht import SGNHT
from bnmf.sweep import Rule
from bnmf.transforms import HALF_LINE

USERS, ITEMS = 71_567, 10_681


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Median over ``repeats`` after one warm-up."""
    work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def grid(
    ratings: int, blocks: int, rng: np.random.Generator
) -> tuple[list[list[RatingBlock]], list[torch.Tensor], list[torch.Tensor]]:
    """Skewed pairs in G x G blocks of equal expected weight, and the counts of rows and columns."""
    rows, cols = USERS // blocks, ITEMS // blocks
    row_counts = [np.zeros(rows) for _ in range(blocks)]
    col_counts = [np.zeros(cols) for _ in range(blocks)]
    result = []
    for b in range(blocks):
        line = []
        for c in range(blocks):
            n = ratings // blocks**2
            pairs = np.empty(0, np.int64)
            while len(pairs) < n:
                u = (rows * rng.random(n) ** 2).astype(np.int64)
                i = (cols * rng.random(n) ** 2).astype(np.int64)
                pairs = np.unique(np.concatenate([pairs, u * cols + i]))
            pairs = np.sort(rng.choice(pairs, n, replace=False))
            u, i = pairs // cols, pairs % cols
            row_counts[b] += np.bincount(u, minlength=rows)
            col_counts[c] += np.bincount(i, minlength=cols)
            stars = rng.integers(1, 11, n) / 2
            line.append(RatingBlock.from_arrays(u, i, stars, (rows, cols)))
        result.append(line)

    def tensors(counts: list[np.ndarray]) -> list[torch.Tensor]:
        return [torch.from_numpy(x.astype(np.float32)).unsqueeze(1) for x in counts]

    return result, tensors(row_counts), tensors(col_counts)


def gathers(
    rule: Rule, block: RatingBlock, w: torch.Tensor, h: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same gradients by gathers and ``index_add_``."""
    rows = torch.repeat_interleave(torch.arange(len(w)), block.by_row.starts.diff().long())
    cols = block.by_row.index.long()
    w_rows, h_cols = w[rows], h[cols]
    c = (
        rule.model.score(block.ratings, (w_rows * h_cols).sum(1), None, True)[0]
        .mul_(-1.0)
        .unsqueeze(1)
    )
    return (
        torch.zeros_like(w).index_add_(0, rows, c * h_cols),
        torch.zeros_like(h).index_add_(0, cols, c * w_rows),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratings", type=int, default=7_500_000)
    parser.add_argument("--rank", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    flags = parser.parse_args()
    blocks = flags.blocks
    rng = np.random.default_rng(0)
    train, row_counts, col_counts = grid(flags.ratings, blocks, rng)
    held, _, _ = grid(flags.ratings // 6, blocks, rng)
    held_out: list[list[HeldOut]] = [
        [HeldOut(block.by_row, block.ratings, 0, c) for c, block in enumerate(line)]
        for line in held
    ]
    rule = Rule(
        model=PoissonNMF(flags.rank, 4.0, 2.4, 2.4),
        domain=CoRV(HALF_LINE["softplus"]),
        sampler=SGNHT(0.5),
        blocks=blocks,
        step_size=0.01,
        temperature=1.0,
        batch_size=None,
        local_steps=1,
        row_curvature=Curvature(1.0, 0.1),
        col_curvature=Curvature(1.0, 0.1),
    )
    pool = LocalPool(train, {"test": held_out}, row_counts, col_counts, flags.threads)
    pool.start(rule, Key(0), 3.5)
    w = [torch.rand(len(counts), flags.rank) for counts in row_counts]
    h = [torch.rand(len(counts), flags.rank) for counts in col_counts]
    ratings = sum(len(block) for line in train for block in line)

    def gradients(of: Callable[[RatingBlock, torch.Tensor, torch.Tensor], object]) -> None:
        for stratum in range(blocks):
            pairs = [(b, column_block(b, stratum, blocks)) for b in range(blocks)]
            list(threads.map(lambda bc: of(train[bc[0]][bc[1]], w[bc[0]], h[bc[1]]), pairs))

    with ThreadPoolExecutor(flags.threads, "block", torch.set_num_threads, (1,)) as threads:
        products = seconds(
            lambda: gradients(
                lambda block, x, y: likelihood_gradients(
                    partial(rule.model.score, warm=True), block, x, y, 1.0
                )
            )
        )
        textbook = seconds(lambda: gradients(lambda block, x, y: gathers(rule, block, x, y)), 1)
    sweep = seconds(lambda: pool.sweep(rule, Key(0), range(blocks)))
    evaluation = seconds(lambda: pool.evaluate(1.0))
    pool.close()

    print(
        f"{ratings:,} ratings, {USERS:,} x {ITEMS:,}, rank {flags.rank}, "
        f"{blocks} x {blocks} blocks, {flags.threads} threads"
    )
    print(f"gradients, gathers    {textbook:8.3f} s  {ratings / textbook / 1e6:7.1f} M ratings/s")
    print(
        f"gradients, products   {products:8.3f} s  {ratings / products / 1e6:7.1f} M ratings/s  "
        f"{textbook / products:.1f} x gathers"
    )
    step = sweep - products
    print(f"sweep                 {sweep:8.3f} s  {ratings / sweep / 1e6:7.1f} M ratings/s")
    print(f"step of all parameters{step:8.3f} s  {step / products:7.2f} x gradients (goal: 1)")
    print(
        f"evaluation            {evaluation:8.3f} s  {evaluation / sweep:7.2f} x sweep (goal: 0.25)"
    )


if __name__ == "__main__":
    main()
