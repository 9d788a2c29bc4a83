"""The loop: what is kept and when, and that stopping and going on changes no bit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bnmf.domains import CoRV, Domain, Mirror
from bnmf.random import Key
from bnmf.samplers.sgld import SGLD
from bnmf.samplers.sgnht import SGNHT
from bnmf.schedules import Schedule
from bnmf.sweep import Rule
from bnmf.training import ChainDiverged, Interrupted, Job, run
from bnmf.transforms import HALF_LINE
from tests.bnmf.small import (
    FAMILY,
    MEAN_RATING,
    RATINGS,
    TEST,
    TRAIN,
    Memory,
    copied,
    job_of,
    pool_of,
    same_draws,
    same_progress,
    same_snapshots,
)


def finished(job: Job, every: bool = False) -> Memory:
    memory = Memory(every)
    with pool_of(job.rule.blocks) as pool:
        run(pool, job, memory)
    return memory


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("make", FAMILY.values(), ids=FAMILY)
def test_stopping_after_any_sweep_and_going_on_changes_no_bit(
    make: Callable[[int], Job], blocks: int
) -> None:
    job = make(blocks)
    whole = finished(job)
    for cut in range(1, job.sweeps):
        memory = Memory()
        with pool_of(blocks) as pool, pytest.raises(Interrupted, match=rf"\b{cut}\b"):
            run(pool, job, memory, stop=lambda memory=memory, cut=cut: len(memory.lines) == cut)
        assert len(memory.checkpoints) == 1
        progress, snapshot = memory.checkpoints.pop()
        assert progress.sweep == cut == max(memory.lines)
        with pool_of(blocks, threads=2) as pool:
            run(pool, job, memory, resume=(progress, copied(snapshot)))
        assert same_draws(memory, whole)
        assert memory.lines == whole.lines and memory.traces == whole.traces
        (last, end), (whole_last, whole_end) = memory.checkpoints[-1], whole.checkpoints[-1]
        assert same_progress(last, whole_last)
        assert same_snapshots(end, whole_end)  # running averages among them


def test_a_stop_at_the_end_is_an_end() -> None:
    memory = Memory()
    with pool_of(1) as pool:
        run(pool, job_of(sweeps=2, burn_in=1), memory, stop=lambda: len(memory.lines) == 2)
    assert [progress.sweep for progress, _ in memory.checkpoints] == [2]


def test_a_finished_chain_goes_nowhere() -> None:
    whole = finished(job_of())
    memory = Memory()
    with pool_of(1) as pool:
        run(pool, job_of(), memory, resume=whole.checkpoints[-1])
    assert not memory.lines and not memory.draws and not memory.checkpoints


@pytest.mark.parametrize(
    ("sweeps", "burn_in", "thin", "kept"),
    [(9, 4, 1, [5, 6, 7, 8, 9]), (10, 3, 2, [5, 7, 9]), (9, 0, 4, [4, 8]), (5, 4, 2, []),
     (6, 3, 3, [6])],
)  # fmt: skip
def test_draws_are_kept_at_the_right_sweeps(
    sweeps: int, burn_in: int, thin: int, kept: list[int]
) -> None:
    memory = finished(job_of(sweeps=sweeps, burn_in=burn_in, thin=thin))
    assert list(memory.draws) == kept
    assert list(memory.lines) == list(range(1, sweeps + 1))
    assert [t for t, line in memory.lines.items() if line["test_rmse_mean"] is None] == (
        list(range(1, burn_in + 1))
    )


@pytest.mark.parametrize("thin", [1, 3])
def test_averages_take_in_every_sweep_after_burn_in(thin: int) -> None:
    """Of what is thinned away, too; weights follow the schedule, as do the steps."""
    schedule = Schedule(0.8, 3.0)
    changes = {"schedule": schedule, "burn_in": 2}
    every = finished(job_of(2, SGLD(), **changes))
    memory = finished(job_of(2, SGLD(), thin=thin, **changes))
    for t, line in memory.lines.items():
        assert line["step_size"] == pytest.approx(0.1 * (1 + (t - 1) / 3.0) ** -0.8)
    predictions = {t: (w.double() @ h.double().T).numpy() for t, (_, w, h) in every.draws.items()}
    for t, (weight, _, _) in every.draws.items():
        assert weight == schedule.factor(t - 1)
    for t, line in memory.lines.items():
        if t <= 2:
            continue
        sofar = range(3, t + 1)
        mean = np.average(
            [predictions[k] for k in sofar], axis=0, weights=[schedule.factor(k - 1) for k in sofar]
        )
        for name, prediction in (("draw", predictions[t]), ("mean", mean)):
            rmse = math.sqrt(np.square(RATINGS - prediction)[TEST].mean())
            assert line[f"test_rmse_{name}"] == pytest.approx(rmse, rel=1e-5)


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("name", HALF_LINE)
def test_curvatures_are_measured_then_frozen(blocks: int, name: str) -> None:
    """s / mean * n E[theta'^2] E[f'^2], of the state itself; frozen after three quarters of burn-in."""
    transform = HALF_LINE[name]
    memory = finished(job_of(blocks, domain=CoRV(transform)), every=True)
    found = {progress.sweep: progress for progress, _ in memory.checkpoints}
    frozen = found[3 * job_of().burn_in // 4]
    for sweep, progress in found.items():
        if sweep >= frozen.sweep:
            assert replace(progress, sweep=frozen.sweep) == frozen
        else:
            assert progress.row_curvature != frozen.row_curvature
            assert progress.col_curvature != frozen.col_curvature

    def pieces(side: str, snapshot: dict[str, dict[str, torch.Tensor]]) -> tuple[float, float]:
        phi = torch.cat([snapshot[f"{side}-{b:03d}"]["position"] for b in range(blocks)]).double()
        counts = TRAIN.sum(axis=1 if side == "row" else 0)
        squares = transform.forward(phi).square().mean(1).numpy()
        slope, _ = transform.slopes(phi)
        return np.average(squares, weights=counts), slope.square().mean().item()

    for progress, snapshot in memory.checkpoints:
        if progress.sweep > frozen.sweep:
            break
        (w_square, w_slope), (h_square, h_slope) = pieces("row", snapshot), pieces("col", snapshot)
        per_rate = 2.0 / MEAN_RATING
        assert progress.row_curvature.per_rating == pytest.approx(
            per_rate * h_square * w_slope, rel=1e-4
        )
        assert progress.col_curvature.per_rating == pytest.approx(
            per_rate * w_square * h_slope, rel=1e-4
        )


def test_without_row_scaling_no_curvature() -> None:
    memory = finished(job_of(row_scaling=False, step_size=0.01), every=True)
    assert all(p.row_curvature == p.col_curvature == (1.0, 0.0) for p, _ in memory.checkpoints)


@pytest.mark.parametrize(
    ("sampler", "domain", "step_size"),
    [(SGNHT(0.5), CoRV(transform), 1e6) for transform in HALF_LINE.values()]
    + [(SGLD(), CoRV(HALF_LINE["softplus"]), 1e30), (SGLD(), Mirror(), 1e30)],
    ids=[*HALF_LINE, "sgld", "mirror"],
)
@pytest.mark.parametrize("blocks", [1, 2])
def test_a_huge_step_is_named(
    sampler: SGLD | SGNHT, domain: Domain, step_size: float, blocks: int
) -> None:
    job, memory = job_of(blocks, sampler, domain, step_size, sweeps=60), Memory(every=True)
    with pool_of(blocks) as pool, pytest.raises(ChainDiverged, match="--step-size") as stopped:
        run(pool, job, memory)
    named = re.search(r"at sweep (\d+)", str(stopped.value))
    assert named is not None and int(named[1]) == len(memory.lines) + 1
    # whatever was committed is finite
    assert all(progress.sweep < int(named[1]) for progress, _ in memory.checkpoints)
    for _, w, h in memory.draws.values():
        assert torch.isfinite(w).all() and torch.isfinite(h).all()


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("domain", [CoRV(HALF_LINE["icll"]), Mirror()], ids=["icll", "mirror"])
def test_at_temperature_zero_the_potential_descends(domain: Domain, blocks: int) -> None:
    job = job_of(blocks, SGLD(), domain, 0.03, 0.0, burn_in=0, sweeps=30)
    memory = finished(job)

    def potential(w: torch.Tensor, h: torch.Tensor) -> float:
        model = job.rule.model
        x = torch.from_numpy(RATINGS[TRAIN])
        mu = (w.double() @ h.double().T)[torch.from_numpy(TRAIN)]
        prior = model.prior_rate_w * w.sum() + model.prior_rate_h * h.sum()
        return (prior.double() - model.log_prob(x, mu, None).sum()).item()

    values = np.array([potential(w, h) for _, w, h in memory.draws.values()])
    assert len(values) == 30 and values[-1] < values[0] - 50.0
    if blocks == 1:  # one block is the whole gradient: every step goes down
        assert (np.diff(values) < 0.0).all()


def test_training_learns_the_ratings() -> None:
    """Below the spread of the ratings themselves, and better averaged than drawn."""
    memory = finished(job_of(2, sweeps=120, burn_in=40, step_size=0.15))
    line = memory.lines[120]
    draw, mean = line["test_rmse_draw"], line["test_rmse_mean"]
    assert draw is not None and mean is not None
    assert mean < draw and mean < 0.9 * RATINGS[TEST].std()


def test_sweeps_without_held_out_parts() -> None:
    memory = Memory()
    with pool_of(1, held_out=False) as pool:
        run(pool, job_of(), memory)
    assert memory.lines[1] == {"step_size": 0.1} and len(memory.draws) == 5


def test_evaluation_of_some_sweeps_alone_averages_those() -> None:
    """Every fourth of the nine sweeps, and the last; the first four are burn-in."""
    often, seldom = finished(job_of()), finished(job_of(evaluate_every=4))
    assert [t for t, line in seldom.lines.items() if "test_rmse_draw" in line] == [4, 8, 9]
    assert seldom.lines[8]["test_rmse_mean"] == seldom.lines[8]["test_rmse_draw"]
    assert seldom.lines[9]["test_rmse_draw"] == often.lines[9]["test_rmse_draw"]
    assert seldom.lines[9]["test_rmse_mean"] != often.lines[9]["test_rmse_mean"]


@pytest.mark.parametrize("step_weighted", [True, False])
def test_draws_weigh_by_their_step_or_alike(step_weighted: bool) -> None:
    schedule = Schedule.parse("polynomial:0.9:2")
    memory = finished(job_of(schedule=schedule, step_weighted=step_weighted))
    weights = [schedule.factor(t - 1) if step_weighted else 1.0 for t in memory.draws]
    assert [weight for weight, _, _ in memory.draws.values()] == weights
    means = np.zeros(TEST.sum())
    for weight, w, h in memory.draws.values():
        means += weight / sum(weights) * (w.double() @ h.double().T).numpy()[TEST]
    rmse = math.sqrt(np.square(RATINGS[TEST] - means).mean())
    assert memory.lines[9]["test_rmse_mean"] == pytest.approx(rmse, rel=1e-5)


def test_visits_use_the_curvatures_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the sweep before, and the schedule's step."""
    job = job_of(2)
    used: list[tuple[Any, Any, float]] = []
    memory = Memory(every=True)
    with pool_of(2) as pool:
        sweep = pool.sweep

        def spy(rule: Rule, key: Key, order: Sequence[int]) -> float:
            used.append((rule.row_curvature, rule.col_curvature, rule.step_size))
            return sweep(rule, key, order)

        monkeypatch.setattr(pool, "sweep", spy)
        run(pool, job, memory)
    kept = [(p.row_curvature, p.col_curvature) for p, _ in memory.checkpoints]
    assert [both[:2] for both in used[1:]] == kept[:-1]
    assert all(row.per_rating > 0 and col.per_rating > 0 for row, col, _ in used)
    steps = [job.rule.step_size * job.schedule.factor(t) for t in range(job.sweeps)]
    assert [step for *_, step in used] == steps
