"""CoRV against the mirroring trick on real ratings: Yokoi et al., section 6.1, figure 3.

The paper's set is ml-10m, with 10,000 iterations at R = 20 and 20,000 at R = 50, and step sizes by
100 trials of TPE. Here it is ml-1m, a tenth, with 5,000 iterations at both ranks (67 times the
training ratings, against the paper's 13 and 27), and TPE has 8 trials of 2,000 iterations, of which
it leaves those behind the median after 1,000: earlier, large steps look worse than they are. That
takes about 25 minutes of one core. Trials are kept in the user's cache, so that an interrupted run
goes on with them.

A step size is judged by validation ratings, a contender by test ratings in a chain with other
random numbers than those of its trials; all final chains have theirs in common. What the paper
calls a moving average is taken as the mean over every twentieth draw after 200 iterations: with
large steps the first predictions are such as a mean would not forget.

The claim fails. At R = 20 a step eps of CoRV moves theta by eps f'^2, and f'^2 is an eighth on
average: the best softplus step is eight times mirrored SGLD's, which makes the two one step in theta,
and their curves alike. At R = 50, where the prior expects ratings of 50, all chains get worse the
further they go, and the best step is one that does not go far: LOG.md has the figures.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from bnmf.api import job_of, local_pools
from bnmf.config import PRESETS, TrainConfig, combine
from bnmf.experiments.base import Claim, Experiment, Result
from bnmf.pool import LocalPool, Tensors
from bnmf.training import ChainDiverged, Job, Progress, run
from data_pipeline.dataset import Dataset
from data_pipeline.files import cache_dir
from data_pipeline.ingest import prepare
from data_pipeline.split import Split

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STRIDE = 20  # iterations from one draw to the next
STEPS = (1e-5, 2e-2)  # from too slow for all to non-finite for most
FIRST_STEPS = (1e-3, 3e-4, 3e-3)  # of the first trials; the second is finite for all
TUNED_ON, JUDGED_ON = "valid", "test"
MARKS = (0.1, 0.3, 1.0)  # of the final chains, where mirrored SGLD's errors are the levels

CONTENDERS: dict[str, dict[str, str]] = {
    "SGLD, mirror": {"sampler": "sgld", "domain": "mirror"},
    "SGRLD, mirror": {"sampler": "sgrld", "domain": "mirror"},
    "CoRV, exp": {"transform": "exp"},
    "CoRV, softplus": {"transform": "softplus"},
    "CoRV, icll": {"transform": "icll"},
}
MIRRORED = tuple(CONTENDERS)[:2]
BASELINE = MIRRORED[0]


class Size(NamedTuple):
    """How much is done."""

    data: str
    ranks: tuple[int, ...]
    batch_size: int
    burn_in: int  # of every chain, in iterations
    iterations: int  # of a final chain
    horizon: int  # of a trial, in iterations
    trials: int


FULL = Size("ml-1m", (20, 50), 10_000, 200, 5_000, 2_000, 8)
QUICK = Size("demo", (5,), 1_000, 20, 400, 100, 3)


# -- one chain -------------------------------------------------------------------------------


@dataclass
class Curve:
    """A recorder of how a chain's errors on held-out ratings fall, after burn-in."""

    part: str
    watch: Callable[[int, float], None] = lambda iteration, rmse: None
    iterations: list[int] = field(default_factory=list)
    of_mean: list[float] = field(default_factory=list)  # RMSE of the mean over draws so far
    of_draw: list[float] = field(default_factory=list)  # and of the draw alone
    clock: list[float] = field(default_factory=list)  # CPU seconds, in burn-in too

    def metrics(self, sweep: int, values: Mapping[str, float | None]) -> None:
        """See `bnmf.training.Recorder`."""
        self.clock.append(time.process_time())
        mean, draw = values[f"{self.part}_rmse_mean"], values[f"{self.part}_rmse_draw"]
        if mean is not None and draw is not None:
            self.iterations.append(sweep * STRIDE)
            self.of_mean.append(mean)
            self.of_draw.append(draw)
            self.watch(self.iterations[-1], mean)

    def draw(
        self, sweep: int, weight: float, w: Tensor, h: Tensor, hyper: Mapping[str, Tensor]
    ) -> None:
        """Draws are not kept."""

    def trace(self, sweep: int, values: Mapping[str, list[float]]) -> None:
        """Convergence is not judged."""

    def checkpoint_due(self) -> bool:
        """Never."""
        return False

    def checkpoint(self, progress: Progress, snapshot: Mapping[str, Tensors]) -> None:
        """Nor are states."""

    @property
    def seconds(self) -> float:
        """CPU seconds an iteration, evaluation and all, whatever else the machine did."""
        return float(np.median(np.diff(self.clock))) / STRIDE

    def reached(self, rmse: float) -> float:
        """The first iteration at which the mean's error is no larger; nan if it never is."""
        below = np.flatnonzero(np.array(self.of_mean) <= rmse)
        return float(self.iterations[below[0]]) if len(below) else math.nan

    def after(self, iteration: int) -> float:
        """The mean's error then; nan before burn-in and where the chain did not get."""
        return dict(zip(self.iterations, self.of_mean, strict=True)).get(iteration, math.nan)


@dataclass(frozen=True)
class Setting:
    """A contender's chains of one rank."""

    size: Size
    rank: int
    contender: str
    seed: int

    def job(self, dataset: Dataset, step_size: float, iterations: int, chain: int) -> Job:
        """The paper's model and algorithm, as the preset has them."""
        of_mine = {
            "data": self.size.data,
            "rank": self.rank,
            "batch_size": self.size.batch_size,
            "step_size": step_size,
            "local_steps": STRIDE,
            "sweeps": iterations // STRIDE,
            "burn_in": self.size.burn_in // STRIDE,
            "seed": self.seed,
        }
        config = TrainConfig(**PRESETS["corv-paper"] | of_mine | CONTENDERS[self.contender])
        job = job_of(config.resolved(dataset.manifest.rating["mean"]), dataset)
        return replace(job, chain=chain)

    def tune(self, dataset: Dataset, pool: LocalPool) -> float:
        """The step size with the smallest validation error, by TPE; goes on with earlier trials."""
        import optuna
        from optuna.storages.journal import JournalFileBackend
        from optuna.trial import TrialState

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        size = self.size

        def objective(trial: optuna.Trial, chain: int) -> float:
            def watch(iteration: int, rmse: float) -> None:
                trial.report(rmse, iteration)
                if trial.should_prune():
                    raise optuna.TrialPruned

            curve = Curve(TUNED_ON, watch)
            step_size = trial.suggest_float("step_size", *STEPS, log=True)
            try:
                run(pool, self.job(dataset, step_size, size.horizon, chain), curve)
            except ChainDiverged as error:
                raise optuna.TrialPruned from error
            return curve.of_mean[-1]

        folder = cache_dir() / "experiments"
        folder.mkdir(parents=True, exist_ok=True)
        journal = JournalFileBackend(str(folder / "corv-vs-mirror.log"))
        study = optuna.create_study(
            study_name=f"{dataset.manifest.digest} {self}",
            storage=optuna.storages.JournalStorage(journal),
            pruner=optuna.pruners.MedianPruner(len(FIRST_STEPS), n_warmup_steps=size.horizon // 2),
            load_if_exists=True,
        )
        ended = (TrialState.COMPLETE, TrialState.PRUNED)
        while (done := sum(trial.state in ended for trial in study.trials)) < size.trials:
            for step_size in FIRST_STEPS[done : done + 1]:
                study.enqueue_trial({"step_size": step_size})
            # a seed a trial: the same steps however often it was interrupted
            words = np.random.SeedSequence((self.seed, self.rank, done)).generate_state(1)
            study.sampler = optuna.samplers.TPESampler(
                n_startup_trials=len(FIRST_STEPS), seed=int(words[0])
            )
            study.optimize(partial(objective, chain=1 + done), n_trials=1)
        return float(study.best_params["step_size"])


class Final(NamedTuple):
    """A contender at its step size."""

    setting: Setting
    step_size: float
    curve: Curve


Finals = Mapping[int, Mapping[str, Final]]  # by rank and contender


@contextmanager
def pool_of(dataset: Dataset) -> Iterator[LocalPool]:
    """The dataset's one block, on one thread; all chains use it one after the other."""
    config = combine({"data": dataset.manifest.name, "threads": 1})
    with local_pools(config, dataset) as (pool,):
        yield pool


# -- the figure ------------------------------------------------------------------------------


def figure_3(quick: bool, seed: int) -> Result:
    """Every contender at every rank, tuned, then run."""
    size = QUICK if quick else FULL
    dataset = prepare(size.data, split=Split((0.75, 0.125, 0.125)), seed=seed, blocks=1)
    finals: dict[int, dict[str, Final]] = {rank: {} for rank in size.ranks}
    with pool_of(dataset) as pool:
        for rank, contender in product(size.ranks, CONTENDERS):
            setting = Setting(size, rank, contender, seed)
            step_size = setting.tune(dataset, pool)
            curve = Curve(JUDGED_ON)
            with suppress(ChainDiverged):  # then the curve ends there
                run(pool, setting.job(dataset, step_size, size.iterations, 0), curve)
            finals[rank][contender] = Final(setting, step_size, curve)
    claims = [claim for by_name in finals.values() for claim in _claims(by_name)]
    claims.append(_cost(finals))
    return Result(_table(finals), claims, partial(_draw, finals))


def _table(finals: Finals) -> dict[str, list[str | int | float]]:
    rows = [final for by_name in finals.values() for final in by_name.values()]
    marks = _marks(rows[0].setting.size)
    levels = [
        [finals[row.setting.rank][BASELINE].curve.after(mark) for mark in marks] for row in rows
    ]
    table: dict[str, list[str | int | float]] = {
        "R": [row.setting.rank for row in rows],
        "contender": [row.setting.contender for row in rows],
        "step size": [row.step_size for row in rows],
        "ms an iteration": [1e3 * row.curve.seconds for row in rows],
    }
    for mark in marks:
        table[f"RMSE after {mark:,}"] = [row.curve.after(mark) for row in rows]
    table["RMSE of the last draw"] = [(row.curve.of_draw or [math.nan])[-1] for row in rows]
    for at, mark in enumerate(marks):
        needed = [row.curve.reached(level[at]) for row, level in zip(rows, levels, strict=True)]
        table[f"iterations to SGLD's at {mark:,}"] = list(needed)
        table[f"seconds to SGLD's at {mark:,}"] = [
            n * row.curve.seconds for n, row in zip(needed, rows, strict=True)
        ]
    return table


def _marks(size: Size) -> list[int]:
    return [round(share * size.iterations) for share in MARKS]


def _claims(by_name: Mapping[str, Final]) -> list[Claim]:
    """Of one rank."""
    size, rank = by_name[BASELINE].setting.size, by_name[BASELINE].setting.rank
    end = size.iterations
    last = {name: final.curve.after(end) for name, final in by_name.items()}
    level = last[BASELINE]
    needed = {name: by_name[name].curve.reached(level) for name in ("CoRV, softplus", "CoRV, icll")}
    times = "; ".join(
        f"{name} {_after(n)}{'' if n <= end else f' and ends at {last[name]:.4f}'}"
        for name, n in needed.items()
    )
    corv, mirrored = (
        {name: rmse for name, rmse in last.items() if (name in MIRRORED) == of_mirror}
        for of_mirror in (False, True)
    )
    return [
        Claim(
            f"R = {rank}: CoRV (softplus, icll) needs about a third of mirrored SGLD's iterations",
            f"test RMSE {level:.4f}, mirrored SGLD's after {end:,}: {times}",
            all(n <= 0.4 * end for n in needed.values()),
        ),
        Claim(
            f"R = {rank}: CoRV ends ahead of both mirrored samplers",
            f"test RMSE after {end:,}: "
            + ", ".join(f"{name} {rmse:.4f}" for name, rmse in last.items()),
            all(of_corv < other for of_corv, other in product(corv.values(), mirrored.values())),
        ),
    ]


def _after(iterations: float) -> str:
    return "never" if math.isnan(iterations) else f"after {iterations:,.0f}"


def _cost(finals: Finals) -> Claim:
    over = {
        (rank, name): final.curve.seconds / by_name[BASELINE].curve.seconds - 1.0
        for rank, by_name in finals.items()
        for name, final in by_name.items()
        if name not in MIRRORED
    }
    return Claim(
        "an iteration of CoRV takes at most 10% longer than one of mirrored SGLD",
        ", ".join(f"{name} {share:+.0%} at R = {rank}" for (rank, name), share in over.items()),
        max(over.values()) <= 0.1,
    )


def _draw(finals: Finals, figure: Figure) -> None:
    axes = figure.subplots(2, len(finals), sharex=True, squeeze=False)
    for (rank, by_name), (upper, lower) in zip(finals.items(), axes.T, strict=True):
        for name, final in by_name.items():
            style = {"ls": "--" if name in MIRRORED else "-", "lw": 1.2}
            label = f"{name}, ε = {final.step_size:.1g}"
            upper.plot(final.curve.iterations, final.curve.of_mean, label=label, **style)
            lower.plot(final.curve.iterations, final.curve.of_draw, **style)
        _fit(upper, by_name, lambda curve: curve.of_mean)
        _fit(lower, by_name, lambda curve: curve.of_draw)
        upper.set_title(f"R = {rank}", fontsize="medium")
        upper.legend(fontsize="x-small")
        lower.set_xlabel("iterations")
    axes[0, 0].set_ylabel("test RMSE of the mean")
    axes[1, 0].set_ylabel("test RMSE of a draw")
    figure.suptitle("CoRV (solid) and the mirroring trick (dashed) on ratings")


def _fit(
    axes: Axes, by_name: Mapping[str, Final], errors: Callable[[Curve], Sequence[float]]
) -> None:
    """To what comes after the first mark: what is before may be many times as large."""
    begin = _marks(by_name[BASELINE].setting.size)[0]
    shown = [
        error
        for final in by_name.values()
        for iteration, error in zip(final.curve.iterations, errors(final.curve), strict=True)
        if iteration >= begin
    ]
    if shown:
        low, high = min(shown), max(shown)
        margin = 0.05 * (high - low)
        axes.set_ylim(low - margin, high + margin)


EXPERIMENTS = (
    Experiment(
        "corv-vs-mirror",
        "Yokoi et al. 2019, figure 3",
        "Test RMSE of non-negative matrix factorization under CoRV and the mirroring trick (ml-1m).",
        figure_3,
    ),
)
