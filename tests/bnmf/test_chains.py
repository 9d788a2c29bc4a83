"""Chains side by side: each is the chain that would have run alone, and they end together."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from bnmf.chains import Checkpoint, pooled_averages, run_chains
from bnmf.models import PoissonNMF
from bnmf.pool import Rows
from bnmf.training import ChainDiverged, Interrupted, Job, run
from tests.bnmf.small import (
    FAMILY,
    RATINGS,
    TEST,
    TRAIN,
    WATCHED_PREDICTIONS,
    WATCHED_RATINGS,
    Memory,
    copied,
    job_of,
    pool_of,
    same_draws,
    same_progress,
    same_snapshots,
)
from tests.oracles import numpy_noise


def alone(job: Job, chain: int) -> Memory:
    memory = Memory()
    with pool_of(job.rule.blocks) as pool:
        run(pool, replace(job, chain=chain), memory)
    return memory


def together(
    job: Job,
    memories: list[Memory],
    resume: list[Checkpoint | None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    threads: int = 1,
) -> np.ndarray:
    """Mean and variance of the n test predictions, pooled, (2, n)."""
    with ExitStack() as stack:
        pools = [stack.enter_context(pool_of(job.rule.blocks, threads)) for _ in memories]
        run_chains(pools, job, memories, resume or [None] * len(memories), stop)
        pieces = [piece for row in pooled_averages(pools, "test") for piece in row]
    return np.hstack([torch.stack([piece.mean, piece.variance]).numpy() for piece in pieces])


def same(one: Memory, other: Memory) -> bool:
    (last, end), (other_last, other_end) = one.checkpoints[-1], other.checkpoints[-1]
    return (
        same_draws(one, other)
        and one.lines == other.lines
        and one.traces == other.traces
        and same_progress(last, other_last)
        and same_snapshots(end, other_end)
    )


@pytest.mark.parametrize("name", FAMILY)
def test_each_is_the_chain_that_runs_alone(name: str) -> None:
    job = FAMILY[name](2)
    memories = [Memory() for _ in range(3)]
    together(job, memories, threads=2)
    for chain, memory in enumerate(memories):
        assert same(memory, alone(job, chain))
    assert not same_draws(memories[0], memories[1])


def test_pooled_predictions_are_the_moments_over_all_draws() -> None:
    """Every draw after burn-in is kept: brute force."""
    memories = [Memory() for _ in range(3)]
    mean, variance = together(job_of(), memories)
    draws = np.array(
        [
            (w.double() @ h.double().T).numpy()[TEST]
            for memory in memories
            for _, w, h in memory.draws.values()
        ]
    )
    assert len(draws) == 15
    np.testing.assert_allclose(mean, draws.mean(0), rtol=1e-5)
    np.testing.assert_allclose(variance, draws.var(0), rtol=1e-3)


@pytest.mark.parametrize("cuts", [(3, 3), (2, 7), (6, 9)])
def test_chains_stopped_anywhere_go_on_bit_for_bit(cuts: tuple[int, int]) -> None:
    """One of them may have ended."""
    job = job_of(2)
    whole = [Memory(), Memory()]
    pooled = together(job, whole)
    parts = [Memory(), Memory()]
    resume: list[Checkpoint | None] = []
    for chain, (memory, cut) in enumerate(zip(parts, cuts, strict=True)):
        with pool_of(2) as pool:
            end = replace(job, chain=chain)
            try:
                run(pool, end, memory, stop=lambda m=memory, cut=cut: len(m.lines) == cut)
            except Interrupted:
                assert cut < job.sweeps
        progress, snapshot = memory.checkpoints[-1]
        resume.append((progress, copied(snapshot)))
    again = together(job, parts, resume)
    assert all(same(one, other) for one, other in zip(parts, whole, strict=True))
    np.testing.assert_array_equal(again, pooled)


def test_a_stop_stops_all_after_a_checkpoint() -> None:
    memories = [Memory() for _ in range(3)]
    with pytest.raises(Interrupted, match="of 500"):
        together(job_of(sweeps=500), memories, stop=lambda: len(memories[1].lines) > 2)
    for memory in memories:
        (progress, _), *others = memory.checkpoints
        assert not others and progress.sweep == max(memory.lines) < 500


def test_one_that_fails_stops_the_others_and_is_told() -> None:
    class Full(Memory):
        def metrics(self, sweep: int, values: object) -> None:
            if sweep == 4:
                raise OSError("the disk is full")

    memories = [Memory(), Full(), Memory()]
    with pytest.raises(OSError, match="disk is full"):
        together(job_of(sweeps=2000), memories)
    for memory in (memories[0], memories[2]):
        assert len(memory.checkpoints) == 1 and max(memory.lines) < 2000


def test_a_diverging_chain_is_named() -> None:
    with pytest.raises(ChainDiverged, match="--step-size"):
        together(job_of(2, step_size=1e6, sweeps=60), [Memory(), Memory()])


# -- traces ---------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [1, 3])
def test_traces_are_of_the_watched_pairs_every_sweep_after_burn_in(blocks: int) -> None:
    job = job_of(blocks)
    memory = alone(job, 0)
    assert list(memory.traces) == list(memory.draws) == [5, 6, 7, 8, 9]
    model = job.rule.model
    assert isinstance(model, PoissonNMF)
    x = torch.from_numpy(RATINGS[TRAIN][WATCHED_RATINGS])
    for t, (_, w, h) in memory.draws.items():
        mu = w.double() @ h.double().T
        predictions = mu.numpy()[TEST][WATCHED_PREDICTIONS]
        np.testing.assert_allclose(memory.traces[t]["predictions"], predictions, rtol=1e-5)
        trained = mu[torch.from_numpy(TRAIN)][WATCHED_RATINGS]
        (found,) = memory.traces[t]["log_prob"]
        assert found == pytest.approx(model.log_prob(x, trained, None).mean().item(), rel=1e-5)
        assert memory.traces[t].keys() == {"log_prob", "predictions"}


def test_hyper_parameters_are_traced_by_size() -> None:
    """The columns of two chains have no common order, nor signs."""
    job = FAMILY["gaussian"](1)
    memory = Memory(every=True)
    with pool_of(1) as pool:
        run(pool, job, memory)
    for progress, _ in memory.checkpoints:
        if progress.sweep <= job.burn_in:
            continue
        trace, hyper = memory.traces[progress.sweep], progress.hyper
        for name in ("mean", "precision"):
            by_size = np.sort(np.abs(hyper[name].numpy()), axis=1)
            assert trace[name] == by_size.ravel().tolist()
        assert not math.isnan(sum(trace["mean"]))


def test_rows_are_found_in_any_blocks_and_order() -> None:
    noise = numpy_noise(6)
    factor = torch.from_numpy(noise.normal(size=(30, 4)))
    index = noise.integers(0, 30, 50)
    for offsets in ([0, 30], [0, 1, 1, 12, 30], [0, 7, 29, 30]):
        blocks = [factor[a:b] for a, b in pairwise(offsets)]
        assert torch.equal(Rows.of(index, offsets)(blocks), factor[torch.from_numpy(index)])
    assert Rows.of(index[:0], [0, 30])([factor]).shape == (0, 4)
