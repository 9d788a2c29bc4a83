"""Kinetic energies K(p), for momenta with the law exp(-K(p) / tau)."""

from __future__ import annotations

import math
from dataclasses import dataclass
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
        """By rejection from |p| = (m tau x)^a, x from Gamma(a): the law without softening.

        K - g falls from its value at 0 to its limit, so exp((limit - (K - g)) / tau) is a
        probability, at least exp(-2.4 / (c tau)).
        """
        if temperature == 0.0:
            return torch.zeros_like(like)
        limit = 0.0 if self.power == 1 else -(2.0 * math.log(2.0) + 1.0) / self.softening
        drawn = torch.empty_like(like)
        wanted = torch.ones_like(like, dtype=torch.bool)
        while bool(wanted.any()):
            x = noise.exponential(like)
            if self.power == 2:
                x = x + noise.exponential(like)
            g = temperature * x
            p = (self.mass * g) ** self.power
            chance = torch.exp((limit - (self.energy(p) - g)) / temperature)
            taken = wanted & (noise.uniform(like) < chance)
            sign = torch.where(noise.uniform(like) < 0.5, -1.0, 1.0)
            drawn = torch.where(taken, sign * p, drawn)
            wanted = wanted & ~taken
        return drawn
