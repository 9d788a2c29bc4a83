"""Smooth increasing maps f from the real line onto a bounded support (Yokoi et al., table 1).

The sampler moves an unbounded proxy phi; the model sees theta = f(phi). Besides f and its
inverse, a change of random variable needs f' and r = f''/f' (the gradient of log f'), which are
computed together because each transform gets one almost free from the other. Every result is
finite for every finite phi.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

POSITIVE = (0.0, math.inf)
EULER_GAMMA = 0.5772156649015329


class Transform(Protocol):
    """An increasing bijection from R onto the open interval ``support``."""

    name: str
    support: tuple[float, float]

    def forward(self, phi: Tensor) -> Tensor:
        """theta = f(phi), elementwise, any shape."""

    def inverse(self, theta: Tensor) -> Tensor:
        """phi with f(phi) = theta, elementwise; theta inside ``support``."""

    def slopes(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """(f'(phi), f''(phi)/f'(phi)), elementwise, each of phi's shape."""


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


TRANSFORMS: dict[str, Transform] = {t.name: t for t in (Exp(), Softplus(), Icll())}
