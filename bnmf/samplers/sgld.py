"""Stochastic-gradient Langevin dynamics (Welling & Teh 2011; Karagiannis, eq. 3.5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnmf.samplers import State


@dataclass(frozen=True)
class SGLD:
    """theta <- theta - eps P g + sqrt(2 eps tau P) eta, with P = scale^2.

    At temperature 0 this is preconditioned stochastic gradient descent.
    """

    def init(self, position: Tensor, temperature: float, noise: torch.Generator) -> State:
        """A state at ``position`` (n, K)."""
        return State(position)

    def step(
        self,
        state: State,
        gradient: Tensor,
        step_size: float,
        scale: Tensor,
        temperature: float,
        noise: torch.Generator,
    ) -> State:
        """One step; ``step_size`` is eps."""
        eta = torch.empty_like(gradient).normal_(generator=noise)
        move = gradient.mul_(scale).mul_(-step_size)
        move.add_(eta, alpha=math.sqrt(2.0 * step_size * temperature))
        state.position.addcmul_(move, scale)
        return state
