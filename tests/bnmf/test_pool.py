"""The in-process pool, and the visit of a block that it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from bnmf.blocks import RatingBlock
from bnmf.domains import Domain, Mirror
from bnmf.gradients import likelihood_gradients
from bnmf.models import Curvature, PoissonNMF
from bnmf.pool import LocalPool
from bnmf.random import Key, Noise
from bnmf.samplers import State
from bnmf.samplers.sghmc import SGHMC
from bnmf.samplers.sgld import SGLD
from bnmf.sweep import FactorBlock, Rule, update_block
from bnmf.training import Job, run
from tests.bnmf.small import (
    FAMILY,
    ITEMS,
    MEAN_RATING,
    RANK,
    RATINGS,
    SOFTPLUS,
    TEST,
    TRAIN,
    USERS,
    Memory,
    copied,
    job_of,
    pool_of,
    same_draws,
    same_snapshots,
    sgld_of,
)
from tests.oracles import ERRORS, SEED, noise


def started(pool: LocalPool, job: Job) -> None:
    pool.start(job.rule, Key(job.seed), job.mean_rating)


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("blocks", [1, 4])
def test_any_number_of_threads_gives_the_same_bits(name: str, blocks: int) -> None:
    runs = []
    for threads in (1, 2, 4):
        memory = Memory()
        with pool_of(blocks, threads, most=20) as pool:
            run(pool, FAMILY[name](blocks), memory)
        runs.append(memory)
    assert len(runs[0].draws) == 5
    for other in runs[1:]:
        assert same_draws(other, runs[0])
        assert other.lines == runs[0].lines
        assert same_snapshots(other.checkpoints[-1][1], runs[0].checkpoints[-1][1])


@dataclass(frozen=True)
class Watched(SGLD):
    """Notes which stream of noise each step was given."""

    streams: list[int] = field(default_factory=list)

    def step(self, state: State, gradient: Tensor, step_size: float, scale: Tensor,
             temperature: float, noise: Noise) -> State:  # fmt: skip
        self.streams.append(noise.source.initial_seed())
        return super().step(state, gradient, step_size, scale, temperature, noise)


def test_no_two_steps_share_their_noise() -> None:
    """Over sweeps, strata, blocks, sides and local steps, and over chains and seeds."""
    streams: list[int] = []
    for changes in ({}, {"chain": 1}, {"seed": 4}):
        sampler = Watched()
        with pool_of(4) as pool:
            run(pool, sgld_of(4, sampler=sampler, **changes), Memory())
        assert len(sampler.streams) == 9 * 16 * 2 * 2
        streams += sampler.streams
    assert len(set(streams)) == len(streams)


def test_seed_chain_and_grid_make_other_chains() -> None:
    draws = []
    for blocks, changes in [(2, {}), (2, {"seed": 4}), (2, {"chain": 1}), (1, {})]:
        memory = Memory()
        with pool_of(blocks) as pool:
            run(pool, job_of(blocks, **changes), memory)
        draws.append(memory.draws[9][1])
    for a in range(4):
        for b in range(a):
            assert not torch.equal(draws[a], draws[b])


def test_the_global_generator_is_neither_used_nor_moved() -> None:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before, memory = torch.get_rng_state(), Memory()
        with pool_of(2, 2) as pool:
            run(pool, sgld_of(2), memory)
        assert torch.equal(torch.get_rng_state(), before)
        found.append(memory)
    assert same_draws(*found)


def test_torch_gets_its_threads_back() -> None:
    torch.set_num_threads(3)
    with pool_of(2, 2):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("domain", [SOFTPLUS, Mirror()])
def test_first_factors_are_positive_and_near_the_mean_rating(domain: Domain) -> None:
    with pool_of(2) as pool:
        started(pool, job_of(2, SGLD(), domain))
        w, h = pool.factors()
    assert w.shape == (USERS, RANK) and h.shape == (ITEMS, RANK)
    assert (w > 0.0).all() and (h > 0.0).all()
    assert (w @ h.T).mean().item() == pytest.approx(MEAN_RATING, rel=0.3)
    assert len(torch.cat([w, h]).unique()) > (USERS + ITEMS) * RANK * 0.9


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_statistics_are_sums_over_each_block(blocks: int) -> None:
    with pool_of(blocks) as pool:
        started(pool, job_of(blocks))
        factors, both = pool.factors(), pool.statistics()
    for theta, found, axis in zip(factors, both, (1, 0), strict=True):
        counts = torch.from_numpy(TRAIN.sum(axis=axis).astype(np.float64))
        groups = np.array_split(np.arange(len(counts)), blocks)
        assert [b.rows for b in found] == [len(group) for group in groups]
        for group, b in zip(groups, found, strict=True):
            part = theta[group].double()
            slope = 1.0 - torch.exp(-part)  # softplus: f' = sigma(phi) = 1 - e^-theta
            assert b.ratings == counts[group].sum().item()
            torch.testing.assert_close(b.met, counts[group] @ part.square(), rtol=1e-6, atol=0)
            assert b.square_slope.item() == pytest.approx(
                len(group) * slope.square().mean().item(), rel=1e-5
            )
            torch.testing.assert_close(b.totals, part.sum(0))
            torch.testing.assert_close(b.squares, part.square().sum(0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("most", [1000, 7, 1])
def test_errors_and_averages_of_held_out_ratings(most: int) -> None:
    job = job_of(2, SGLD())
    with pool_of(2, most=most) as pool:
        started(pool, job)
        before = pool.evaluate(None)["test"]
        predictions, weights = [], [0.5, 2.0, 1.0]
        for t, weight in enumerate(weights):
            pool.sweep(job.rule, Key(1, sweep=t), [1, 0])
            errors = pool.evaluate(weight)["test"]
            w, h = pool.factors()
            predictions.append((w.double() @ h.double().T).numpy())
        averages = pool.averages("test")
        pieces = pool.held_out["test"]
    assert {e.square_mean for e in before} == {0.0}
    assert (len(before) == 4) == (most == 1000)  # one a block
    # of rows that are whole
    assert max(e.count for e in before) <= max(most, 1) + TEST.sum(1).max()
    assert sum(e.count for e in errors) == sum(e.count for e in before) == TEST.sum()
    mean = np.average(predictions, axis=0, weights=weights)
    variance = np.average((predictions - mean) ** 2, axis=0, weights=weights)
    draw, running = (np.square(RATINGS - p)[TEST].sum() for p in (predictions[-1], mean))
    assert sum(e.square_draw for e in errors) == pytest.approx(draw, rel=1e-5)
    assert sum(e.square_mean for e in errors) == pytest.approx(running, rel=1e-5)
    users, items = (np.array_split(np.arange(n), 2) for n in (USERS, ITEMS))
    for b in range(2):
        for c in range(2):
            cells = np.ix_(users[b], items[c])
            held = TEST[cells]
            here = [n for n, piece in enumerate(pieces[b]) if piece.col_block == c]
            assert here == list(range(here[0], here[-1] + 1))
            of = [averages[b][n] for n in here]
            found = [torch.cat([a.mean for a in of]), torch.cat([a.variance for a in of])]
            np.testing.assert_allclose(found[0], mean[cells][held], rtol=1e-5)
            np.testing.assert_allclose(found[1], variance[cells][held], rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize("sampler", [None, SGLD()])
def test_restoring_a_snapshot_is_exact(sampler: SGLD | None) -> None:
    job = job_of(2, sampler)
    with pool_of(2) as pool:
        started(pool, job)
        pool.sweep(job.rule, Key(1), [0, 1])
        pool.evaluate(0.7)
        saved = copied(pool.snapshot())
        factors, statistics = pool.factors(), pool.statistics()
    with pool_of(2) as pool:
        pool.restore(job.rule, copied(saved))
        assert same_snapshots(pool.snapshot(), saved)
        torch.testing.assert_close(pool.statistics(), statistics, rtol=0, atol=0)
        assert all(map(torch.equal, pool.factors(), factors))


# -- one visit ------------------------------------------------------------------------------


def blocks_of(rule: Rule) -> tuple[FactorBlock, FactorBlock, RatingBlock]:
    """Six rows, five columns, some ratings, some counts beyond the block's own."""
    rng = np.random.default_rng(8)
    i, j = np.nonzero(rng.random((6, 5)) < 0.6)
    ratings = RatingBlock.from_arrays(i, j, rng.integers(1, 11, len(i)) / 2, (6, 5))

    def block(n: int) -> FactorBlock:
        position = torch.from_numpy(rng.normal(0.0, 0.5, (n, RANK)))
        state = rule.sampler.init(position, rule.temperature, Noise(noise(70)))
        return FactorBlock(state, torch.from_numpy(rng.integers(3, 30, (n, 1)).astype(np.float32)))

    return block(6), block(5), ratings


def clone(block: FactorBlock) -> FactorBlock:
    state = State(*(None if t is None else t.clone() for t in block.state))
    return FactorBlock(state, block.counts.clone())


def cold(**changes: object) -> Rule:
    rule = job_of(3, SGLD(), step_size=0.01, temperature=0.0).rule
    return replace(
        rule, row_curvature=Curvature(1.0, 0.3), col_curvature=Curvature(1.0, 0.8), **changes
    )


def test_a_cold_visit_is_one_step_down_the_scaled_gradient() -> None:
    """G times the block's likelihood, the prior once, f' as factor, the row's unit squared."""
    rule = cold()
    row, col, ratings = blocks_of(rule)
    new_row, new_col = update_block(clone(row), clone(col), ratings, Key(SEED), rule)
    phi, psi = (b.state.position.clone().requires_grad_() for b in (row, col))
    w, h = (torch.nn.functional.softplus(p) for p in (phi, psi))
    users = torch.repeat_interleave(torch.arange(6), ratings.by_row.starts.diff())
    mu = (w[users] * h[ratings.by_row.index.long()]).sum(1)
    likelihood = rule.model.log_prob(ratings.ratings.double(), mu, None).sum()
    potential = (
        -3 * likelihood + rule.model.prior_rate_w * w.sum() + (rule.model.prior_rate_h * h.sum())
    )
    gradients = torch.autograd.grad(potential, (phi, psi))
    for old, new, gradient, curvature in zip(
        (row, col), (new_row, new_col), gradients, (0.3, 0.8), strict=True
    ):
        expected = old.state.position - 0.01 * gradient / (1 + curvature * old.counts)
        torch.testing.assert_close(new.state.position, expected, rtol=1e-6, atol=1e-7)
        assert torch.equal(new.counts, old.counts)


def test_minibatch_visits_are_unbiased() -> None:
    """The mean move over many keys is the full block's, within 5 standard errors an entry."""
    rule = cold()
    row, col, ratings = blocks_of(rule)
    full = update_block(clone(row), clone(col), ratings, Key(SEED), rule)
    batches = replace(rule, batch_size=4)
    moves = [
        torch.cat(
            [
                b.state.position
                for b in update_block(clone(row), clone(col), ratings, Key(SEED, sweep=t), batches)
            ]
        )
        for t in range(1500)
    ]
    found, target = torch.stack(moves), torch.cat([b.state.position for b in full])
    error = found.std(0) / math.sqrt(len(moves))
    assert (found.std(0) > 0.0).any()
    assert ((found.mean(0) - target).abs() <= ERRORS * error + 1e-9).all()


def test_local_steps_go_on_from_each_other_with_fresh_minibatches() -> None:
    """Cold SGLD has no noise of its own: two local steps differ from one batch used twice."""
    rule = cold(batch_size=4)
    row, col, ratings = blocks_of(rule)
    once = update_block(clone(row), clone(col), ratings, Key(SEED), rule)
    twice = update_block(clone(row), clone(col), ratings, Key(SEED), replace(rule, local_steps=2))
    again = update_block(*map(clone, once), ratings, Key(SEED), rule)
    other = update_block(clone(row), clone(col), ratings, Key(SEED, sweep=1), rule)
    for a, b in ((once, twice), (twice, again), (once, other)):
        assert not torch.equal(a[0].state.position, b[0].state.position)
    full = cold()
    two = update_block(clone(row), clone(col), ratings, Key(SEED), replace(full, local_steps=2))
    step = update_block(clone(row), clone(col), ratings, Key(SEED), full)
    step = update_block(*step, ratings, Key(SEED, sweep=9), full)
    assert all(
        torch.equal(a.state.position, b.state.position) for a, b in zip(two, step, strict=True)
    )


def test_momenta_are_drawn_afresh_in_the_first_stratum_of_some_sweeps() -> None:
    """Each row and column once in those sweeps, none in others, under a key of their own."""
    seen: list[tuple[int, int]] = []

    @dataclass(frozen=True)
    class Watching(SGHMC):
        def resample(self, state: State, temperature: float, noise: Noise) -> State:
            seen.append((len(state.position), noise.source.initial_seed()))
            return super().resample(state, temperature, noise)

    job = job_of(4, Watching(0.5))
    with pool_of(4) as pool:
        run(pool, replace(job, rule=replace(job.rule, resample_every=4)), Memory())
    rows = [len(r) for r in np.array_split(np.arange(USERS), 4)]
    cols = [len(c) for c in np.array_split(np.arange(ITEMS), 4)]
    assert sorted(n for n, _ in seen) == sorted((rows + cols) * 3)  # sweeps 0, 4 and 8
    assert len({stream for _, stream in seen}) == len(seen)


def test_rows_and_columns_have_noise_of_their_own() -> None:
    rule = replace(cold(), temperature=1.0)
    rng = np.random.default_rng(1)
    empty = RatingBlock.from_arrays(np.array([], int), np.array([], int), np.array([]), (6, 6))
    start = FactorBlock(State(torch.from_numpy(rng.normal(size=(6, RANK)))), torch.ones(6, 1))
    same = replace(rule, row_curvature=Curvature(1.0, 0.0), col_curvature=Curvature(1.0, 0.0),
                   model=PoissonNMF(RANK, 1.0, 1.0, 1.0))  # fmt: skip
    row, col = update_block(clone(start), clone(start), empty, Key(SEED), same)
    assert not torch.isclose(row.state.position, col.state.position).any()
    assert torch.isfinite(row.state.position).all()


def test_row_scales() -> None:
    counts = torch.tensor([[0.0], [3.0], [99.0]])
    scales = Curvature(1.0, 1.0).scales(counts)
    torch.testing.assert_close(scales, torch.tensor([[1.0], [0.5], [0.1]]))
    assert Curvature(1.0, 0.0).scales(counts).tolist() == [[1.0]] * 3
    both = Curvature((1.0, 4.0), (1.0, 0.0)).scales(counts)
    torch.testing.assert_close(both, torch.tensor([[1.0, 0.5], [0.5, 0.5], [0.1, 0.5]]))
    assert counts.tolist() == [[0.0], [3.0], [99.0]]


def test_mirrored_visits_stay_inside() -> None:
    rule = replace(cold(), domain=Mirror(), temperature=1.0, step_size=0.3)
    row, col, ratings = blocks_of(rule)
    row.state.position.abs_()
    col.state.position.abs_()
    for t in range(30):
        row, col = update_block(row, col, ratings, Key(SEED, sweep=t), rule)
        assert (row.state.position >= 0.0).all() and (col.state.position >= 0.0).all()
    grad_w, _ = likelihood_gradients(
        partial(rule.model.score, warm=True), ratings, row.state.position, col.state.position, 1.0
    )
    assert torch.isfinite(grad_w).all()
