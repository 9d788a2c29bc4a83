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
from bnmf.random import Key, Noise, Role, generator
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
    resample_every: int | None = None  # sweeps; None never draws momenta afresh


def update_block(
    row: FactorBlock,
    col: FactorBlock,
    ratings: RatingBlock,
    key: Key,
    rule: Rule,
    first: bool = False,
) -> tuple[FactorBlock, FactorBlock]:
    """``local_steps`` joint steps of a block's rows of W and of H; consumes both states.

    ``first`` says that the stratum is the sweep's first, in which each row and column is met
    once: the place to resample momenta.

    The likelihood's gradient is scaled by G * (ratings of the block / ratings used): every
    rating of a row lies in exactly one stratum, so over random strata that is unbiased for the
    row's whole gradient. The prior is added whole.
    """
    model = rule.model
    rows = _Side(row, row_scales(row.counts, rule.row_curvature), Role.ROW_NOISE, rule, key)
    cols = _Side(col, row_scales(col.counts, rule.col_curvature), Role.COL_NOISE, rule, key)
    if first and rule.resample_every and key.sweep % rule.resample_every == 0:
        rows.resample(0)
        cols.resample(1)
    for step in range(rule.local_steps):
        batch = ratings
        if rule.batch_size is not None:
            batch = ratings.sample(rule.batch_size, generator(key, Role.MINIBATCH, step))
        w, h = rows.before_gradient(), cols.before_gradient()
        scale = rule.blocks * len(ratings) / max(len(batch), 1)
        grad_w, grad_h = likelihood_gradients(model.score, batch, w, h, scale)
        rows.step(grad_w.add_(model.prior_rate_w), step)
        cols.step(grad_h.add_(model.prior_rate_h), step)
    return row._replace(state=rows.state), col._replace(state=cols.state)


def row_scales(counts: Tensor, curvature: float) -> Tensor:
    """1 / sqrt(1 + counts * curvature), (n, 1): the unit of length of each row."""
    return (counts * curvature).add_(1.0).rsqrt_()


class _Side:
    """The rows of W or of H during a visit."""

    def __init__(self, block: FactorBlock, scale: Tensor, role: Role, rule: Rule, key: Key) -> None:
        self.state = block.state
        self._scale, self._role, self._rule, self._key = scale, role, rule, key

    def resample(self, side: int) -> None:
        noise = Noise(generator(self._key, Role.RESAMPLE, side, self._scale.device))
        self.state = self._rule.sampler.resample(self.state, self._rule.temperature, noise)

    def before_gradient(self) -> Tensor:
        """The factor (n, K) at which the sampler wants the gradient."""
        rule = self._rule
        sampler, held = rule.sampler, self.state
        state = sampler.before_gradient(held, rule.step_size, self._scale, rule.temperature)
        if state is not held:
            self._keep(state)
        return rule.domain.factor(state.position)

    def step(self, gradient: Tensor, step: int) -> None:
        """One step with dU/dtheta (n, K)."""
        rule = self._rule
        gradient = rule.domain.gradient(self.state.position, gradient, rule.temperature)
        noise = Noise(generator(self._key, self._role, step, gradient.device))
        self._keep(
            rule.sampler.step(
                self.state, gradient, rule.step_size, self._scale, rule.temperature, noise
            )
        )

    def _keep(self, state: State) -> None:
        self._rule.domain.confine(state.position, state.momentum)
        self.state = state
