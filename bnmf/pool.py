"""Pools of block workers: what the training loop asks of one, and the in-process one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnmf.blocks import Pattern, RatingBlock, column_block
from bnmf.gradients import rates
from bnmf.implicit import Implicit
from bnmf.models import BlockStatistics, Side
from bnmf.predictive import RunningMoments
from bnmf.random import Key, Noise, Role, generator
from bnmf.sweep import FactorBlock, Rule, update_block

T = TypeVar("T")
Tensors = dict[str, Tensor]


# Held-out ratings that one thread evaluates at a time; fixed, so that no sum depends on threads.
PIECE = 32_768


class HeldOut(NamedTuple):
    """Held-out ratings of some neighbouring rows of one block, n of them in CSR order."""

    pattern: Pattern
    ratings: Tensor  # (n,) float32
    first_row: int  # of the block
    col_block: int

    @staticmethod
    def pieces(
        rows: NDArray[np.integer],
        cols: NDArray[np.integer],
        ratings: NDArray[np.floating],
        shape: tuple[int, int],
        col_block: int,
        most: int = PIECE,
    ) -> list[HeldOut]:
        """A block's held-out ratings in pieces of whole rows, about ``most`` each, in order.

        ``rows``, ``cols`` and ``ratings`` are as in `RatingBlock.from_arrays`, which also says
        what is raised.
        """
        whole = Pattern.from_arrays(rows, cols, shape)
        starts, values = whole.starts.numpy(), torch.from_numpy(ratings.astype(np.float32))
        ends = np.searchsorted(starts, np.arange(0, max(len(values), 1), most)[1:])
        cuts = np.unique([0, *ends, shape[0]])
        made = []
        for first, last in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            part = slice(int(starts[first]), int(starts[last]))
            pattern = Pattern(
                whole.starts[first : last + 1] - starts[first], whole.index[part], shape[1]
            )
            made.append(HeldOut(pattern, values[part], first, col_block))
        return made


class Rows(NamedTuple):
    """Some rows of a factor that lies in blocks."""

    local: list[Tensor]  # (n_b,) int64 each: those of block b
    order: Tensor  # (n,) int64: where each asked row stands among them

    @staticmethod
    def of(index: NDArray[np.integer], offsets: Sequence[int]) -> Rows:
        """Rows ``index`` (n,) of a factor whose block b holds offsets[b] to offsets[b + 1]."""
        by_block = np.argsort(index, kind="stable")
        found = torch.from_numpy(index[by_block].astype(np.int64))
        local = [found[(a <= found) & (found < b)] - a for a, b in pairwise(offsets)]
        return Rows(local, torch.from_numpy(np.argsort(by_block)))

    def __call__(self, blocks: Sequence[Tensor]) -> Tensor:
        """(n, width)."""
        return torch.cat([x[own] for x, own in zip(blocks, self.local, strict=True)])[self.order]


class Watched(NamedTuple):
    """A sample of n rated pairs, whose rates are traced."""

    users: Rows
    items: Rows
    ratings: Tensor  # (n,) float32


@dataclass(frozen=True, slots=True)
class Errors:
    """Sums over held-out ratings."""

    count: int
    square_draw: float  # of (rating - this draw's prediction)^2
    square_mean: float  # of (rating - running mean)^2; 0 before the first update


_Place = tuple[str, int, HeldOut, RunningMoments]  # part, row block, piece, its averages


class Pool(Protocol):
    """Workers that own the blocks of one chain."""

    def start(self, rule: Rule, key: Key, mean: float) -> None:
        """First factors, near sqrt(mean / K), drawn under ``key``."""

    def sweep(self, rule: Rule, key: Key, order: Sequence[int]) -> None:
        """Visit every block once, strata in ``order``."""

    def statistics(self) -> tuple[list[BlockStatistics], list[BlockStatistics]]:
        """Of W's blocks and of H's, in block order."""

    def evaluate(self, weight: float | None) -> dict[str, list[Errors]]:
        """Errors a piece of each held-out part; with a weight the draw enters the averages."""

    def watch(self) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        """Of each watched sample its ratings (n,) and its pairs' designs, (n, width) each."""

    def factors(self) -> tuple[Tensor, Tensor]:
        """This draw's designs: W (I, width), H (J, width)."""

    def averages(self, part: str) -> list[list[RunningMoments]]:
        """Running averages of each row block's pieces."""

    def snapshot(self) -> dict[str, Tensors]:
        """All state, a named dictionary a block: independent of threads and workers.

        The tensors are the live ones: write or copy them before the next sweep.
        """

    def restore(self, rule: Rule, snapshot: Mapping[str, Tensors]) -> None:
        """Go on from a `snapshot`, whose tensors the pool then owns."""


@dataclass
class LocalPool:
    """All blocks in this process, one thread a block; the blocks of a stratum share nothing.

    Every tensor operation runs on one thread, so that no sum depends on the thread count.
    """

    train: list[list[RatingBlock]]  # [row block][column block]
    held_out: dict[str, list[list[HeldOut]]]  # [row block][piece]
    row_counts: list[Tensor]  # each (n_b, 1) float32: training ratings of each row
    col_counts: list[Tensor]
    threads: int
    watched: dict[str, Watched] = field(default_factory=dict)
    _rows: list[FactorBlock] = field(default_factory=list)
    _cols: list[FactorBlock] = field(default_factory=list)
    _w: list[Tensor] = field(default_factory=list)
    _h: list[Tensor] = field(default_factory=list)
    _averages: dict[str, list[list[RunningMoments]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        self._executor = ThreadPoolExecutor(
            min(self.threads, len(self.train)), "block", torch.set_num_threads, (1,)
        )

    def close(self) -> None:
        """End the threads and give torch back its own."""
        self._executor.shutdown()
        torch.set_num_threads(self._threads_before)

    def start(self, rule: Rule, key: Key, mean: float) -> None:
        """See `Pool.start`."""

        def first(counts: Tensor, block: int, side: Side) -> FactorBlock:
            noise = Noise(generator(key._replace(block=block), Role.START, side))
            position = rule.domain.position(rule.model.start(counts, side, mean, noise))
            state = rule.sampler.init(position, rule.temperature, noise)
            beside = None
            if rule.model.implicit:
                beside = Implicit.start(state.position, rule.sampler, rule.temperature, noise)
            return FactorBlock(state, counts, beside)

        self._rows = [first(counts, b, Side.W) for b, counts in enumerate(self.row_counts)]
        self._cols = [first(counts, b, Side.H) for b, counts in enumerate(self.col_counts)]
        self._averages = {
            part: [[RunningMoments(len(held.ratings)) for held in row] for row in grid]
            for part, grid in self.held_out.items()
        }
        self._refresh(rule)

    def sweep(self, rule: Rule, key: Key, order: Sequence[int]) -> None:
        """See `Pool.sweep`."""
        blocks = len(self.train)
        for stratum in order:

            def visit(b: int, stratum: int = stratum) -> None:
                c = column_block(b, stratum, blocks)
                self._rows[b], self._cols[c] = update_block(
                    self._rows[b],
                    self._cols[c],
                    self.train[b][c],
                    key._replace(stratum=stratum, block=b),
                    rule,
                    first=stratum == order[0],
                    last=stratum == order[-1],
                )

            self._each(visit, range(blocks))
        self._refresh(rule)

    def statistics(self) -> tuple[list[BlockStatistics], list[BlockStatistics]]:
        """See `Pool.statistics`."""
        rule = self._rule

        def of(block: FactorBlock) -> BlockStatistics:
            theta = rule.domain.factor(block.state.position)
            weights = block.implicit.weights.position if block.implicit is not None else None
            found = rule.model.statistics(theta, block.counts, block.centre, weights)
            slope = rule.domain.mean_square_slope(block.state.position)
            return found._replace(square_slope=found.square_slope * slope)

        return self._each(of, self._rows), self._each(of, self._cols)

    def evaluate(self, weight: float | None) -> dict[str, list[Errors]]:
        """See `Pool.evaluate`."""

        def of(b: int, held: HeldOut, average: RunningMoments) -> Errors:
            rows = slice(held.first_row, held.first_row + held.pattern.shape[0])
            mu = rates(held.pattern, self._w[b][rows], self._h[held.col_block])
            if weight is not None:
                average.update(mu, weight)
            square_mean = _square(held.ratings - average.mean) if average.weight > 0 else 0.0
            return Errors(len(mu), _square(held.ratings - mu), square_mean)

        def work(task: list[_Place]) -> list[Errors]:
            return [of(b, held, average) for _, b, held, average in task]

        errors: dict[str, list[Errors]] = {part: [] for part in self.held_out}
        tasks = self._tasks()
        for task, found in zip(tasks, self._each(work, tasks), strict=True):
            for place, one in zip(task, found, strict=True):
                errors[place[0]].append(one)
        return errors

    def _tasks(self) -> list[list[_Place]]:
        """All pieces in order, small ones together: a thread's hand-over costs as much as they."""
        tasks: list[list[_Place]] = []
        size = PIECE
        for part, grid in self.held_out.items():
            for b, pieces in enumerate(grid):
                for held, average in zip(pieces, self._averages[part][b], strict=True):
                    if size >= PIECE:
                        tasks.append([])
                        size = 0
                    tasks[-1].append((part, b, held, average))
                    size += len(held.ratings)
        return tasks

    def watch(self) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        """See `Pool.watch`."""
        return {
            name: (sample.ratings, sample.users(self._w), sample.items(self._h))
            for name, sample in self.watched.items()
        }

    def factors(self) -> tuple[Tensor, Tensor]:
        """See `Pool.factors`."""
        return torch.cat(self._w), torch.cat(self._h)

    def averages(self, part: str) -> list[list[RunningMoments]]:
        """See `Pool.averages`."""
        return self._averages[part]

    def snapshot(self) -> dict[str, Tensors]:
        """See `Pool.snapshot`."""
        files = {f"row-{b:03d}": block.tensors() for b, block in enumerate(self._rows)}
        files |= {f"col-{c:03d}": block.tensors() for c, block in enumerate(self._cols)}
        for part, grid in self._averages.items():
            for b, row in enumerate(grid):
                files[f"{part}-{b:03d}"] = {
                    f"{n:03d}.{name}": tensor
                    for n, average in enumerate(row)
                    for name, tensor in average.tensors().items()
                }
        return files

    def restore(self, rule: Rule, snapshot: Mapping[str, Tensors]) -> None:
        """See `Pool.restore`."""
        self._rows = [
            FactorBlock.from_tensors(snapshot[f"row-{b:03d}"], counts)
            for b, counts in enumerate(self.row_counts)
        ]
        self._cols = [
            FactorBlock.from_tensors(snapshot[f"col-{c:03d}"], counts)
            for c, counts in enumerate(self.col_counts)
        ]
        names = RunningMoments(0).tensors()
        self._averages = {
            part: [
                [
                    RunningMoments.from_tensors(
                        {name: snapshot[f"{part}-{b:03d}"][f"{n:03d}.{name}"] for name in names}
                    )
                    for n in range(len(row))
                ]
                for b, row in enumerate(grid)
            ]
            for part, grid in self.held_out.items()
        }
        self._refresh(rule)

    def _refresh(self, rule: Rule) -> None:
        """The designs of the new state."""

        def design(side: Side) -> Callable[[FactorBlock], Tensor]:
            return lambda b: rule.model.design(rule.domain.factor(b.state.position), side)

        self._rule = rule
        self._w = self._each(design(Side.W), self._rows)
        self._h = self._each(design(Side.H), self._cols)

    def _each(self, work: Callable[..., T], items: Iterable[object]) -> list[T]:
        return list(self._executor.map(work, items))


def _square(error: Tensor) -> float:
    norm = torch.linalg.vector_norm(error, dtype=torch.float64)
    return float(norm * norm)
