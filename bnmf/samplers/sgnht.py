"""Stochastic-gradient Nosé-Hoover thermostat (Ding et al. 2014, algorithm 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnmf.samplers import State


@dataclass(frozen=True)
class SGNHT:
    """Momenta whose friction xi adapts until their kinetic energy is right.

    p <- p - xi p h - g h + sqrt(2 A tau h) eta;  theta <- theta + p h;
    xi <- xi + h (p.p / n - tau), one xi a block. Unknown gradient noise ends up in xi.
    """

    diffusion: float

    def init(self, position: Tensor, temperature: float, noise: torch.Generator) -> State:
        """Momenta from N(0, tau), xi = A."""
        momentum = torch.empty_like(position).normal_(generator=noise)
        return State(
            position,
            momentum.mul_(math.sqrt(temperature)),
            torch.tensor(self.diffusion, dtype=torch.float64),
        )

    def step(
        self,
        state: State,
        gradient: Tensor,
        step_size: float,
        scale: Tensor,
        temperature: float,
        noise: torch.Generator,
    ) -> State:
        """One step; ``step_size`` is h."""
        position, p, xi = state
        assert p is not None and xi is not None
        eta = torch.empty_like(p).normal_(generator=noise)
        p.mul_(1.0 - step_size * xi.item())
        p.addcmul_(gradient, scale, value=-step_size)
        p.add_(eta, alpha=math.sqrt(2.0 * self.diffusion * temperature * step_size))
        position.addcmul_(p, scale, value=step_size)
        flat = p.view(-1)
        kinetic = torch.dot(flat, flat).double() / flat.numel()
        return State(position, p, xi + step_size * (kinetic - temperature))
