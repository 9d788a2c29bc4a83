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
from bnmf.models import Curvature, Model, Side
from bnmf.random import Key, Noise, Role, generator
from bnmf.samplers import Sampler, State


class FactorBlock(NamedTuple):
    """The rows of W (or of H) of one group, and what the sampler keeps of them."""

    state: State
    counts: Tensor  # (n, 1) float32: training ratings of each row, over all blocks


@dataclass(frozen=True)
class Rule:
    """What every visit of a sweep does."""

    model: Model
    domain: Domain
    sampler: Sampler
    blocks: int  # G
    step_size: float
    temperature: float
    batch_size: int | None  # ratings a local step; None takes the whole block
    local_steps: int
    row_curvature: Curvature  # of the potential in W's positions
    col_curvature: Curvature
    resample_every: int | None = None  # sweeps; None never draws momenta afresh


def update_block(
    row: FactorBlock,
    col: FactorBlock,
    ratings: RatingBlock,
    key: Key,
    rule: Rule,
    first: bool = False,
) -> tuple[FactorBlock, FactorBlock, float]:
    """``local_steps`` joint steps of a block's rows of W and of H; consumes both states.

    ``first`` says that the stratum is the sweep's first, in which each row and column is met
    once: the place to resample momenta. The third result is the model's misfit of the block's
    ratings, as met in the last step.

    The likelihood's gradient is scaled by G * (ratings of the block / ratings used): every
    rating of a row lies in exactly one stratum, so over random strata that is unbiased for the
    row's whole gradient. The prior is added whole.
    """
    model = rule.model
    rows = _Visited(row, Side.W, rule.row_curvature, rule, key)
    cols = _Visited(col, Side.H, rule.col_curvature, rule, key)
    if first and rule.resample_every and key.sweep % rule.resample_every == 0:
        rows.resample()
        cols.resample()
    misfit = 0.0
    for step in range(rule.local_steps):
        batch = ratings
        if rule.batch_size is not None:
            batch = ratings.sample(rule.batch_size, generator(key, Role.MINIBATCH, step))
        share = len(ratings) / max(len(batch), 1)

        def score(x: Tensor, mu: Tensor, share: float = share) -> Tensor:
            nonlocal misfit
            found = model.score(x, mu)
            misfit = share * model.misfit(found)
            return found

        w, h = rows.before_gradient(), cols.before_gradient()
        grad_w, grad_h = likelihood_gradients(score, batch, w, h, rule.blocks * share)
        rows.step(grad_w, step)
        cols.step(grad_h, step)
    return row._replace(state=rows.state), col._replace(state=cols.state), misfit


class _Visited:
    """The rows of W or of H during a visit."""

    def __init__(
        self, block: FactorBlock, side: Side, curvature: Curvature, rule: Rule, key: Key
    ) -> None:
        self.state = block.state
        self._scale = rule.model.scales(block.counts, curvature, side)
        self._side, self._rule, self._key = side, rule, key
        self._theta = block.state.position

    def resample(self) -> None:
        noise = Noise(generator(self._key, Role.RESAMPLE, self._side, self._scale.device))
        self.state = self._rule.sampler.resample(self.state, self._rule.temperature, noise)

    def before_gradient(self) -> Tensor:
        """The design (n, width) at which the sampler wants the gradient."""
        rule = self._rule
        sampler, held = rule.sampler, self.state
        state = sampler.before_gradient(held, rule.step_size, self._scale, rule.temperature)
        if state is not held:
            self._keep(state)
        self._theta = rule.domain.factor(state.position)
        return rule.model.design(self._theta, self._side)

    def step(self, of_design: Tensor, step: int) -> None:
        """One step with the likelihood's gradient in the design (n, width)."""
        rule = self._rule
        gradient = rule.model.gradient(of_design, self._theta, self._side)
        gradient = rule.domain.gradient(self.state.position, gradient, rule.temperature)
        role = Role.ROW_NOISE if self._side == Side.W else Role.COL_NOISE
        noise = Noise(generator(self._key, role, step, gradient.device))
        self._keep(
            rule.sampler.step(
                self.state, gradient, rule.step_size, self._scale, rule.temperature, noise
            )
        )

    def _keep(self, state: State) -> None:
        self._rule.domain.confine(state.position, state.momentum)
        self.state = state
