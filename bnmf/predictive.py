"""Bayesian predictive averages."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class RunningMoments:
    """Weighted running mean and variance of n predictions (Karagiannis, eq. 3.8; West 1979)."""

    def __init__(self, n: int) -> None:
        self.weight = 0.0
        self.mean = torch.zeros(n, dtype=torch.float64)
        self._square = torch.zeros(n, dtype=torch.float64)

    def update(self, values: Tensor, weight: float) -> None:
        """Take in one draw's predictions (n,), weight > 0."""
        share = weight / (self.weight + weight)
        away = values - self.mean  # float64, whatever the values are
        self.mean.add_(away, alpha=share)
        self._square.addcmul_(away, away, value=self.weight * share)
        self.weight += weight

    @property
    def variance(self) -> Tensor:
        """Weighted variance over draws (n,), 0 before the first."""
        return self._square / max(self.weight, 1e-300)

    def tensors(self) -> dict[str, Tensor]:
        """All state, for a checkpoint."""
        return {
            "weight": torch.tensor([self.weight], dtype=torch.float64),
            "mean": self.mean,
            "square": self._square,
        }

    @staticmethod
    def pooled(parts: Iterable[RunningMoments]) -> RunningMoments:
        """As if one had taken in every draw of ``parts``; the same n, at least one of them."""
        first, *others = parts
        pooled = RunningMoments.from_tensors({k: x.clone() for k, x in first.tensors().items()})
        for other in others:
            weight = pooled.weight + other.weight
            share = other.weight / max(weight, 1e-300)
            away = other.mean - pooled.mean
            pooled.mean.add_(away, alpha=share)
            pooled._square.add_(other._square)
            pooled._square.addcmul_(away, away, value=pooled.weight * share)
            pooled.weight = weight
        return pooled

    @staticmethod
    def from_tensors(tensors: dict[str, Tensor]) -> RunningMoments:
        """The inverse of `tensors`."""
        moments = RunningMoments(0)
        moments.weight = tensors["weight"].item()
        moments.mean, moments._square = tensors["mean"], tensors["square"]
        return moments
