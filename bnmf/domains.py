"""How a bounded factor theta is sampled: the space a sampler moves in, and the way back.

A sampler moves a *position*. A domain says which factor a position stands for, turns the
gradient of the potential of theta into that of the position, and keeps positions legal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bnmf.transforms import POSITIVE, Support, Transform


class Domain(Protocol):
    """The space in which a factor with a bounded support is sampled."""

    @property
    def support(self) -> Support:
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

    def metric(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """A diagonal diffusion D and dD / dposition, both (n, K), for samplers that take one."""

    def confine(self, position: Tensor, momentum: Tensor | None) -> None:
        """Put positions that left the support back, in place; turn their momenta around."""

    def mean_square_slope(self, position: Tensor) -> float:
        """Mean of (d theta / d position)^2 over a block, for scaling steps."""


@dataclass(frozen=True)
class CoRV:
    """Change of random variable (Yokoi et al., eq. 13-16): the proxy phi with theta = f(phi)."""

    transform: Transform

    @property
    def support(self) -> Support:
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
        return (slope * gradient).sub_(bend, alpha=temperature)

    def metric(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """D = 5/4 / (1/4 + f'^2): longer steps where theta hardly moves, five times at most.

        The potential's curvature in phi is that in theta times f'^2, plus that of the prior
        and the Jacobian, which the 1/4 stands for and which keeps D bounded.
        """
        slope, bend = self.transform.slopes(position)
        square = slope.square()
        beside = square + 0.25
        metric = 1.25 / beside
        return metric, -2.0 * metric * square * bend / beside

    def confine(self, position: Tensor, momentum: Tensor | None) -> None:
        """Nothing to do: every real phi is legal."""

    def mean_square_slope(self, position: Tensor) -> float:
        """Mean of f'(phi)^2."""
        slope, _ = self.transform.slopes(position)
        return float(slope.double().square().mean())


@dataclass(frozen=True)
class Ito(CoRV):
    """The Itô formula (Yokoi et al., section 4): Langevin dynamics of theta, told in phi.

    d phi = (-g' U' + tau g'') dt + sqrt(2 tau) g' dW with g = f^-1 is SGRLD on proxies with the
    metric g'^2 = 1/f'^2, and that is how it runs. Its steps are unbounded near the boundary
    (theorem 1): a baseline. Momenta have no part in it.
    """

    def metric(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """(1/f'^2, -2 f''/f'^3), held finite where f' underflows."""
        slope, bend = self.transform.slopes(position)
        metric = slope.square().clamp_min(torch.finfo(slope.dtype).tiny).reciprocal()
        return metric, -2.0 * metric * bend


@dataclass(frozen=True)
class Mirror:
    """The mirroring trick (Yokoi et al., section 3): theta itself, reflected at its bounds."""

    support: Support = POSITIVE

    def __post_init__(self) -> None:
        low, high = self.support
        if not -math.inf < low < high:
            raise ValueError(f"({low:g}, {high:g}) is nothing to reflect in: low < high is needed")

    def factor(self, position: Tensor) -> Tensor:
        """theta."""
        return position

    def position(self, factor: Tensor) -> Tensor:
        """theta."""
        return factor.clone()

    def gradient(self, position: Tensor, gradient: Tensor, temperature: float) -> Tensor:
        """The same: the map is the identity away from the boundary."""
        return gradient

    def metric(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """The natural gradient's: theta - low, times high - theta where there is an upper bound."""
        low, high = self.support
        above = position - low
        if math.isinf(high):
            return above, torch.ones_like(position)
        below = high - position
        return above * below, below - above

    def confine(self, position: Tensor, momentum: Tensor | None) -> None:
        """Reflect at the bounds as often as needed; an odd number of times turns the momentum."""
        low, high = self.support
        if math.isinf(high):
            turned = position < low
            position.sub_(low).abs_().add_(low) if low else position.abs_()
        else:
            width = high - low
            along = (position - low).remainder(2 * width)
            turned = along > width
            position.copy_(low + torch.where(turned, 2 * width - along, along))
        if momentum is not None:
            momentum.mul_(1 - 2 * turned.to(momentum.dtype))

    def mean_square_slope(self, position: Tensor) -> float:
        """1."""
        return 1.0
