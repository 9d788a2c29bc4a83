"""Stochastic-gradient Riemannian Langevin dynamics (Patterson & Teh 2013), diagonal metric."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bnmf.random import Noise
from bnmf.samplers import Metric, Sampler, State


@dataclass(frozen=True)
class SGRLD(Sampler):
    """theta <- theta - eps P (D g - tau D') + sqrt(2 eps tau P D) eta, with P = scale^2.

    D(theta) is the inverse metric. The natural gradient of non-negative factors has D = theta,
    D' = 1 (`bnmf.domains.Mirror.metric`); the Itô formula is D = 1/f'^2 on proxies
    (`bnmf.domains.Ito`).
    """

    metric: Metric

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
        d, slope = self.metric(state.position)
        drift = temperature * slope - d * gradient
        shock = d.sqrt() * noise.normal(gradient, (2.0 * step_size * temperature) ** 0.5)
        return State(state.position + scale * (step_size * scale * drift + shock))
