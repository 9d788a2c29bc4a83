"""One visit of one block: the heart of the house.

A visit is a pure function of the two states, the block's ratings and a key. It runs the same
in a thread, an actor or a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from bnmf.blocks import RatingBlock
from bnmf.domains import Domain
from bnmf.gradients import likelihood_gradients
from bnmf.models import PoissonNMF
from bnmf.random import Key, Role, generator
from bnmf.samplers import Sampler, State


class FactorBlock(NamedTuple):
    """The rows of W (or of H) of one group, and what the sampler keeps of them."""

    state: State
    counts: Tensor  # (n, 1) float32: training ratings of each row, over all blocks


@dataclass(frozen=True)
class Rule:
    """What every visit of a sweep does."""

    model: PoissonNMF
    domain: Domain
    sampler: Sampler
    blocks: int  # G
    step_size: float
    temperature: float
    batch_size: int | None  # ratings a local step; None takes the whole block
    local_steps: int
    row_curvature: float  # of the potential in W's positions, per training rating of the row
    col_curvature: float


def update_block(
    row: FactorBlock, col: FactorBlock, ratings: RatingBlock, key: Key, rule: Rule
) -> tuple[FactorBlock, FactorBlock]:
    """``local_steps`` joint steps of a block's rows of W and of H; consumes both states.

    The likelihood's gradient is scaled by G * (ratings of the block / ratings used): every
    rating of a row lies in exactly one stratum, so over random strata that is unbiased for the
    row's whole gradient. The prior is added whole.
    """
    model, domain = rule.model, rule.domain
    row_state, col_state = row.state, col.state
    row_scale = row_scales(row.counts, rule.row_curvature)
    col_scale = row_scales(col.counts, rule.col_curvature)
    for step in range(rule.local_steps):
        batch = ratings
        if rule.batch_size is not None:
            batch = ratings.sample(rule.batch_size, generator(key, Role.MINIBATCH, step))
        w, h = domain.factor(row_state.position), domain.factor(col_state.position)
        scale = rule.blocks * len(ratings) / max(len(batch), 1)
        grad_w, grad_h = likelihood_gradients(model.score, batch, w, h, scale)
        grad_w.add_(model.prior_rate_w)
        grad_h.add_(model.prior_rate_h)
        row_state = _step(row_state, grad_w, row_scale, rule, key, Role.ROW_NOISE, step)
        col_state = _step(col_state, grad_h, col_scale, rule, key, Role.COL_NOISE, step)
    return row._replace(state=row_state), col._replace(state=col_state)


def row_scales(counts: Tensor, curvature: float) -> Tensor:
    """1 / sqrt(1 + counts * curvature), (n, 1): the unit of length of each row."""
    return (counts * curvature).add_(1.0).rsqrt_()


def _step(
    state: State, gradient: Tensor, scale: Tensor, rule: Rule, key: Key, role: Role, step: int
) -> State:
    gradient = rule.domain.gradient(state.position, gradient, rule.temperature)
    noise = generator(key, role, step, gradient.device)
    state = rule.sampler.step(state, gradient, rule.step_size, scale, rule.temperature, noise)
    rule.domain.confine(state.position, state.momentum)
    return state
