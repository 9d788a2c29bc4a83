"""Naive stochastic slice sampling (Zhang et al. 2017, algorithm 2): a baseline known to be wrong.

Slice sampling (Neal 2003) with the density of a fresh minibatch in every step. With the whole
data it is exact; with minibatches its draws are over-dispersed, as the noise of the density is
never taken out again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bnmf.random import Noise


@dataclass(frozen=True)
class NaiveSlice:
    """One coordinate a step, by doubling and shrinking, for densities with one peak.

    Doubling needs Neal's acceptance test only where a slice can be in several pieces.
    """

    width: float  # of the first interval; any positive number is right, a good one is fast
    doublings: int = 10

    def step(self, position: Tensor, potential: Callable[[Tensor], Tensor], noise: Noise) -> Tensor:
        """New positions (n,) of n chains; ``potential`` (n,) -> (n,) is of this step's minibatch.

        Raises:
            ValueError: the potential of a position is not finite.
        """
        level = potential(position) + noise.exponential(position)  # -log u
        if not bool(level.isfinite().all()):
            raise ValueError("the potential is not finite where a chain is: start elsewhere")
        low = position - self.width * noise.uniform(position)
        high = low + self.width
        for _ in range(self.doublings):
            open_ = (potential(low) < level) | (potential(high) < level)
            if not bool(open_.any()):
                break
            span = torch.where(open_, high - low, 0.0)
            left = noise.uniform(position) < 0.5
            low = torch.where(left, low - span, low)
            high = torch.where(left, high, high + span)
        wanted = torch.ones_like(position, dtype=torch.bool)
        found = position
        while bool(wanted.any()):
            trial = low + (high - low) * noise.uniform(position)
            inside = potential(trial) <= level  # equal where digits are lost
            found = torch.where(wanted & inside, trial, found)
            wanted = wanted & ~inside
            below = trial < position
            low = torch.where(wanted & below, trial, low)
            high = torch.where(wanted & ~below, trial, high)
        return found
