"""Several chains side by side, each in a thread of its own with its own pool and recorder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from bnmf.pool import Pool, Tensors
from bnmf.predictive import RunningMoments
from bnmf.training import Interrupted, Job, Progress, Recorder, run

Checkpoint = tuple[Progress, Mapping[str, Tensors]]


def run_chains(
    pools: Sequence[Pool],
    job: Job,
    recorders: Sequence[Recorder],
    resume: Sequence[Checkpoint | None],
    stop: Callable[[], bool],
) -> None:
    """Run chain k of ``job`` in pool k, each as `training.run` would alone.

    Raises:
        ChainDiverged: one did; the others have stopped after a checkpoint.
        Interrupted: ``stop`` said so; every chain that had not ended has stopped after one.
    """
    failed = threading.Event()

    def chain(k: int) -> None:
        try:
            run(
                pools[k],
                replace(job, chain=k),
                recorders[k],
                resume[k],
                lambda: failed.is_set() or stop(),
            )
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(len(pools), "chain", torch.set_num_threads, (1,)) as threads:
        ends = [threads.submit(chain, k) for k in range(len(pools))]
    errors = [error for end in ends if (error := end.exception())]
    if errors:
        # the others were interrupted because of it
        raise next((error for error in errors if not isinstance(error, Interrupted)), errors[0])


def pooled_averages(pools: Sequence[Pool], part: str) -> list[list[RunningMoments]]:
    """Each row block's pieces, as `Pool.averages`, over the draws of all chains."""
    return [
        [RunningMoments.pooled(piece) for piece in zip(*row_block, strict=True)]
        for row_block in zip(*(pool.averages(part) for pool in pools), strict=True)
    ]
