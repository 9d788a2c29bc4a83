"""Kinetic energies K(p), for momenta with the law exp(-K(p) / tau)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from bnmf.random import Noise


class Kinetics(Protocol):
    """A symmetric kinetic energy, elementwise; momenta of any shape."""

    def slopes(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """(K'(p), K''(p)); K' is the velocity."""

    def sample(self, like: Tensor, temperature: float, noise: Noise) -> Tensor:
        """Exact draws from exp(-K(p) / tau) in the shape of ``like``; zeros at tau = 0."""


@dataclass(frozen=True)
class Gaussian:
    """K = p^2 / 2. A mass other than 1 is a scale of the position."""

    def slopes(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """(p, 1)."""
        return p, torch.ones_like(p)

    def sample(self, like: Tensor, temperature: float, noise: Noise) -> Tensor:
        """N(0, tau)."""
        return noise.normal(like, math.sqrt(temperature))


@dataclass(frozen=True)
class MonomialGamma:
    """|p|^(1/a) / m with its tip softened (Zhang et al. 2017, section 3.2 and appendix C).

    With g = |p|^(1/a) / m and psi(x) = tanh(c x / 2):
    a = 1: K' = sign(p) psi(g) / m, K = g + (2/c) log(1 + e^(-c g)): a Laplace law with its tip
    rounded.
    a = 2: K' = sign(p) psi(g)^3 / (2 m |p|^(1/2)), K = (2/c) (log cosh(c g / 2) - psi(g)^2 / 2).

    The appendix has psi^2 for a = 2. Then K' behaves like |p|^(1/2) at 0 and K'' like
    |p|^(-1/2): neither Lipschitz, as its proof asks, nor fit for a thermostat, which integrates
    K''. psi^(2a - 1) is the least power that is, and gives psi for a = 1.
    """

    power: int = 1  # a: 1 or 2
    mass: float = 1.0  # m
    softening: float = 5.0  # c

    def __post_init__(self) -> None:
        if self.power not in (1, 2):
            raise ValueError(f"monomial parameter {self.power}: 1 and 2 are known")

    def energy(self, p: Tensor) -> Tensor:
        """K(p), up to a constant."""
        m, c = self.mass, self.softening
        if self.power == 1:
            g = p.abs() / m
            return g + (2.0 / c) * torch.log1p(torch.exp(-c * g))
        g = p.abs().sqrt() / m
        log_cosh = c * g / 2 + torch.log1p(torch.exp(-c * g)) - math.log(2.0)
        return (2.0 / c) * (log_cosh - torch.tanh(c * g / 2).square() / 2)

    def slopes(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """See the class."""
        m, c = self.mass, self.softening
        if self.power == 1:
            psi = torch.tanh((c / (2 * m)) * p)
            return psi / m, (c / (2 * m * m)) * (1.0 - psi * psi)
        # psi(g) / g is even and smooth in g: nothing is divided by 0
        g = p.abs().clamp_min(torch.finfo(p.dtype).tiny).sqrt() / m
        psi = torch.tanh((c / 2) * g)
        ratio = psi / g
        velocity = p * ratio**3 / (2 * m**4)
        bend = (3 * (c / 2) * (1.0 - psi * psi) - ratio) * ratio**2 / (4 * m**4)
        return velocity, bend

    def sample(self, like: Tensor, temperature: float, noise: Noise) -> Tensor:
        """Exact, by rejection: the density of g, g^(a-1) exp(-K / tau), is log-concave.

        Its envelope is flat at the mode and has the tangents at the two places where the log
        density is 1 lower (Devroye 1986, section 7.2): more than half of the trials are taken at
        any temperature.
        """
        if temperature == 0.0:
            return torch.zeros_like(like)
        tip = _Envelope.of(self, temperature)
        double = torch.empty_like(like, dtype=torch.float64)
        drawn = double.clone()
        wanted = torch.ones_like(like, dtype=torch.bool)
        while bool(wanted.any()):
            g, height = tip.draw(double, noise)
            chance = torch.exp(self._log_density(g, temperature) - height)
            taken = wanted & ~(noise.uniform(double) >= chance)
            sign = torch.where(noise.uniform(double) < 0.5, -1.0, 1.0)
            drawn = torch.where(taken, sign * (self.mass * g) ** self.power, drawn)
            wanted = wanted & ~taken
        return drawn.to(like.dtype)

    def _log_density(self, g: Tensor, temperature: float) -> Tensor:
        """Of g, up to a constant."""
        energy = self.energy((self.mass * g) ** self.power)
        return (self.power - 1) * g.log() - energy / temperature

    def log_density_and_slope(self, g: float, temperature: float) -> tuple[float, float]:
        """Of g > 0, and its derivative; d K / d g = psi^(2a - 1)."""
        density = self._log_density(torch.tensor(g, dtype=torch.float64), temperature)
        pull = math.tanh(self.softening * g / 2) ** (2 * self.power - 1) / temperature
        return float(density), (self.power - 1) / g - pull


@dataclass(frozen=True)
class _Envelope:
    """exp of min(top, top + (g - left) rise, top - (g - right) fall) on g > 0."""

    top: float
    left: float
    right: float
    rise: float  # 0 where the mode is at 0
    fall: float

    @staticmethod
    @cache
    def of(kinetics: MonomialGamma, temperature: float) -> _Envelope:
        """That of a kinetic energy's g."""

        def log_density(g: float) -> float:
            return kinetics.log_density_and_slope(g, temperature)[0]

        def slope(g: float) -> float:
            return kinetics.log_density_and_slope(g, temperature)[1]

        far = 1.0
        while slope(far) >= 0.0 or log_density(far) > log_density(far / 2) - 2.0:
            far *= 2.0
        mode = far * 2.0**-200 if kinetics.power == 1 else _bisect(slope, far * 2.0**-200, far)
        top = log_density(mode)
        right = _bisect(lambda g: log_density(g) - (top - 1.0), mode, far)
        fall = -slope(right)
        right -= (top - log_density(right)) / fall
        if kinetics.power == 1:
            return _Envelope(top, 0.0, right, 0.0, fall)
        left = _bisect(lambda g: (top - 1.0) - log_density(g), far * 2.0**-200, mode)
        rise = slope(left)
        return _Envelope(top, left + (top - log_density(left)) / rise, right, rise, fall)

    def draw(self, like: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """g in the shape of ``like``, and the envelope's logarithm there."""
        below = -math.expm1(-self.rise * self.left) / self.rise if self.rise else 0.0
        flat, above = self.right - self.left, 1.0 / self.fall
        u = noise.uniform(like) * (below + flat + above)
        tail = self.right + noise.exponential(like) / self.fall
        g = torch.where(u < below + flat, self.left + (u - below), tail)
        height = torch.where(u < below + flat, self.top, self.top - self.fall * (tail - self.right))
        if self.rise:
            # u < below is uniform there: invert the exponential's distribution function
            part = torch.log1p(-self.rise * u.clamp_max(below)) / self.rise
            g = torch.where(u < below, self.left + part, g)
            height = torch.where(u < below, self.top + self.rise * part, height)
        return g.clamp_min(torch.finfo(like.dtype).tiny), height


def _bisect(of: Callable[[float], float], low: float, high: float) -> float:
    """Where a decreasing function crosses 0."""
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if of(middle) > 0.0 else (low, middle)
    return low
