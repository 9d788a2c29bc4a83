"""A small chain: 42 users x 30 items of a rank-2 model, on a grid of any size, kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnmf.blocks import RatingBlock
from bnmf.domains import CoRV, Domain, Ito, Mirror
from bnmf.hierarchical import HierarchicalMF
from bnmf.likelihoods import Gaussian, Poisson
from bnmf.models import Curvature, PoissonNMF
from bnmf.pool import HeldOut, LocalPool, Rows, Tensors, Watched
from bnmf.samplers import Sampler
from bnmf.samplers.kinetics import MonomialGamma
from bnmf.samplers.sghmc import SGHMC
from bnmf.samplers.sgld import SGLD
from bnmf.samplers.sgmgt import SGMGT
from bnmf.samplers.sgnht import SGNHT
from bnmf.samplers.sgrhmc import SGRHMC
from bnmf.samplers.sgrld import SGRLD
from bnmf.schedules import Schedule
from bnmf.sweep import Rule
from bnmf.training import Job, Progress
from bnmf.transforms import HALF_LINE, Identity

USERS, ITEMS, RANK = 42, 30, 3
SOFTPLUS = CoRV(HALF_LINE["softplus"])

_rng = np.random.default_rng(7)
_rate = _rng.gamma(2.0, 0.7, (USERS, 2)) @ _rng.gamma(2.0, 0.7, (2, ITEMS))
_seen = _rng.random((USERS, ITEMS))
RATINGS = np.clip(np.round(_rng.poisson(4 * _rate) / 2) / 2, 0.5, 5.0)
TRAIN, TEST = _seen < 0.4, _seen > 0.9
MEAN_RATING = float(RATINGS[TRAIN].mean())
WATCHED_RATINGS, WATCHED_PREDICTIONS = slice(5, 200, 3), slice(None, None, -20)


@contextmanager
def pool_of(
    blocks: int, threads: int = 1, most: int = 1000, held_out: bool = True
) -> Iterator[LocalPool]:
    """The ratings on a grid of ``blocks`` x ``blocks``, groups of unlike size.

    ``most`` is how many held-out ratings a piece has, about.
    """
    rows = np.array_split(np.arange(USERS), blocks)
    cols = np.array_split(np.arange(ITEMS), blocks)

    def block(mask: np.ndarray, r: np.ndarray, c: np.ndarray) -> tuple[Any, ...]:
        i, j = np.nonzero(mask[np.ix_(r, c)])
        return i, j, RATINGS[r[i], c[j]], (len(r), len(c))

    train = [[RatingBlock.from_arrays(*block(TRAIN, r, c)) for c in cols] for r in rows]
    test = [
        [piece for n, c in enumerate(cols) for piece in HeldOut.pieces(*block(TEST, r, c), n, most)]
        for r in rows
    ]

    def counts(groups: list[np.ndarray], axis: int) -> list[Tensor]:
        n = TRAIN.sum(axis=axis)
        return [torch.from_numpy(n[group].astype(np.float32))[:, None] for group in groups]

    def watched(mask: np.ndarray, of: slice) -> Watched:
        i, j = (x[of] for x in np.nonzero(mask))
        places = (Rows.of(x, np.cumsum([0, *map(len, g)])) for x, g in ((i, rows), (j, cols)))
        return Watched(*places, torch.from_numpy(RATINGS[i, j].astype(np.float32)))

    pool = LocalPool(
        train,
        {"test": test} if held_out else {},
        counts(rows, 1),
        counts(cols, 0),
        threads,
        {
            "log_prob": watched(TRAIN, WATCHED_RATINGS),
            "predictions": watched(TEST, WATCHED_PREDICTIONS),
        },
    )
    try:
        yield pool
    finally:
        pool.close()


def job_of(
    blocks: int = 1,
    sampler: Sampler | None = None,
    domain: Domain = SOFTPLUS,
    step_size: float = 0.1,
    temperature: float = 1.0,
    batch_size: int | None = None,
    local_steps: int = 1,
    **changes: Any,
) -> Job:
    """Nine sweeps, four of them burn-in, every draw kept; ``changes`` are `Job`'s."""
    model = changes.pop("model", PoissonNMF(RANK, 2.0, 1.0, 0.5))
    sampler = sampler if sampler is not None else SGNHT(0.5)
    rule = Rule(model, domain, sampler, blocks, step_size, temperature, batch_size, local_steps,
                Curvature(1.0, 0.0), Curvature(1.0, 0.0))  # fmt: skip
    job = Job(rule, Schedule(), 9, 4, 1, True, 3, MEAN_RATING)
    return replace(job, **changes)


def sgld_of(blocks: int = 1, **changes: Any) -> Job:
    """The same with SGLD on minibatches, two steps a visit."""
    return job_of(blocks, **{"sampler": SGLD(), "batch_size": 40, "local_steps": 2} | changes)


@dataclass(frozen=True)
class Soon(HierarchicalMF):
    """Draws its hyper-parameters after two sweeps."""

    warm = 2


def hierarchical_of(poisson: bool = False, non_negative: bool | None = None) -> Soon:
    """Of the small set, Poisson and non-negative or Gaussian and real."""
    link = SOFTPLUS.transform if non_negative or (non_negative is None and poisson) else Identity()
    made = HierarchicalMF.first(
        RANK,
        Poisson() if poisson else Gaussian(),
        link,
        biases=not poisson,
        implicit=True,
        mean=MEAN_RATING,
        unit=1.1,
    )
    return Soon(**{name: getattr(made, name) for name in made.__dataclass_fields__})


GAUSSIAN, POISSON = hierarchical_of(), hierarchical_of(poisson=True)


def hierarchical(blocks: int, model: HierarchicalMF, **changes: Any) -> Job:
    """Nine sweeps of a model whose rows have sampled priors and centres."""
    return job_of(blocks, domain=CoRV(Identity()), model=model, **changes)


# every sampler and domain that the command line can ask for
FAMILY: dict[str, Callable[[int], Job]] = {
    "sgnht": job_of,
    "sgld, minibatches": sgld_of,
    "sgld, decreasing": lambda g: sgld_of(g, schedule=Schedule(0.6, 2.0)),
    "ito": lambda g: job_of(
        g, SGRLD(Ito(SOFTPLUS.transform).metric), Ito(SOFTPLUS.transform), 1e-3
    ),
    "sgrld": lambda g: job_of(g, SGRLD(SOFTPLUS.metric), step_size=0.03),
    "sgrld, mirror": lambda g: job_of(g, SGRLD(Mirror().metric), Mirror(), 0.03),
    "sghmc": lambda g: resampled(job_of(g, SGHMC(0.5, 0.1))),
    "sgrhmc": lambda g: job_of(g, SGRHMC(SOFTPLUS.metric, 0.5)),
    "sgrhmc, mirror": lambda g: job_of(g, SGRHMC(Mirror().metric, 0.5), Mirror(), 0.03),
    "sgmgt": lambda g: resampled(job_of(g, SGMGT(0.5))),
    "sgmgt, mirror": lambda g: job_of(g, SGMGT(0.5), Mirror(), 0.05, local_steps=2),
    "gaussian": lambda g: hierarchical(g, GAUSSIAN),
    "gaussian, minibatches": lambda g: hierarchical(g, GAUSSIAN, batch_size=40, local_steps=2),
    "gaussian, sgmgt": lambda g: hierarchical(g, GAUSSIAN, sampler=SGMGT(0.5)),
    "poisson": lambda g: hierarchical(g, POISSON),
    "sgmgt-d": lambda g: job_of(
        g, SGMGT(0.5, MonomialGamma(2), 0.1, 0.1, integrator="euler"), batch_size=40
    ),
}


def resampled(job: Job) -> Job:
    """The same with momenta drawn afresh every third sweep."""
    return replace(job, rule=replace(job.rule, resample_every=3))


def copied(snapshot: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """Tensors of a snapshot live on in the chain; what is kept must be a copy."""
    return {
        file: {name: tensor.clone() for name, tensor in tensors.items()}
        for file, tensors in snapshot.items()
    }


@dataclass
class Memory:
    """A recorder that keeps everything."""

    every: bool = False  # a checkpoint after each sweep
    lines: dict[int, dict[str, float | None]] = field(default_factory=dict)
    draws: dict[int, tuple[float, Tensor, Tensor]] = field(default_factory=dict)
    traces: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    checkpoints: list[tuple[Progress, dict[str, Tensors]]] = field(default_factory=list)

    def metrics(self, sweep: int, values: Mapping[str, float | None]) -> None:
        assert sweep not in self.lines
        self.lines[sweep] = dict(values)

    def draw(
        self, sweep: int, weight: float, w: Tensor, h: Tensor, hyper: Mapping[str, Tensor]
    ) -> None:
        assert sweep not in self.draws
        self.draws[sweep] = weight, w, h  # not copied: a draw must not change any more

    def trace(self, sweep: int, values: Mapping[str, list[float]]) -> None:
        assert sweep not in self.traces
        self.traces[sweep] = dict(values)

    def checkpoint_due(self) -> bool:
        return self.every

    def checkpoint(self, progress: Progress, snapshot: Mapping[str, Tensors]) -> None:
        self.checkpoints.append((progress, copied(snapshot)))


def same_draws(one: Memory, other: Memory) -> bool:
    """Bit for bit."""
    return one.draws.keys() == other.draws.keys() and all(
        one.draws[t][0] == other.draws[t][0]
        and torch.equal(one.draws[t][1], other.draws[t][1])
        and torch.equal(one.draws[t][2], other.draws[t][2])
        for t in one.draws
    )


def same_snapshots(one: Mapping[str, Tensors], other: Mapping[str, Tensors]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(
        one[file].keys() == other[file].keys()
        and all(torch.equal(one[file][name], other[file][name]) for name in one[file])
        for file in one
    )


def same_progress(one: Progress, other: Progress) -> bool:
    """Bit for bit."""
    return replace(one, hyper={}) == replace(other, hyper={}) and same_snapshots(
        {"model": dict(one.hyper)}, {"model": dict(other.hyper)}
    )
