"""Kept draws of a run: load them, and score any pair of user and item."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnmf.cells import Cells
from bnmf.config import config_of
from bnmf.likelihoods import RatingScale
from bnmf.models import Model, Side, levels
from bnmf.parts import model_of
from bnmf.run import Run
from data_pipeline.errors import InputError
from data_pipeline.vocabulary import Vocabulary

Floats = NDArray[np.float64]

# Pairs scored at once: gathered factors of a few MB stay in cache.
_GATHERED_NUMBERS = 1_000_000


class Prediction(NamedTuple):
    """Of n pairs, in rating units; each (n,)."""

    mean: Floats
    std: Floats  # of the rating: both parts of the spread
    std_epistemic: Floats  # of the rate over draws: what more data would shrink
    known_user: NDArray[np.bool_]  # the user has training ratings
    known_item: NDArray[np.bool_]


@dataclass(frozen=True)
class Posterior:
    """S weighted draws of W (I, K) and H (J, K), of all chains, with the raw ids of their rows.

    The mean over draws of w.h is not the product of the means: every pair is scored under
    every draw. A row without training ratings is integrated over its prior in closed form.
    """

    users: Vocabulary
    items: Vocabulary
    model: Model  # with the hyper-parameters of the S draws
    cells: Cells  # of the ratings, for probabilities
    w: Tensor  # (I, S, width) float32, the designs
    h: Tensor  # (J, S, width) float32
    weights: Tensor  # (S,) float64, sum 1

    @staticmethod
    def load(path: str | Path) -> Posterior:
        """The posterior of a run folder.

        Raises:
            InputError: not a run, no draws yet, or a damaged draw; names the file.
        """
        run = Run(Path(path))
        entries = [(chain, entry) for chain in run.chains for entry in chain.draws()]
        if not entries:
            raise InputError(
                f"{run.path} has no draws yet: let `bnmf train` finish, or --resume it"
            )
        dataset = run.manifest["dataset"]
        users = Vocabulary.read(run.path / "users.parquet")
        items = Vocabulary.read(run.path / "items.parquet")
        model = model_of(config_of(run.path), dataset["rating"])
        width = model.design(torch.zeros(1, model.columns), Side.W).shape[1]
        w = torch.empty(len(users), len(entries), width)
        h = torch.empty(len(items), len(entries), width)
        states = []
        for s, (chain, entry) in enumerate(entries):
            draw = chain.load_draw(entry)
            draw_w, draw_h = draw.pop("W", w), draw.pop("H", h)
            own = model.state()
            if (
                draw_w.shape != w[:, s].shape
                or draw_h.shape != h[:, s].shape
                or {name: x.shape for name, x in draw.items()}
                != {name: x.shape for name, x in own.items()}
            ):
                raise InputError(
                    f"{chain.path / 'draws' / entry['file']} is not a draw of this run"
                )
            w[:, s], h[:, s] = draw_w, draw_h
            states.append(draw)
        model = model.with_state(
            {name: torch.stack([state[name] for state in states]) for name in model.state()}
        )
        weights = torch.tensor([entry["weight"] for _, entry in entries], dtype=torch.float64)
        scale = RatingScale(*(dataset["rating"][name] for name in ("min", "max", "step")))
        cells = run.cells() or Cells.rounding(scale)
        return Posterior(users, items, model, cells, w, h, weights / weights.sum())

    def score(self, users: Any, items: Any) -> tuple[Floats, Floats]:
        """(mean, std) of the rating of n pairs, in rating units, each (n,).

        ``users`` and ``items`` are n raw ids each (a sequence, numpy or Arrow array); ids that
        the run does not know get the prior's prediction, as `predict` marks.

        Raises:
            ValueError: as many users as items are needed.
        """
        prediction = self.predict(users, items)
        return prediction.mean, prediction.std

    def predict(self, users: Any, items: Any) -> Prediction:
        """As `score`, with both parts of the spread and which ids are known."""
        u, i = self.users.lookup(users), self.items.lookup(items)
        if len(u) != len(i):
            raise ValueError(f"as many users as items are needed, got {len(u)} and {len(i)}")
        known_user, known_item = _known(self.users, u), _known(self.items, i)
        mean, epistemic, noise = np.empty(len(u)), np.empty(len(u)), np.empty(len(u))
        chunk = self.pairs_at_once
        weights = self.weights.numpy()
        for start in range(0, len(u), chunk):
            part = slice(start, start + chunk)
            mu, extra, level = self._rates(u[part], i[part], known_user[part], known_item[part])
            mean[part] = mu @ weights
            away = mu - mean[part, None]
            epistemic[part] = (away * away + extra) @ weights
            noise[part] = self.model.variance(mu, level) @ weights
        return Prediction(
            mean, np.sqrt(epistemic + noise), np.sqrt(epistemic), known_user, known_item
        )

    @property
    def pairs_at_once(self) -> int:
        """How many pairs are worth scoring together."""
        return max(1, _GATHERED_NUMBERS // (self.w.shape[1] * self.w.shape[2]))

    def rates(
        self, users: NDArray[np.int64], items: NDArray[np.int64]
    ) -> tuple[Floats, Floats | None]:
        """The rate of n pairs of known indices under every draw, and its level; (n, S) each."""
        w, h = self.w[torch.from_numpy(users)], self.h[torch.from_numpy(items)]
        return (w * h).sum(2).double().numpy(), self._levels(w, h)

    def noise(self, users: NDArray[np.int64], items: NDArray[np.int64], mu: Floats) -> Floats:
        """The likelihood's variance (n,), averaged over draws, of known pairs at rates (n,)."""
        noise = np.empty(len(mu))
        for start in range(0, len(mu), self.pairs_at_once):
            part = slice(start, start + self.pairs_at_once)
            w = self.w[torch.from_numpy(users[part])]
            h = self.h[torch.from_numpy(items[part])]
            rates = np.broadcast_to(mu[part, None], w.shape[:2])
            noise[part] = self.model.variance(rates, self._levels(w, h)) @ self.weights.numpy()
        return noise

    def distribution(
        self, users: NDArray[np.int64], items: NDArray[np.int64], rating: Floats
    ) -> tuple[Floats, Floats]:
        """The predictive distribution function at both edges of each rating's cell; (n,) each.

        Of n ratings of known pairs, averaged over draws.
        """
        lower, upper = np.empty(len(rating)), np.empty(len(rating))
        weights = self.weights.numpy()

        def of(start: int) -> None:
            part = slice(start, start + self.pairs_at_once)
            mu, level = self.rates(users[part], items[part])
            std = np.sqrt(self.model.variance(mu, level))
            below, above = self.cells.distribution(rating[part], mu, std)
            lower[part], upper[part] = below @ weights, above @ weights

        # distribution functions take most of the time, and leave Python alone
        with ThreadPoolExecutor() as threads:
            list(threads.map(of, range(0, len(rating), self.pairs_at_once)))
        return lower, upper

    def with_cells_of(
        self, users: NDArray[np.int64], items: NDArray[np.int64], rating: Floats
    ) -> Posterior:
        """With cells fitted to n ratings that the chain was trained on, under a few of the draws.

        Each counts alike: any draw's rates have the ratings' noise around them.
        """
        draws = np.unique(np.linspace(0, len(self.weights) - 1, 8).round().astype(int))
        few = replace(self, w=self.w[:, draws], h=self.h[:, draws], weights=self.weights[draws])
        model = few.model.with_state({name: x[draws] for name, x in few.model.state().items()})
        mu, level = few.rates(users, items)
        std = np.sqrt(model.variance(mu, level))
        repeated = np.repeat(rating, len(draws))
        cells = Cells.rounding(self.cells.scale).fitted(repeated, mu.ravel(), std.ravel())
        return replace(self, cells=cells)

    def _levels(self, w: Tensor, h: Tensor) -> Floats | None:
        """Of designs (n, S, width): (n, S), where the model has them."""
        return levels(w, h).double().numpy() if self.model.levels else None

    def _rates(
        self,
        users: NDArray[np.int64],
        items: NDArray[np.int64],
        known_user: NDArray[np.bool_],
        known_item: NDArray[np.bool_],
    ) -> tuple[Floats, Floats, Floats | None]:
        """Mean and variance, given each draw, of the rate, and its level: (n, S) each.

        For independent w, h: Var[sum_k w_k h_k] = sum_k E[w_k^2] E[h_k^2] - (E[w_k] E[h_k])^2,
        0 where both are known.
        """
        mu, level = self.rates(np.where(known_user, users, 0), np.where(known_item, items, 0))
        variance = np.zeros_like(mu)
        cold = ~(known_user & known_item)
        if cold.any():
            model = self.model
            w, w2 = _moments(self.w, users[cold], known_user[cold], model.prior_moments(Side.W))
            h, h2 = _moments(self.h, items[cold], known_item[cold], model.prior_moments(Side.H))
            mu[cold] = (w * h).sum(2).numpy()
            variance[cold] = (w2 * h2 - (w * h).square()).sum(2).numpy()
            if level is not None:
                level[cold] = levels(w, h).numpy()
        return mu, variance, level


def _known(vocabulary: Vocabulary, index: NDArray[np.int64]) -> NDArray[np.bool_]:
    known: NDArray[np.bool_] = (index >= 0) & (vocabulary.counts[np.maximum(index, 0)] > 0)
    return known


def _moments(
    factor: Tensor,
    index: NDArray[np.int64],
    known: NDArray[np.bool_],
    prior: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """E and E of the square of designs under each draw, (n, S, width); the prior's if unknown."""
    unknown = torch.from_numpy(~known)
    first = factor[torch.from_numpy(np.where(known, index, 0))].double()
    second = first.square()
    first[unknown], second[unknown] = prior
    return first, second
