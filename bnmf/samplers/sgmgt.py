"""Stochastic-gradient monomial Gamma thermostat (Zhang et al. 2017, eq. 13, appendices B and E)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from bnmf.random import Noise
from bnmf.samplers import Sampler, State, check_friction
from bnmf.samplers.kinetics import Kinetics, MonomialGamma


@dataclass(frozen=True)
class SGMGT(Sampler):
    """Generalised kinetics with a thermostat for each entry.

    dtheta = (K' - s_theta g) dt + sqrt(2 s_theta tau) dW
    dp     = (-g - xi K') dt + sqrt(2 s_p tau) dW
    dxi    = (gamma (K'^2 - tau K'') - (s_xi / gamma) (xi - s_p)) dt + sqrt(2 s_xi tau) dW

    which leave exp(-(U + K + (xi - s_p)^2 / (2 gamma)) / tau) in place. With the additional
    diffusions s_theta and s_xi this is SGMGT-D, without them SGMGT.
    """

    friction: float = 1.0  # s_p: where xi starts, and the noise that is injected for it
    kinetics: Kinetics = field(default_factory=MonomialGamma)
    position_diffusion: float = 0.0  # s_theta
    thermostat_diffusion: float = 0.0  # s_xi
    coupling: float = 1.0  # gamma
    integrator: Literal["euler", "aboba"] = "aboba"

    def init(self, position: Tensor, temperature: float, noise: Noise) -> State:
        """Momenta from exp(-K / tau), xi = s_p."""
        return State(
            position,
            self.kinetics.sample(position, temperature, noise),
            torch.full_like(position, self.friction, dtype=torch.float64),
        )

    def resample(self, state: State, temperature: float, noise: Noise) -> State:
        """Momenta from exp(-K / tau), thermostats from N(s_p, gamma tau)."""
        assert state.thermostat is not None
        momentum = self.kinetics.sample(state.position, temperature, noise)
        around = noise.normal(state.thermostat, (self.coupling * temperature) ** 0.5)
        return State(state.position, momentum, self.friction + around)

    def before_gradient(
        self, state: State, step_size: float, scale: Tensor, temperature: float
    ) -> State:
        """The first A of ABOBA."""
        return (
            state if self.integrator == "euler" else self._a(state, step_size, scale, temperature)
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
        h = step_size
        if self.integrator == "aboba":
            state = self._b(state, h)
            state = self._o(state, gradient, h, scale, temperature, noise)
            return self._a(self._b(state, h), h, scale, temperature)
        position, p, xi = state
        assert p is not None and xi is not None
        velocity, _ = self.kinetics.slopes(p)
        state = State(position, p - h * xi.to(p.dtype) * velocity, xi)
        state = self._o(state, gradient, h, scale, temperature, noise)
        return self._a(state, 2.0 * h, scale, temperature)

    def _a(self, state: State, h: float, scale: Tensor, temperature: float) -> State:
        """Half a step of position and thermostats with the momenta held."""
        position, p, xi = state
        assert p is not None and xi is not None
        velocity, bend = self.kinetics.slopes(p)
        heat = self.coupling * (velocity.square() - temperature * bend).double()
        heat = heat - (self.thermostat_diffusion / self.coupling) * (xi - self.friction)
        return State(position + 0.5 * h * scale * velocity, p, xi + 0.5 * h * heat)

    def _b(self, state: State, h: float) -> State:
        """Half a step of dp = -xi K'(p) dt by the midpoint rule, of second order as the rest.

        The appendix solves the flow of the energy without softening, whose momenta cross 0.
        """
        _, p, xi = state
        assert p is not None and xi is not None
        drag = 0.5 * h * xi.to(p.dtype)
        middle, _ = self.kinetics.slopes(p)
        middle, _ = self.kinetics.slopes(p - 0.5 * drag * middle)
        return state._replace(momentum=p - drag * middle)

    def _o(
        self,
        state: State,
        gradient: Tensor,
        h: float,
        scale: Tensor,
        temperature: float,
        noise: Noise,
    ) -> State:
        """The gradient and all noise. The appendix halves this step's h, which is done once."""
        position, p, xi = state
        assert p is not None and xi is not None

        def shock(like: Tensor, diffusion: float) -> Tensor:
            return noise.normal(like, (2.0 * diffusion * temperature * h) ** 0.5)

        force = scale * gradient
        p = p - h * force + shock(p, self.friction)
        if self.position_diffusion:
            move = shock(p, self.position_diffusion) - h * self.position_diffusion * force
            position = position + scale * move
        if self.thermostat_diffusion:
            xi = xi + shock(xi, self.thermostat_diffusion)
        return State(position, p, xi)

    def check(self, step_size: float, temperature: float) -> None:
        """See `Sampler.check`."""
        check_friction(self.friction, step_size)
