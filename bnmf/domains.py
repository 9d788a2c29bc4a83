"""How a bounded factor theta is sampled: the space a sampler moves in, and the way back.

A sampler moves a *position*. A domain says which factor a position stands for, turns the
gradient of the potential of theta into that of the position, and keeps positions legal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from bnmf.transforms import POSITIVE, Transform


class Domain(Protocol):
    """The space in which a factor with a bounded support is sampled."""

    @property
    def support(self) -> tuple[float, float]:
        """The open interval that theta lies in."""

    def factor(self, position: Tensor) -> Tensor:
        """theta (n, K) of a position (n, K)."""

    def position(self, factor: Tensor) -> Tensor:
        """A position (n, K) of theta (n, K)."""

    def gradient(self, position: Tensor, gradient: Tensor, temperature: float) -> Tensor:
        """The position's potential gradient (n, K) from theta's (n, K).

        The potential is U(theta) - temperature * log|d theta / d position|, so that sampling
        at ``temperature`` leaves exp(-U(theta) / temperature) in place.
        """

    def confine(self, position: Tensor, momentum: Tensor | None) -> None:
        """Put positions that left the support back, in place; turn their momenta around."""

    def mean_square_slope(self, position: Tensor) -> float:
        """Mean of (d theta / d position)^2 over a block, for scaling steps."""


@dataclass(frozen=True)
class CoRV:
    """Change of random variable (Yokoi et al., eq. 13-16): the proxy phi with theta = f(phi)."""

    transform: Transform

    @property
    def support(self) -> tuple[float, float]:
        """The transform's."""
        return self.transform.support

    def factor(self, position: Tensor) -> Tensor:
        """f(phi)."""
        return self.transform.forward(position)

    def position(self, factor: Tensor) -> Tensor:
        """f^-1(theta)."""
        return self.transform.inverse(factor)

    def gradient(self, position: Tensor, gradient: Tensor, temperature: float) -> Tensor:
        """f' dU/dtheta - temperature * f''/f' (Yokoi et al., eq. 15)."""
        slope, bend = self.transform.slopes(position)
        return slope.mul_(gradient).sub_(bend, alpha=temperature)

    def confine(self, position: Tensor, momentum: Tensor | None) -> None:
        """Nothing to do: every real phi is legal."""

    def mean_square_slope(self, position: Tensor) -> float:
        """Mean of f'(phi)^2."""
        slope, _ = self.transform.slopes(position)
        return float(slope.double().square().mean())


@dataclass(frozen=True)
class Mirror:
    """The mirroring trick (Yokoi et al., section 3): theta itself, reflected at 0. A baseline."""

    support: tuple[float, float] = POSITIVE

    def factor(self, position: Tensor) -> Tensor:
        """theta."""
        return position

    def position(self, factor: Tensor) -> Tensor:
        """theta."""
        return factor.clone()

    def gradient(self, position: Tensor, gradient: Tensor, temperature: float) -> Tensor:
        """The same: the map is the identity away from the boundary."""
        return gradient

    def confine(self, position: Tensor, momentum: Tensor | None) -> None:
        """theta becomes |theta|; the momentum of a reflected entry changes its sign."""
        if momentum is not None:
            momentum.mul_(1 - 2 * (position < 0).to(momentum.dtype))
        position.abs_()

    def mean_square_slope(self, position: Tensor) -> float:
        """1."""
        return 1.0
