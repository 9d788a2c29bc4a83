"""Bayesian predictive averages."""

from __future__ import annotations

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
    def from_tensors(tensors: dict[str, Tensor]) -> RunningMoments:
        """The inverse of `tensors`."""
        moments = RunningMoments(0)
        moments.weight = tensors["weight"].item()
        moments.mean, moments._square = tensors["mean"], tensors["square"]
        return moments
