"""Likelihoods of a rating x at a location mu and a precision.

`bnmf.models` and `bnmf.hierarchical` say what mu and the precision are made of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]

# Below any rate a factor model reaches, above what float32 loses: keeps x / mu finite.
SMALLEST_RATE = 1e-12


class RatingScale(NamedTuple):
    """Ratings lie on a grid from ``low`` to ``high``, ``step`` apart."""

    low: float
    high: float
    step: float


class Likelihood(Protocol):
    """A location-precision family: the score of mu is precision times a residual."""

    def residuals(self, x: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
        """(d, q): d log p / d mu = precision d, and E[precision q] = 1; x, mu, d, q (n,)."""

    def log_prob(self, x: Tensor, mu: Tensor, precision: Tensor | float) -> Tensor:
        """log p(x | mu, precision) per rating; (n,)."""

    def information(self, mu: float, precision: float) -> float:
        """Expected -d^2 log p / d mu^2 of one rating."""

    def precision(self, mu: float, variance: float) -> float:
        """That which gives ratings around ``mu`` this variance."""

    def variance(self, mu: Floats, precision: Floats | float) -> Floats:
        """Var[x | mu, precision], in squared rating units; they broadcast."""


@dataclass(frozen=True)
class Poisson:
    """Counts s x at rates s mu, where the precision is s, the counts per unit of rating.

    Var[x | mu] = mu / s. Where s is learned, it is by Pearson's residual (x - mu)^2 / mu, whose
    mean is 1 / s: log s has the score of a Gaussian with that variance (quasi-likelihood;
    Nelder and Pregibon 1987).
    """

    def residuals(self, x: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
        """x / mu - 1 and (x - mu)^2 / mu."""
        mu = mu.clamp_min(SMALLEST_RATE)
        d = (x / mu).sub_(1.0)
        return d, d.square().mul_(mu)

    def log_prob(self, x: Tensor, mu: Tensor, precision: Tensor | float) -> Tensor:
        """log Poisson(s x | s mu) per rating, with Gamma(s x + 1) for the factorial; (n,)."""
        count = precision * x
        rate = precision * mu.clamp_min(SMALLEST_RATE)
        return torch.xlogy(count, rate) - rate - torch.lgamma(count + 1.0)

    def information(self, mu: float, precision: float) -> float:
        """s / mu."""
        return precision / mu

    def precision(self, mu: float, variance: float) -> float:
        """mu / variance."""
        return mu / variance

    def variance(self, mu: Floats, precision: Floats | float) -> Floats:
        """mu / s."""
        return mu / precision


@dataclass(frozen=True)
class Gaussian:
    """x ~ N(mu, 1 / precision)."""

    def residuals(self, x: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
        """x - mu and its square."""
        d = x - mu
        return d, d.square()

    def log_prob(self, x: Tensor, mu: Tensor, precision: Tensor | float) -> Tensor:
        """log N(x | mu, 1 / precision) per rating; (n,)."""
        precision = torch.as_tensor(precision, dtype=mu.dtype)
        return 0.5 * ((precision / (2 * math.pi)).log() - precision * (x - mu).square())

    def information(self, mu: float, precision: float) -> float:
        """The precision."""
        return precision

    def precision(self, mu: float, variance: float) -> float:
        """1 / variance."""
        return 1.0 / variance

    def variance(self, mu: Floats, precision: Floats | float) -> Floats:
        """1 / precision, in mu's shape."""
        noise: Floats = 1.0 / precision + np.zeros_like(mu)
        return noise
