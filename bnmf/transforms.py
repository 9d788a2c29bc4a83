"""Smooth increasing maps f from the real line onto a support (Yokoi et al., table 1).

The sampler moves an unbounded proxy phi; the model sees theta = f(phi). Besides f and its
inverse, a change of random variable needs f' and r = f''/f' (the gradient of log f'), which are
computed together because each transform gets one almost free from the other. Every result is
finite for every finite phi.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

Support = tuple[float, float]
REAL = (-math.inf, math.inf)
POSITIVE = (0.0, math.inf)
EULER_GAMMA = 0.5772156649015329


class Transform(Protocol):
    """An increasing bijection from R onto the open interval ``support``."""

    @property
    def name(self) -> str:
        """What the command line calls it."""

    @property
    def support(self) -> Support:
        """The open interval of theta."""

    def forward(self, phi: Tensor) -> Tensor:
        """theta = f(phi), elementwise, any shape."""

    def inverse(self, theta: Tensor) -> Tensor:
        """phi with f(phi) = theta, elementwise; theta inside ``support``."""

    def slopes(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """(f'(phi), f''(phi)/f'(phi)), elementwise, each of phi's shape."""


@dataclass(frozen=True)
class Exp:
    """theta = e^phi. Not Lipschitz: the papers' theorems do not cover it (Yokoi et al., footnote 1)."""

    name = "exp"
    support = POSITIVE

    def forward(self, phi: Tensor) -> Tensor:
        """e^phi, held so far below the largest number that products of two stay finite."""
        return phi.clamp(max=0.45 * math.log(torch.finfo(phi.dtype).max)).exp()

    def inverse(self, theta: Tensor) -> Tensor:
        """log theta."""
        return theta.log()

    def slopes(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """(e^phi, 1)."""
        return self.forward(phi), torch.ones_like(phi)


@dataclass(frozen=True)
class Softplus:
    """theta = log(1 + e^phi)."""

    name = "softplus"
    support = POSITIVE

    def forward(self, phi: Tensor) -> Tensor:
        """log(1 + e^phi); beyond 20 the difference to phi is below float32's resolution."""
        return functional.softplus(phi, threshold=20.0 if phi.dtype == torch.float32 else 40.0)

    def inverse(self, theta: Tensor) -> Tensor:
        """theta + log(1 - e^-theta)."""
        return theta + torch.log(-torch.expm1(-theta))

    def slopes(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """(sigma(phi), 1 - sigma(phi))."""
        slope = torch.sigmoid(phi)
        return slope, 1.0 - slope


@dataclass(frozen=True)
class Icll:
    """Integrated complementary log-log: theta = phi + E1(e^phi) + gamma, so f' = 1 - exp(-e^phi).

    Between exp (light below) and softplus (linear above): its slope reaches 1 doubly
    exponentially fast.
    """

    name = "icll"
    support = POSITIVE

    def forward(self, phi: Tensor) -> Tensor:
        """A power series for x = e^phi below 1, a continued fraction of E1 above."""
        x = self._x(phi)
        terms = 12 if phi.dtype == torch.float32 else 20
        small = x.clamp(max=1.0)
        # sum_n (-1)^(n+1) x^n / (n n!), by Horner's rule from the last term
        series = torch.zeros_like(small)
        for n in range(terms, 0, -1):
            series = (1.0 / n - series) * small / n if n > 1 else (1.0 - series) * small
        large = x.clamp(min=1.0)
        # E1(x) = e^-x / (x + 1 - 1^2/(x + 3 - 2^2/(x + 5 - ...)))
        depth = 16 if phi.dtype == torch.float32 else 60
        tail = large + (2 * depth + 1)
        for n in range(depth, 0, -1):
            tail = large + (2 * n - 1) - n * n / tail
        beyond = phi + torch.exp(-large) / tail + EULER_GAMMA
        return torch.where(x < 1.0, series, beyond)

    def inverse(self, theta: Tensor) -> Tensor:
        """Newton's method in float64 from softplus's inverse; f is convex, so it converges."""
        target = theta.double()
        phi = Softplus().inverse(target)
        for _ in range(40):
            slope, _ = self.slopes(phi)
            phi = phi - ((self.forward(phi) - target) / slope).clamp(-2.0, 2.0)
        return phi.to(theta.dtype)

    def slopes(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """(1 - e^-x, x / (e^x - 1)) with x = e^phi."""
        x = self._x(phi)
        return -torch.expm1(-x), torch.where(x > 0, x / torch.expm1(x), torch.ones_like(x))

    @staticmethod
    def _x(phi: Tensor) -> Tensor:
        # e^4.4 = 81: beyond it e^-x is nothing beside 1 while e^x is still finite in float32
        return phi.clamp(max=4.4 if phi.dtype == torch.float32 else 6.5).exp()


@dataclass(frozen=True)
class Scaled:
    """theta = size f(phi): a transform in other units."""

    of: Transform
    size: float

    @property
    def name(self) -> str:
        """The transform's own."""
        return self.of.name

    @property
    def support(self) -> Support:
        """The transform's: onto R or R+ units make no difference."""
        return self.of.support

    def forward(self, phi: Tensor) -> Tensor:
        """size f(phi)."""
        return self.of.forward(phi) * self.size

    def inverse(self, theta: Tensor) -> Tensor:
        """f^-1(theta / size)."""
        return self.of.inverse(theta / self.size)

    def slopes(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """(size f', f''/f')."""
        slope, bend = self.of.slopes(phi)
        return slope * self.size, bend


@dataclass(frozen=True)
class Identity:
    """theta = phi: for factors without bounds. Every sampler is then its plain self."""

    name = "identity"
    support = REAL

    def forward(self, phi: Tensor) -> Tensor:
        """phi."""
        return phi

    def inverse(self, theta: Tensor) -> Tensor:
        """A copy of theta."""
        return theta.clone()

    def slopes(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """(1, 0)."""
        return torch.ones_like(phi), torch.zeros_like(phi)


@dataclass(frozen=True)
class _Interval:
    """theta = low + (high - low) s(phi), with s onto (0, 1)."""

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(f"({self.low:g}, {self.high:g}) is no interval with two finite ends")

    @property
    def support(self) -> Support:
        """(low, high)."""
        return self.low, self.high

    def _stretch(self, unit: Tensor) -> Tensor:
        # held inside the open interval, where log densities and their gradients are finite:
        # 1 over the distance to a bound, too, which next to 0 could be denormal
        ends = torch.tensor([self.low, self.high], dtype=unit.dtype)
        low, high = torch.nextafter(ends, ends.flip(0)).tolist()
        tiny = torch.finfo(unit.dtype).tiny
        low, high = max(low, self.low + tiny), min(high, self.high - tiny)
        return (self.low + (self.high - self.low) * unit).clamp(low, high)

    def _shrink(self, theta: Tensor) -> Tensor:
        return (theta - self.low) / (self.high - self.low)


class Sigmoid(_Interval):
    """s = 1 / (1 + e^-phi)."""

    name = "sigmoid"

    def forward(self, phi: Tensor) -> Tensor:
        """See the class."""
        return self._stretch(torch.sigmoid(phi))

    def inverse(self, theta: Tensor) -> Tensor:
        """log(s / (1 - s))."""
        return torch.logit(self._shrink(theta))

    def slopes(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """(width s (1 - s), 1 - 2 s)."""
        unit, rest = torch.sigmoid(phi), torch.sigmoid(-phi)
        return (self.high - self.low) * unit * rest, rest - unit


class Arctan(_Interval):
    """s = atan(phi) / pi + 1/2."""

    name = "arctan"

    def forward(self, phi: Tensor) -> Tensor:
        """By the angle of (-phi, 1), which keeps the digits of a small s."""
        return self._stretch(torch.atan2(torch.ones_like(phi), -phi) / math.pi)

    def inverse(self, theta: Tensor) -> Tensor:
        """-cot(pi s)."""
        angle = math.pi * self._shrink(theta)
        return -angle.cos() / angle.sin()

    def slopes(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """(width / (pi (1 + phi^2)), -2 phi / (1 + phi^2))."""
        square = 1.0 + phi * phi
        return (self.high - self.low) / (math.pi * square), -2.0 / square * phi


class Softsign(_Interval):
    """s = phi / (2 (1 + |phi|)) + 1/2."""

    name = "softsign"

    def forward(self, phi: Tensor) -> Tensor:
        """From the nearer end, which keeps the digits of a small s."""
        near = 0.5 / (1.0 + phi.abs())
        return self._stretch(torch.where(phi < 0, near, 1.0 - near))

    def inverse(self, theta: Tensor) -> Tensor:
        """1 - 1 / (2 s) below 1/2, 1 / (2 (1 - s)) - 1 above."""
        unit = self._shrink(theta)
        return torch.where(unit < 0.5, 1.0 - 0.5 / unit, 0.5 / (1.0 - unit) - 1.0)

    def slopes(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """(width / (2 (1 + |phi|)^2), -2 sign(phi) / (1 + |phi|))."""
        beside = 1.0 + phi.abs()
        return (self.high - self.low) / (2.0 * beside * beside), -2.0 * phi.sign() / beside


HALF_LINE: dict[str, Transform] = {t.name: t for t in (Exp(), Softplus(), Icll())}
INTERVALS: dict[str, type[Sigmoid | Arctan | Softsign]] = {
    t.name: t for t in (Sigmoid, Arctan, Softsign)
}
NAMES = ("identity", *HALF_LINE, *INTERVALS)


def transform_onto(name: str, support: Support) -> Transform:
    """The transform ``name`` with the given support.

    Raises:
        ValueError: it maps onto another kind of support; names those that fit.
    """
    fitting: dict[str, Transform]
    if support == REAL:
        fitting = {"identity": Identity()}
    elif support == POSITIVE:
        fitting = HALF_LINE
    elif math.inf in support or -math.inf in support:
        raise ValueError(f"no transform maps onto {support}: shift the factors to (0, inf)")
    else:
        fitting = {known: kind(*support) for known, kind in INTERVALS.items()}
    if name not in fitting:
        low, high = support
        raise ValueError(
            f"{name} does not map onto the factors' support ({low:g}, {high:g}): "
            f"choose {' or '.join(fitting)}"
        )
    return fitting[name]
