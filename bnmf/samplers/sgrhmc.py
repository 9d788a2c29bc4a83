"""Generalised stochastic-gradient Riemann Hamiltonian Monte Carlo (Ma et al. 2015, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bnmf.random import Noise
from bnmf.samplers import Metric, Sampler, State, check_friction, check_noise_estimate


@dataclass(frozen=True)
class SGRHMC(Sampler):
    """Position and momentum coupled by S = D^(1/2), with D = G^-1 any positive diagonal.

    r <- r + h (-S g + tau S' - C D r) + N(0, h D (2 C tau - h B)); theta <- theta + h S r.
    The signs are those of the recipe (H = U + r.r / 2, Q = [[0, -S], [S, 0]], friction C D): the
    summary's listing adds the friction and subtracts S', which leaves nothing in place.
    """

    metric: Metric
    friction: float = 1.0  # C
    noise_estimate: float = 0.0  # B, of the gradient of position / scale

    def init(self, position: Tensor, temperature: float, noise: Noise) -> State:
        """Momenta from N(0, tau)."""
        return State(position, noise.normal(position, temperature**0.5))

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
        position, r, _ = state
        assert r is not None
        d, slope = self.metric(position)
        root = d.sqrt()
        force = temperature * slope / (2.0 * root) - root * gradient
        injected = 2.0 * self.friction * temperature - step_size * self.noise_estimate
        shock = root * noise.normal(r, (step_size * max(injected, 0.0)) ** 0.5)
        r = r + step_size * (scale * force - self.friction * d * r) + shock
        return State(position + step_size * scale * root * r, r)

    def check(self, step_size: float, temperature: float) -> None:
        """See `Sampler.check`."""
        check_friction(self.friction, step_size)
        check_noise_estimate(self.friction, self.noise_estimate, step_size, temperature)
