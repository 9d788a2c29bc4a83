"""Stochastic-gradient Langevin dynamics (Welling & Teh 2011; Karagiannis, eq. 3.5 and 3.9)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bnmf.random import Noise
from bnmf.samplers import Sampler, State


@dataclass(frozen=True)
class SGLD(Sampler):
    """theta <- theta - eps P g + sqrt(2 eps tau P) eta, with P = scale^2.

    At temperature 0 this is preconditioned stochastic gradient descent, to the mode. The papers
    print sqrt(eps tau) (Karagiannis, eq. 3.2) and sqrt(2) (Yokoi et al., eq. 60): the SDE they
    state needs sqrt(2 eps tau).
    """

    def init(self, position: Tensor, temperature: float, noise: Noise) -> State:
        """A state at ``position`` (n, K)."""
        return State(position)

    def step(
        self,
        state: State,
        gradient: Tensor,
        step_size: float,
        scale: Tensor,
        temperature: float,
        noise: Noise,
    ) -> State:
        """One step; ``step_size`` is eps."""
        move = noise.normal(gradient, (2.0 * step_size * temperature) ** 0.5)
        move.addcmul_(gradient, step_size * scale, value=-1.0)
        state.position.addcmul_(move, scale)
        return state
