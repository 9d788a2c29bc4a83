"""One visit of one block: the heart of the house.

A visit is a pure function of the two states, the block's ratings and a key. It runs the same
in a thread, an actor or a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bnmf.blocks import RatingBlock
from bnmf.domains import Domain
from bnmf.gradients import likelihood_gradients
from bnmf.implicit import Implicit, add_centres, add_gradients, centred, moved
from bnmf.models import Curvature, Model, Side
from bnmf.random import Key, Noise, Role, generator
from bnmf.samplers import Sampler, State


class FactorBlock(NamedTuple):
    """The rows of W (or of H) of one group, and what the sampler keeps of them."""

    state: State
    counts: Tensor  # (n, 1) float32: training ratings of each row, over all blocks
    implicit: Implicit | None = None

    @property
    def centre(self) -> Tensor | None:
        """(n, columns), of the rows' priors, where they have one."""
        return self.implicit.centre if self.implicit is not None else None

    def tensors(self) -> dict[str, Tensor]:
        """All but the counts, by name, for a checkpoint."""
        beside = self.implicit.tensors() if self.implicit is not None else {}
        return self.state.tensors() | beside

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor], counts: Tensor) -> FactorBlock:
        """The inverse of `tensors`."""
        state = State(**{name: x for name, x in tensors.items() if name in State._fields})
        implicit = Implicit.from_tensors(tensors) if "centre" in tensors else None
        return FactorBlock(state, counts, implicit)


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
    warm: bool = False  # the chain has left its start: all that a model has is sampled


def update_block(
    row: FactorBlock,
    col: FactorBlock,
    ratings: RatingBlock,
    key: Key,
    rule: Rule,
    first: bool = False,
    last: bool = False,
) -> tuple[FactorBlock, FactorBlock]:
    """``local_steps`` joint steps of a block's rows of W and of H; consumes both states.

    ``first`` and ``last`` say that the stratum is the sweep's first or last, in which each row
    and column is met once: the first resamples momenta, the last ends sums over the sweep.

    The likelihood's gradient is scaled by G * (ratings of the block / ratings used): every
    rating of a row lies in exactly one stratum, so over random strata that is unbiased for the
    row's whole gradient. The prior is added whole.
    """
    model = rule.model
    row, col = _visit_implicit(row, col, ratings, key, rule, last)
    rows = _Visited(row, Side.W, rule.row_curvature, rule, key)
    cols = _Visited(col, Side.H, rule.col_curvature, rule, key)
    if first and rule.resample_every and key.sweep % rule.resample_every == 0:
        rows.resample()
        cols.resample()
    score = partial(model.score, warm=rule.warm)
    for step in range(rule.local_steps):
        batch = ratings
        if rule.batch_size is not None:
            batch = ratings.sample(rule.batch_size, generator(key, Role.MINIBATCH, step))
        scale = rule.blocks * len(ratings) / max(len(batch), 1)
        w, h = rows.before_gradient(), cols.before_gradient()
        grad_w, grad_h = likelihood_gradients(score, batch, w, h, scale, model.levels)
        rows.step(grad_w, step)
        cols.step(grad_h, step)
    return row._replace(state=rows.state), col._replace(state=cols.state)


def _visit_implicit(
    row: FactorBlock, col: FactorBlock, ratings: RatingBlock, key: Key, rule: Rule, last: bool
) -> tuple[FactorBlock, FactorBlock]:
    """This visit's share of the sweep's sums, and in the last what comes of them."""
    if row.implicit is None or col.implicit is None or not rule.warm:
        return row, col
    model = rule.model
    centres = key.sweep % 2 == 0
    if centres:
        add_centres(row.implicit, col.implicit, ratings)
    else:
        pulls = (
            model.pull(rule.domain.factor(row.state.position), Side.W, row.centre),
            model.pull(rule.domain.factor(col.state.position), Side.H, col.centre),
        )
        add_gradients(row.implicit, col.implicit, ratings, pulls, (row.counts, col.counts))
    if not last:
        return row, col
    ended = []
    # the weights beside W's rows centre H's rows, and the other way round
    for block, side, of, base in (
        (row, Side.W, Side.H, rule.col_curvature.base),
        (col, Side.H, Side.W, rule.row_curvature.base),
    ):
        assert block.implicit is not None
        if centres:
            implicit = centred(block.implicit, block.counts)
        else:
            like = block.counts
            implicit = moved(
                block.implicit,
                rule.sampler,
                model.weight_precision[of].to(like),
                torch.tensor(base).to(like),
                block.counts,
                2.0 * rule.step_size,  # they move every other sweep
                rule.temperature,
                Noise(generator(key, Role.IMPLICIT, side, like.device)),
            )
        ended.append(block._replace(implicit=implicit))
    return ended[0], ended[1]


class _Visited:
    """The rows of W or of H during a visit."""

    def __init__(
        self, block: FactorBlock, side: Side, curvature: Curvature, rule: Rule, key: Key
    ) -> None:
        self.state = block.state
        self._scale = curvature.scales(block.counts)
        self._centre = block.centre
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
        gradient = rule.model.gradient(of_design, self._theta, self._side, self._centre)
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
