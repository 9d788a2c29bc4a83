"""Stochastic-gradient MCMC samplers: each sees a state, a gradient and a source of noise.

``init`` makes the state that travels with a block, ``step`` advances it in place. Positions are
moved in units of ``scale`` (n, 1), a constant per row: the sampler runs on position / scale,
where a curvature of about 1 makes one step size right for every row. As the scale does not
depend on the state, the target stays exactly in place.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class State(NamedTuple):
    """What a sampler keeps of n rows of K parameters; every tensor is owned by the state."""

    position: Tensor  # (n, K)
    momentum: Tensor | None = None  # (n, K)
    thermostat: Tensor | None = None  # () float64


class Sampler(Protocol):
    """One member of the family."""

    def init(self, position: Tensor, temperature: float, noise: torch.Generator) -> State:
        """A state at ``position`` (n, K)."""

    def step(
        self,
        state: State,
        gradient: Tensor,
        step_size: float,
        scale: Tensor,
        temperature: float,
        noise: torch.Generator,
    ) -> State:
        """One step with dU/dposition ``gradient`` (n, K); consumes state and gradient."""
