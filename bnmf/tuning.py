"""Settings found by trials: short chains that are compared on the validation ratings alone.

    tune.json      what is searched, over which settings and data
    journal.log    every trial, as optuna's journal: a line of JSON an event, flushed to disk
    best.toml      the best settings so far, fit for ``bnmf train --config``

One process writes the journal, however many run trials, so that nothing needs to be locked; a
journal is text that is only ever appended to, and a kill costs no more than the trials at work.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, get_args

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from bnmf.api import (
    dataset_of,
    job_of,
    local_pools,
    must_be_new,
    next_folder,
    resolve,
    stop_on_signal,
)
from bnmf.config import TrainConfig, combine
from bnmf.pool import Tensors
from bnmf.run import read_json, write_json
from bnmf.training import ChainDiverged, Interrupted, Progress, run
from data_pipeline.dataset import Dataset
from data_pipeline.errors import InputError
from data_pipeline.files import replace_file, replace_folder

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

SEARCHED = (
    "step_size",
    "rank",
    "counts_per_unit",
    "prior_rate_w",
    "prior_rate_h",
    "friction",
    "noise_estimate",
    "diffusion",
)
WIDTH = 4.0  # a setting is searched from a WIDTH-th of its value to WIDTH times it
RUNGS = 20  # times that a trial is compared with those before it, at most

# After a sweep: the sweep, and the RMSE of the running mean once there is one. Whether to go on.
Report = Callable[[int, float | None], bool]


class Trial(NamedTuple):
    """What became of a trial."""

    number: int  # counted from 1
    outcome: str  # finished, pruned, diverged, or refused: no chain can have its settings
    rmse: float | None  # on the validation ratings, of the running mean when it ended
    sweep: int  # at which it ended
    seconds: float
    settings: Mapping[str, float]  # those that are searched


class TrialEvent(NamedTuple):
    """What a listener hears when a search begins and after every trial."""

    trial: Trial | None  # None when it begins
    done: int
    trials: int
    best: Trial | None

    def as_dict(self) -> dict[str, Any]:
        """Flat, for a line of JSON."""
        trial = self.trial._asdict() if self.trial else {}
        best = self.best.rmse if self.best else None
        return {**trial, "done": self.done, "trials": self.trials, "best_rmse": best}


class Tuned(NamedTuple):
    """What a search has found."""

    path: Path
    config: Path  # for `bnmf train --config`
    best: Trial
    first: Trial  # the configuration that the search began from
    outcomes: Mapping[str, int]


class Workplace(Protocol):
    """Where trials run: here, or in another process."""

    def run(self, config: TrainConfig, report: Report) -> float:
        """The validation RMSE of a chain's running mean at its end.

        Raises:
            ChainDiverged: a factor became non-finite.
            InputError: no chain can have these settings.
            Interrupted: ``report`` said so.
        """


class Bench:
    """A workplace in this process: the ratings in memory, but for the test ratings.

    Raises:
        InputError: on opening, a file of the dataset is missing or damaged.
    """

    def __init__(self, dataset: Dataset, config: TrainConfig) -> None:
        self._dataset = dataset
        self._stack = ExitStack()
        (self._pool,) = self._stack.enter_context(local_pools(config, dataset, ("valid",)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, config: TrainConfig, report: Report) -> float:
        """See `Workplace.run`."""
        job = job_of(resolve(config, self._dataset), self._dataset)
        recorder = _Reporter(report)
        run(self._pool, job, recorder, stop=lambda: not recorder.go_on)
        assert recorder.rmse is not None, "the last sweep is always evaluated"
        return recorder.rmse


class _Reporter:
    """A `training.Recorder` that keeps nothing but the newest RMSE."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.go_on = True
        self.rmse: float | None = None

    def metrics(self, sweep: int, values: Mapping[str, float | None]) -> None:
        self.rmse = values.get("valid_rmse_mean", self.rmse)  # not every sweep is evaluated
        self.go_on = self._report(sweep, self.rmse)

    def draw(
        self, sweep: int, weight: float, w: Tensor, h: Tensor, hyper: Mapping[str, Tensor]
    ) -> None:
        pass

    def trace(self, sweep: int, values: Mapping[str, list[float]]) -> None:
        pass

    def checkpoint_due(self) -> bool:
        return False

    def checkpoint(self, progress: Progress, snapshot: Mapping[str, Tensors]) -> None:
        pass


class _Process:
    """A bench in a process of its own."""

    def __init__(self, dataset: Dataset, config: TrainConfig) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        arguments = (theirs, dataset.path, config)
        self._process = spawn.Process(target=_serve, args=arguments, daemon=True)
        # It never hears Ctrl-C: this end says when to stop. The tracker, were it started with the
        # process, would unblock the signal again.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join()

    def wait(self) -> None:
        """Until the ratings are in memory; raises as `Bench`."""
        with _living():
            problem = self._pipe.recv()
        if problem is not None:
            raise problem

    def run(self, config: TrainConfig, report: Report) -> float:
        """See `Workplace.run`."""
        with _living():
            self._pipe.send(config)
            while isinstance(answer := self._pipe.recv(), tuple):
                self._pipe.send(report(*answer))
        if isinstance(answer, Exception):
            raise answer
        return float(answer)


@contextmanager
def _living() -> Iterator[None]:
    """Talk through a pipe that must have somebody at its other end."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise ChildProcessError(
            "a process that ran trials has died (of too little memory?): go on with --resume and "
            "fewer --jobs"
        ) from error


def _serve(pipe: Connection, dataset: Path, config: TrainConfig) -> None:
    """Run the trials that come through the pipe, until nobody is at its other end."""

    def report(sweep: int, rmse: float | None) -> bool:
        pipe.send((sweep, rmse))
        return bool(pipe.recv())

    with suppress(EOFError, ConnectionError):
        try:
            bench = Bench(Dataset(dataset), config)
        except InputError as error:
            pipe.send(error)
            return
        pipe.send(None)
        with bench:
            while True:
                try:
                    pipe.send(bench.run(pipe.recv(), report))
                except (ChainDiverged, InputError, Interrupted) as error:
                    pipe.send(error)


class Plan(BaseModel):
    """What is searched, as tune.json holds it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    settings: dict[str, Any]  # of `TrainConfig`, those that were chosen
    ranges: dict[str, tuple[float, float]]
    first: dict[str, float]  # where in the ranges the search begins
    trials: int
    digest: str  # of the dataset

    def config(self, values: Mapping[str, float]) -> TrainConfig:
        """The configuration of a trial.

        Raises:
            InputError: the values do not go together.
        """
        return combine({**self.settings, **values})


def tune(
    *,
    trials: int | None = None,
    search: str | None = None,
    jobs: int = 1,
    out: str | Path | None = None,
    resume: bool = False,
    config: str | Path | None = None,
    listener: Callable[[TrialEvent], None] | None = None,
    progress: Callable[..., None] | None = None,
    **settings: Any,
) -> Tuned:
    """Search settings whose posterior mean predicts validation ratings best; test ratings rest.

    The tree-structured Parzen estimator proposes (Bergstra et al. 2011), a trial whose running
    mean is worse than the median of those before it is pruned. A trial is one chain, whatever
    ``chains`` the best settings are then trained with. With one job, the same seed makes the same
    trials, straight through or stopped and resumed.

    Args:
        trials: how many there are in the end; 50 by default.
        search: names of `SEARCHED`, with dashes and between commas, each as NAME or
            NAME=LOW:HIGH: on a logarithmic scale, from a quarter of the configuration's own
            value to four times it where no range is given. The step size alone by default.
        jobs: trials at work at once, each in a process of its own. From a script, guard its
            entry by ``if __name__ == "__main__"``.
        out: the folder; by default a new one under ``tunes/``.
        resume: go on with the search in ``out``; of other arguments only ``trials``, ``jobs``
            and ``threads`` may then be given.
        config: a TOML file of settings, which ``settings`` override.
        listener: called when the search begins and after every trial.
        progress: called while data are read.
        settings: the fields of `bnmf.config.TrainConfig`.

    Raises:
        InputError: the data, a setting or the folder is bad (nothing has been written), or no
            trial came to a good end.
        Interrupted: a signal asked to stop; the trials so far are kept.
    """
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise InputError("bnmf tune needs optuna: pip install 'bnmf[tune]'") from error
    for flag, number in (("--trials", trials), ("--jobs", jobs)):
        if number is not None and number < 1:
            raise InputError(f"{flag} {number}: at least 1 is needed")
    if resume:
        folder, plan = _begun(out, trials, {**settings, "config": config, "search": search})
        base = combine({**plan.settings, **settings})
    else:
        if out is not None:
            must_be_new(Path(out))
        base = combine(settings, Path(config) if config else None)
    dataset = dataset_of(base, progress)
    resolved = resolve(base, dataset)
    if not resume:
        plan = _planned(base, resolved, dataset, search or "step-size", trials or 50)
        folder = Path(out) if out is not None else next_folder("tunes", dataset.manifest.name)
    elif dataset.manifest.digest != plan.digest:
        raise InputError(
            f"{folder} was begun on another dataset (digest {plan.digest[:12]}, {base.data} now "
            f"has {dataset.manifest.digest[:12]}): restore the data, or tune anew"
        )
    with stop_on_signal() as asked, ExitStack() as stack:
        threads = max(1, (resolved.threads or 1) // jobs)
        one = resolved.model_copy(update={"chains": 1, "threads": threads})
        benches = _benches(dataset, one, jobs, stack)
        if not resume:
            with replace_folder(folder) as new:
                write_json(new / "tune.json", plan.model_dump())
        elif trials is not None:
            write_json(folder / "tune.json", plan.model_dump())
        ledger = _Ledger(folder, plan, resolved, listener or _silent)
        _work(ledger, benches, asked)
    done = ledger.done()
    if len(done) < plan.trials:
        raise Interrupted(f"stopped after {len(done)} of {plan.trials} trials in {folder}")
    best = _best(done)
    if best is None:
        raise InputError(
            f"none of {len(done)} trials came to finite predictions: search smaller steps, by "
            "--search step-size=LOW:HIGH"
        )
    outcomes = Counter(trial.outcome for trial in done)
    return Tuned(folder, folder / "best.toml", best, done[0], outcomes)


def _silent(event: TrialEvent) -> None:
    """The listener of a caller who does not listen."""


def _begun(
    out: str | Path | None, trials: int | None, given: Mapping[str, Any]
) -> tuple[Path, Plan]:
    """The search to go on with.

    Raises:
        InputError: there is none, or it is damaged, or more is ``given`` than can be changed.
    """
    if out is None:
        raise InputError("--resume needs --out: the folder of the search to go on with")
    for name in given:
        if given[name] is not None and name != "threads":
            raise InputError(
                f"--{name.replace('_', '-')} does not go with --resume, which takes the search's "
                "own settings: leave it out"
            )
    path = Path(out) / "tune.json"
    if not path.is_file():
        raise InputError(f"{out} is not a search to go on with: it has no tune.json")
    try:
        plan = Plan(**read_json(path))
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise InputError(f"{path} is damaged at {where}: restore it or tune anew") from error
    return Path(out), plan if trials is None else plan.model_copy(update={"trials": trials})


def _planned(
    base: TrainConfig, resolved: TrainConfig, dataset: Dataset, search: str, trials: int
) -> Plan:
    """Ranges from words, checked at both ends.

    Raises:
        InputError: there is nothing to compare trials by; a name is unknown, has no place in this
            model, or its range is none; or the first trial's settings make no chain.
    """
    if not dataset.manifest.counts["valid"]:
        raise InputError(
            f"--data {base.data} has no validation ratings, by which trials are compared: split "
            "it by --split TRAIN:VALID:TEST with VALID above 0, such as 0.8:0.1:0.1"
        )
    settings = base.model_dump(exclude_unset=True, exclude={"threads"})
    settings |= {
        name: getattr(resolved, name) for name in ("data", "test_file") if name in settings
    }
    ranges: dict[str, tuple[float, float]] = {}
    first: dict[str, float] = {}
    for word in search.split(","):
        flag, _, given = word.strip().partition("=")
        name = flag.replace("-", "_")
        if name not in SEARCHED:
            known = ", ".join(SEARCHED).replace("_", "-")
            raise InputError(f"--search {flag} is unknown: choose from {known}")
        if name in ranges:
            raise InputError(f"--search {flag} is there twice: keep one")
        own = getattr(resolved, name)
        low, high = _range(word, given) if given else (own / WIDTH, own * WIDTH) if own else (1, 1)
        ranges[name] = low, high = _setting(name, low), _setting(name, high)
        for end in ranges[name]:
            try:
                resolve(combine({**settings, name: end}), dataset)
            except InputError as error:
                raise InputError(f"--search {word.strip()}: {error}") from error
        if not low < high:
            raise InputError(f"--search {flag}: no range is known for it: give {flag}=LOW:HIGH")
        first[name] = min(max(own or low, low), high)
    job_of(resolve(combine({**settings, **first}), dataset), dataset)  # it must make a chain
    return Plan(
        settings=settings,
        ranges=ranges,
        first=first,
        trials=trials,
        digest=dataset.manifest.digest,
    )


def _range(word: str, given: str) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in given.split(":"))
    except ValueError:
        low = high = math.nan
    if not 0 < low < high < math.inf:
        raise InputError(f"--search {word}: a range LOW:HIGH with 0 < LOW < HIGH is needed")
    return low, high


def _setting(name: str, value: float) -> float:
    """As it is tried and written: whole where the setting is, or to four figures."""
    return max(1, round(value)) if _whole(name) else float(f"{value:.4g}")


def _whole(name: str) -> bool:
    return int in get_args(TrainConfig.model_fields[name].annotation)


def _benches(
    dataset: Dataset, config: TrainConfig, jobs: int, stack: ExitStack
) -> list[Bench] | list[_Process]:
    """Where trials run, with the ratings in memory; closed by the stack."""
    if jobs == 1:
        return [stack.enter_context(Bench(dataset, config))]
    processes = [stack.enter_context(_Process(dataset, config)) for _ in range(jobs)]
    for process in processes:
        process.wait()
    return processes


def _work(ledger: _Ledger, benches: Sequence[Workplace], asked: Callable[[], bool]) -> None:
    """Run trials, one at a time on each bench, until there are enough or ``asked`` to stop."""
    failed = threading.Event()

    def stop() -> bool:
        return asked() or failed.is_set()

    def work(bench: Workplace) -> None:
        try:
            while not stop() and (trial := ledger.take()) is not None:
                ledger.run(trial, bench, stop)
        except BaseException as error:
            failed.set()
            if not (asked() and isinstance(error, ChildProcessError)):  # all were told to end
                raise

    # As in a pool, so that a trial has the bits of a run.
    with ThreadPoolExecutor(len(benches), "trial", torch.set_num_threads, (1,)) as threads:
        list(threads.map(work, benches))


class _Ledger:
    """The trials of a search, on disk; safe between threads.

    Raises:
        InputError: on opening, the journal is damaged.
    """

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        resolved: TrainConfig,
        listener: Callable[[TrialEvent], None],
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._folder, self._plan, self._listener = folder, plan, listener
        self._lock = threading.Lock()
        assert resolved.burn_in is not None and resolved.sweeps is not None
        averaged = resolved.sweeps - resolved.burn_in
        step = max(1, averaged // RUNGS)
        # The first means are of few draws, and say more of a draw's noise than of the settings.
        self._rungs = range(resolved.burn_in + averaged // 5 + step, resolved.sweeps, step)
        self._space: dict[str, BaseDistribution] = {
            name: optuna.distributions.IntDistribution(int(low), int(high), log=True)
            if _whole(name)
            else optuna.distributions.FloatDistribution(low, high, log=True)
            for name, (low, high) in plan.ranges.items()
        }
        self._states = optuna.trial.TrialState
        self._study = _study(folder / "journal.log")
        for left in self._study.get_trials(states=(self._states.RUNNING,)):
            self._study.tell(left.number, state=self._states.FAIL)
        self._tell()

    def take(self) -> optuna.Trial | None:
        """The next trial, None when there are enough.

        It depends on the seed, its number and the trials before it, not on how often all stopped.
        """
        from optuna.samplers import TPESampler

        with self._lock:
            known = self._study.get_trials(deepcopy=False)
            taken = {t.user_attrs.get("number") for t in known if t.state != self._states.FAIL}
            number = next(n for n in itertools.count(1) if n not in taken)
            if number > self._plan.trials:
                return None
            if number == 1 and not any(t.state == self._states.WAITING for t in known):
                self._study.enqueue_trial(self._plan.first)
            seed = np.random.SeedSequence([self._plan.settings.get("seed", 0), number])
            self._study.sampler = TPESampler(seed=int(seed.generate_state(1)[0]))
            trial = self._study.ask(self._space)
            trial.set_user_attr("number", number)
            return trial

    def run(self, trial: optuna.Trial, bench: Workplace, stop: Callable[[], bool]) -> None:
        """Run a trial and write down what became of it; one that had to ``stop`` counts as none."""
        began = time.monotonic()
        sweep, rmse, pruned = 0, None, False

        def report(*now: Any) -> bool:
            nonlocal sweep, rmse, pruned
            sweep, rmse = now
            if rmse is not None and sweep in self._rungs:
                with self._lock:
                    trial.report(rmse, sweep)
                    pruned = trial.should_prune()
            return not pruned and not stop()

        settings = {name: _setting(name, value) for name, value in trial.params.items()}
        outcome = "finished"
        try:
            rmse = bench.run(self._plan.config(settings), report)
        except Interrupted:
            outcome = "pruned"
        except ChainDiverged:
            outcome = "diverged"
        except InputError:
            outcome = "refused"
        if outcome == "pruned" and not pruned:  # it was to stop
            with self._lock:
                self._study.tell(trial, state=self._states.FAIL)
            return
        if rmse is None or not math.isfinite(rmse):
            rmse, outcome = None, "refused" if outcome == "refused" else "diverged"
        seconds = round(time.monotonic() - began, 2)
        number = trial.user_attrs["number"]
        self._add(trial, Trial(number, outcome, rmse, sweep, seconds, settings))

    def _add(self, trial: optuna.Trial, ended: Trial) -> None:
        with self._lock:
            trial.set_user_attr("ended", ended._asdict())
            if ended.outcome == "pruned":
                self._study.tell(trial, state=self._states.PRUNED)
            else:
                good = ended.rmse is not None and ended.outcome == "finished"
                self._study.tell(trial, ended.rmse if good else math.inf)
            self._tell(ended)

    def _tell(self, ended: Trial | None = None) -> None:
        done = self.done()
        best = _best(done)
        if best is not None:
            with replace_file(self._folder / "best.toml") as temporary:
                temporary.write_text(self._toml(best, done), encoding="utf-8")
        self._listener(TrialEvent(ended, len(done), self._plan.trials, best))

    def done(self) -> list[Trial]:
        """The trials that have ended, by number."""
        states = (self._states.COMPLETE, self._states.PRUNED)
        known = self._study.get_trials(deepcopy=False, states=states)
        return sorted(Trial(**trial.user_attrs["ended"]) for trial in known)

    def _toml(self, best: Trial, done: list[Trial]) -> str:
        """The best settings as a file for ``--config``, with where they come from."""
        outcomes = Counter(trial.outcome for trial in done)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
        ranges = (f"{name} {low:g} to {high:g}" for name, (low, high) in self._plan.ranges.items())
        lines = [
            f"best of {len(done)} trials by bnmf tune ({counts})",
            f"validation RMSE {best.rmse:.4f} in trial {best.number}",
            f"searched: {', '.join(ranges)}",
        ]
        if done[0].number == 1 and done[0].outcome == "finished":
            lines[1] += f"; {done[0].rmse:.4f} in trial 1, where the search began"
        fields = {"model", "prior", *self._plan.settings, *self._plan.ranges}
        toml = self._plan.config(best.settings).to_toml(fields)
        return "".join(f"# {line}\n" for line in lines) + toml


def _best(done: list[Trial]) -> Trial | None:
    finished = [trial for trial in done if trial.outcome == "finished"]
    return min(finished, key=lambda trial: trial.rmse or math.inf, default=None)


def _study(journal: Path) -> optuna.Study:
    """The study in a journal, a new one if there is none.

    Raises:
        InputError: the journal is damaged.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    # What a killed process or a full disk may have left.
    Path(f"{journal}.lock").unlink(missing_ok=True)
    if journal.exists():
        content = journal.read_bytes()
        os.truncate(journal, content.rfind(b"\n") + 1)
    try:
        return optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(journal))),
            study_name="bnmf tune",
            pruner=optuna.pruners.MedianPruner(),
            load_if_exists=True,
        )
    except (ValueError, LookupError, TypeError, AssertionError) as error:
        raise InputError(f"{journal} is damaged: restore it or tune anew") from error
