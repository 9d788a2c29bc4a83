"""Stochastic-gradient MCMC samplers: each sees a state, a gradient and a source of noise.

One file a sampler: what it is built from, ``init``, ``step``. ``init`` makes the state that
travels with a block, ``step`` advances it. Positions are moved in units of ``scale``, (n, 1) or
(n, K), constants: the sampler runs on position / scale, where a curvature of about 1 makes one
step size right for every row. As the scale does not depend on the state, the target stays
exactly in place; ``scale`` squared is the constant diagonal preconditioner, or inverse mass.

At ``temperature`` tau the target is exp(-U / tau). A step is written with tensor operations that
autograd can follow, step size included, so that tests read drift and diffusion off the step
itself and put them into the Fokker-Planck equation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

from bnmf.random import Noise

# (n, K) -> a positive diagonal diffusion D and its derivatives dD_ij / dtheta_ij, both (n, K)
Metric = Callable[[Tensor], tuple[Tensor, Tensor]]


class State(NamedTuple):
    """What a sampler keeps of n rows of K parameters; every tensor is owned by the state."""

    position: Tensor  # (n, K)
    momentum: Tensor | None = None  # (n, K)
    thermostat: Tensor | None = None  # float64: () one a block, (n, 1), (1, K) or (n, K)

    def tensors(self) -> dict[str, Tensor]:
        """Those that the sampler keeps, by name."""
        return {name: x for name, x in self._asdict().items() if x is not None}


class Sampler(Protocol):
    """One member of the family; the methods with a body here suit most of them."""

    def init(self, position: Tensor, temperature: float, noise: Noise) -> State:
        """A state at ``position`` (n, K)."""

    def resample(self, state: State, temperature: float, noise: Noise) -> State:
        """The state with momenta drawn afresh from their law; leaves the target in place."""
        return state._replace(momentum=self.init(state.position, temperature, noise).momentum)

    def before_gradient(
        self, state: State, step_size: float, scale: Tensor, temperature: float
    ) -> State:
        """What a symmetric splitting does before it asks for the gradient; consumes the state."""
        return state

    def step(
        self,
        state: State,
        gradient: Tensor,
        step_size: float,
        scale: Tensor,
        temperature: float,
        noise: Noise,
    ) -> State:
        """One step with dU/dposition ``gradient`` (n, K); consumes state and gradient."""

    def check(self, step_size: float, temperature: float) -> None:
        """Refuse settings with which no chain can stand.

        Raises:
            ValueError: names the settings and what to change.
        """
        return


def check_friction(friction: float, step_size: float) -> None:
    """Refuse a friction that a step overshoots: 1 - h C below -1 makes momenta grow.

    Raises:
        ValueError: h C > 2.
    """
    if step_size * friction > 2.0:
        raise ValueError(
            f"--step-size {step_size:g} x --friction {friction:g} is {step_size * friction:g}: "
            "above 2 momenta grow without end; lower one of them"
        )


def check_noise_estimate(
    friction: float, estimate: float, step_size: float, temperature: float
) -> None:
    """Refuse an estimate of the gradient's noise that leaves none to inject.

    Raises:
        ValueError: h B > 2 C tau.
    """
    if step_size * estimate > 2.0 * friction * temperature:
        raise ValueError(
            f"--noise-estimate {estimate:g} x --step-size {step_size:g} is more than 2 x "
            f"--friction {friction:g} x --temperature {temperature:g}, which leaves no noise to "
            "inject: raise the friction or lower the others"
        )
