"""Stochastic-gradient Nosé-Hoover thermostat (Ding et al. 2014, algorithms 1 and 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bnmf.random import Noise
from bnmf.samplers import Sampler, State, check_friction


@dataclass(frozen=True)
class SGNHT(Sampler):
    """Momenta whose friction xi adapts until their kinetic energy is right.

    p <- p - xi p h - g h + sqrt(2 A tau h) eta;  theta <- theta + p h;
    xi <- xi + h (p.p / n - tau). Unknown noise in the gradient ends up in xi.

    Noise that differs between the parameters of one thermostat makes some of them hotter and
    others colder than tau. Columns of a factor differ much: those that the ratings say little of
    have little noise, would be cold, and would drag a sampled precision up with them. A
    thermostat a column keeps each column's mean energy right; one a row is for chains in rows.

    Algorithm 2 is the same chain in u = p h, alpha = xi h: see `reformulated`.
    """

    friction: float  # A: where xi starts, and the noise that is injected for it
    per: Literal["block", "row", "column"] = "block"  # what has a thermostat of its own

    def init(self, position: Tensor, temperature: float, noise: Noise) -> State:
        """Momenta from N(0, tau), xi = A."""
        n, k = position.shape
        shape = {"block": (), "row": (n, 1), "column": (1, k)}[self.per]
        return State(
            position,
            noise.normal(position, temperature**0.5),
            torch.full(shape, self.friction, dtype=torch.float64),
        )

    def step(
        self,
        state: State,
        gradient: Tensor,
        step_size: float,
        scale: Tensor,
        temperature: float,
        noise: Noise,
    ) -> State:
        """One step; ``step_size`` is h."""
        position, p, xi = state
        assert p is not None and xi is not None
        # the noise becomes the new momentum: one pass over memory less
        fresh = noise.normal(p, (2.0 * self.friction * temperature * step_size) ** 0.5)
        fresh.addcmul_(p, (1.0 - step_size * xi).to(p.dtype))
        fresh.addcmul_(gradient, step_size * scale, value=-1.0)
        position.addcmul_(fresh, step_size * scale)
        if self.per != "block":
            squares = fresh.square().mean(int(self.per == "row"), keepdim=True).double()
        else:
            flat = fresh.view(-1)
            squares = torch.dot(flat, flat).double() / flat.numel()
        return State(position, fresh, xi + step_size * (squares - temperature))

    def check(self, step_size: float, temperature: float) -> None:
        """See `Sampler.check`."""
        check_friction(self.friction, step_size)


def reformulated(eta: float, a: float) -> tuple[float, float]:
    """(h, A) of algorithm 1 from algorithm 2's learning rate ``eta`` and momentum decay ``a``.

    eta = h^2 and a = A h: the two algorithms then make the same chain, with u = p h and
    alpha = xi h.
    """
    h = eta**0.5
    return h, a / h
