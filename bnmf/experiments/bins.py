"""Exact probabilities of bins, and how far chains' histograms are from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from bnmf.experiments.base import Vector


class Bins:
    """A grid over all of R^d whose probabilities under exp(-U / tau) are known by quadrature.

    The outermost bins are open. A chain's position that is not a number is in the last bin.
    """

    def __init__(
        self,
        potential: Callable[[Vector], Vector],
        edges: Sequence[Vector],
        temperature: float = 1.0,
        nodes: int = 12,
    ) -> None:
        """``potential`` (m, d) -> (m,); the outermost edges are where the density has vanished."""
        x, w = np.polynomial.legendre.leggauss(nodes)
        at, weights = [], []
        for edge in edges:
            half = 0.5 * np.diff(edge)
            at.append((edge[:-1, None] + half[:, None] * (x + 1.0)).ravel())
            weights.append((half[:, None] * w).ravel())
        grid = np.stack(np.meshgrid(*at, indexing="ij"), -1)
        level = potential(grid.reshape(-1, len(at))).reshape(grid.shape[:-1])
        mass = np.exp((level.min() - level) / temperature)
        for axis, weight in enumerate(weights):
            mass = np.add.reduceat(
                mass * np.expand_dims(weight, [i for i in range(len(at)) if i != axis]),
                np.arange(0, len(weight), nodes),
                axis,
            )
        self.edges = [np.asarray(edge, np.float64) for edge in edges]
        self.shape = mass.shape
        self.truth: Vector = (mass / mass.sum()).ravel()
        self._inner = [torch.from_numpy(edge[1:-1].copy()) for edge in self.edges]

    def place(self, theta: Tensor) -> Tensor:
        """The bin of each row of theta (n, d), (n,)."""
        flat = torch.zeros(len(theta), dtype=torch.int64)
        for axis, inner in enumerate(self._inner):
            flat = flat * self.shape[axis] + torch.bucketize(theta[:, axis].contiguous(), inner)
        return flat

    def counts(self, chains: int) -> Tensor:
        """Empty histograms, one a row, for `add`."""
        return torch.zeros(chains, len(self.truth), dtype=torch.float64)

    def add(self, counts: Tensor, theta: Tensor) -> None:
        """Count theta (n, d), the row of each chain, in place."""
        at = self.place(theta)[:, None]
        counts.scatter_add_(1, at, torch.ones_like(at, dtype=counts.dtype))

    def variation(self, counts: Tensor) -> Vector:
        """Total variation from the truth of each row's histogram."""
        share = (counts / counts.sum(1, keepdim=True)).numpy()
        distance: Vector = 0.5 * np.abs(share - self.truth).sum(1)
        return distance

    def divergence(self, counts: Tensor) -> Vector:
        """Kullback and Leibler's sum q log(q / p), q a row's histogram: finite if bins are empty."""
        share = (counts / counts.sum(1, keepdim=True)).numpy()
        ratio = np.where(share > 0.0, share, 1.0) / np.maximum(self.truth, 1e-300)
        kl: Vector = np.where(share > 0.0, share * np.log(ratio), 0.0).sum(1)
        return kl
