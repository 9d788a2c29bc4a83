"""The training loop: strata, burn-in, synchronisation points, draws, evaluation, checkpoints.

It knows a pool of block workers and a recorder, never threads, files or clusters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from bnmf.blocks import strata
from bnmf.models import BlockStatistics, Curvature, Model, Side, levels
from bnmf.pool import Errors, Pool, Tensors
from bnmf.random import Key, Role, generator
from bnmf.schedules import Schedule
from bnmf.sweep import Rule


class ChainDiverged(RuntimeError):
    """The chain left the finite numbers."""


class Interrupted(RuntimeError):
    """Training was asked to stop, and stopped after a checkpoint."""


@dataclass(frozen=True)
class Job:
    """One chain: what each visit does, and for how long."""

    rule: Rule  # its step size is that of sweep 0; its curvatures are found in burn-in
    schedule: Schedule
    sweeps: int
    burn_in: int
    thin: int
    row_scaling: bool
    seed: int
    mean_rating: float  # over the training ratings
    evaluate_every: int = 1  # sweeps; the last one is always evaluated
    step_weighted: bool = True  # draws count by their step size (Karagiannis, eq. 3.8), or alike
    chain: int = 0


@dataclass(frozen=True)
class Progress:
    """Where a chain is after ``sweep`` sweeps, beside its blocks' own state."""

    sweep: int
    row_curvature: Curvature
    col_curvature: Curvature
    hyper: Mapping[str, Tensor]  # the state of the model


class Recorder(Protocol):
    """Where a chain's results go."""

    def metrics(self, sweep: int, values: Mapping[str, float | None]) -> None:
        """One line after ``sweep`` sweeps (counted from 1)."""

    def draw(
        self, sweep: int, weight: float, w: Tensor, h: Tensor, hyper: Mapping[str, Tensor]
    ) -> None:
        """Keep the designs W (I, width) and H (J, width), and the model's state."""

    def trace(self, sweep: int, values: Mapping[str, list[float]]) -> None:
        """What convergence is judged by, after each sweep past burn-in that is evaluated."""

    def checkpoint_due(self) -> bool:
        """Whether it is time for one."""

    def checkpoint(self, progress: Progress, snapshot: Mapping[str, Tensors]) -> None:
        """Commit a state to go on from."""


def run(
    pool: Pool,
    job: Job,
    recorder: Recorder,
    resume: tuple[Progress, Mapping[str, Tensors]] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run one chain to its end, from the start or from a checkpoint.

    Raises:
        ChainDiverged: a factor became infinite or NaN; names the sweep and the flag to lower.
        Interrupted: ``stop`` said so; a checkpoint has been committed.
    """
    if resume is None:
        pool.start(job.rule, Key(job.seed, job.chain), job.mean_rating)
        none = Curvature(1.0, 0.0)
        progress = _measure(pool, job, Progress(0, none, none, job.rule.model.state()))
    else:
        progress, snapshot = resume
        pool.restore(_rule(job, progress), snapshot)
    while progress.sweep < job.sweeps:
        progress = _sweep(pool, job, recorder, progress)
        interrupted = progress.sweep < job.sweeps and stop()
        if interrupted or recorder.checkpoint_due() or progress.sweep == job.sweeps:
            recorder.checkpoint(progress, pool.snapshot())
        if interrupted:
            raise Interrupted(f"stopped after sweep {progress.sweep} of {job.sweeps}")


def _sweep(pool: Pool, job: Job, recorder: Recorder, progress: Progress) -> Progress:
    t = progress.sweep
    rule = _rule(job, progress)
    key = Key(job.seed, job.chain, t)
    pool.sweep(rule, key, strata(rule.blocks, generator(key, Role.STRATA)))
    progress = _measure(pool, job, replace(progress, sweep=t + 1))
    weight = None
    if t >= job.burn_in:
        weight = job.schedule.factor(t) if job.step_weighted else 1.0
    values: dict[str, float | None] = {"step_size": rule.step_size}
    evaluated = (t + 1) % job.evaluate_every == 0 or t + 1 == job.sweeps
    for part, errors in (pool.evaluate(weight) if evaluated else {}).items():
        values[f"{part}_rmse_draw"] = _rmse(errors, [e.square_draw for e in errors])
        mean = _rmse(errors, [e.square_mean for e in errors]) if weight is not None else None
        values[f"{part}_rmse_mean"] = mean
    recorder.metrics(t + 1, values)
    if weight is not None and evaluated:
        recorder.trace(t + 1, _trace(pool, job.rule.model.with_state(progress.hyper)))
    if weight is not None and (t + 1 - job.burn_in) % job.thin == 0:
        recorder.draw(t + 1, weight, *pool.factors(), progress.hyper)
    return progress


def _trace(pool: Pool, model: Model) -> dict[str, list[float]]:
    """Hyper-parameters by size, the mean log-likelihood of the sample of that name, other rates.

    Columns may change places and signs without any change in the posterior: in one order, and
    without their signs, the hyper-parameters of two chains can be compared.
    """
    traced = {name: values.abs().sort().values for name, values in model.state().items()}
    for name, (ratings, w, h) in pool.watch().items():
        rates, level = (w * h).sum(1), levels(w, h) if model.levels else None
        likelihood = name == "log_prob"
        traced[name] = (
            model.log_prob(ratings, rates, level).double().mean() if likelihood else rates
        )
    return {name: values.flatten().tolist() for name, values in traced.items()}


def _rule(job: Job, progress: Progress) -> Rule:
    """What the visits of the next sweep do."""
    model = job.rule.model.with_state(progress.hyper)
    row, col = progress.row_curvature, progress.col_curvature
    if job.row_scaling:
        row, col = model.present(row, Side.W), model.present(col, Side.H)
    return replace(
        job.rule,
        model=model,
        warm=progress.sweep >= _warm(job),
        step_size=job.rule.step_size * job.schedule.factor(progress.sweep),
        row_curvature=row,
        col_curvature=col,
    )


def _measure(pool: Pool, job: Job, progress: Progress) -> Progress:
    """Check that the chain is finite; draw hyper-parameters; in burn-in, measure the curvature.

    The scale of a row's step must not depend on the state once draws count, so what it takes of
    the factors is frozen after three quarters of burn-in. Hyper-parameters stand still while
    factors move, so it may follow them. The mode is one of factors: at temperature 0
    hyper-parameters stay where they begin.
    """
    rows, cols = pool.statistics()
    if not all(_finite(block) for block in rows + cols):
        raise ChainDiverged(
            f"the chain became non-finite at sweep {progress.sweep}: lower --step-size "
            f"(now {job.rule.step_size:g})"
        )
    model = job.rule.model.with_state(progress.hyper)
    if progress.sweep >= _warm(job) and job.rule.temperature > 0:
        seed = generator(Key(job.seed, job.chain, progress.sweep), Role.HYPER).initial_seed()
        model = model.resample(rows, cols, np.random.default_rng(seed))
        progress = replace(progress, hyper=model.state())
    if not job.row_scaling or progress.sweep > 3 * job.burn_in // 4:
        return progress
    row, col = model.curvatures(rows, cols, job.mean_rating)
    return replace(progress, row_curvature=row, col_curvature=col)


def _warm(job: Job) -> int:
    """Sweeps until all is sampled: within the first half of burn-in, and an even number."""
    return min(job.rule.model.warm, job.burn_in // 2) // 2 * 2


def _finite(block: BlockStatistics) -> bool:
    sums = (block.met, block.squares, block.weight_squares, torch.tensor(block.dispersion))
    return all(bool(x.isfinite().all()) for x in sums)


def _rmse(errors: list[Errors], squares: list[float]) -> float:
    return math.sqrt(sum(squares) / sum(e.count for e in errors))
