"""Stochastic-gradient Hamiltonian Monte Carlo (Chen et al. 2014; Ma et al. 2015, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from bnmf.random import Noise
from bnmf.samplers import Sampler, State, check_friction, check_noise_estimate
from bnmf.samplers.kinetics import Gaussian, Kinetics


@dataclass(frozen=True)
class SGHMC(Sampler):
    """p <- p - h g - h C K'(p) + N(0, h (2 C tau - h B)); theta <- theta + h K'(p).

    B estimates the variance of the gradient's noise, which is then not injected twice. C = 0
    and B = 0 are Hamiltonian dynamics: without noise in the gradient and with momenta resampled
    now and then, HMC without its Metropolis step. With the kinetics of `MonomialGamma` a = 1
    this is stochastic Laplacian HMC (Zhang et al. 2017, appendix M).
    """

    friction: float  # C
    noise_estimate: float = 0.0  # B, of the gradient of position / scale
    kinetics: Kinetics = field(default_factory=Gaussian)

    def init(self, position: Tensor, temperature: float, noise: Noise) -> State:
        """Momenta from exp(-K / tau)."""
        return State(position, self.kinetics.sample(position, temperature, noise))

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
        position, p, _ = state
        assert p is not None
        injected = 2.0 * self.friction * temperature - step_size * self.noise_estimate
        velocity, _ = self.kinetics.slopes(p)
        shock = noise.normal(p, (step_size * max(injected, 0.0)) ** 0.5)
        p = p - step_size * (scale * gradient + self.friction * velocity) + shock
        velocity, _ = self.kinetics.slopes(p)
        return State(position + step_size * scale * velocity, p)

    def check(self, step_size: float, temperature: float) -> None:
        """See `Sampler.check`."""
        check_friction(self.friction, step_size)
        check_noise_estimate(self.friction, self.noise_estimate, step_size, temperature)
