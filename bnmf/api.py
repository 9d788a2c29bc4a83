"""From a table of ratings to a finished run: what both Python and the command line call."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import bnmf
from bnmf.blocks import RatingBlock
from bnmf.chains import pooled_averages, run_chains
from bnmf.config import TrainConfig, combine, config_of
from bnmf.diagnostics import Biases, Ratings, fit_biases
from bnmf.evaluation import report_of
from bnmf.models import Curvature
from bnmf.parts import domain_of, model_of, sampler_of
from bnmf.pool import HeldOut, LocalPool, Rows, Watched
from bnmf.posterior import Posterior
from bnmf.predictive import RunningMoments
from bnmf.random import Key, Role, generator
from bnmf.run import Listener, Run, RunRecorder, SweepEvent, write_json
from bnmf.schedules import Schedule
from bnmf.sweep import Rule
from bnmf.training import ChainDiverged, Interrupted, Job
from data_pipeline.dataset import Dataset, Manifest, RatingColumns
from data_pipeline.errors import InputError
from data_pipeline.files import replace_file
from data_pipeline.ingest import prepare
from data_pipeline.sources import NAMES, Columns
from data_pipeline.split import split_from_flags

HELD_OUT = ("valid", "test")
# Settings that a reader wants beside the figures.
SHOWN = ("model", "prior", "rank", "sampler", "step_size", "blocks", "sweeps", "burn_in", "chains")


def train(
    data: str | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    config: str | Path | None = None,
    started: Callable[[Run], None] | None = None,
    listener: Listener | None = None,
    progress: Callable[..., None] | None = None,
    **settings: Any,
) -> Run:
    """Sample the posterior of a factorization of ``data``, and write it to a run folder.

    Args:
        data: a data set's name (`bnmf data list`), a file, folder or glob of ratings, or an
            ingested dataset folder.
        out: the run folder; by default a new one under ``runs/``.
        resume: go on with the run in ``out``, whose configuration is taken.
        config: a TOML file of settings, which ``settings`` override.
        started: called with the run before its first sweep.
        listener: called with a `bnmf.run.SweepEvent` after every sweep of every chain.
        progress: called while data are read.
        settings: the fields of `bnmf.config.TrainConfig`.

    Raises:
        InputError: the data, a setting or the run folder is bad; nothing has been written.
        ChainDiverged: a factor became non-finite; the last checkpoint stays.
        Interrupted: a signal asked to stop; a checkpoint has been written.
    """
    flags = {name: value for name, value in settings.items() if value is not None}
    if data is not None:
        flags["data"] = data
    if resume:
        if out is None:
            raise InputError("--resume needs --out: the folder of the run to go on with")
        return _resume(Path(out), flags, config, started, listener, progress)
    if out is not None:
        must_be_new(Path(out))
    wanted = combine(flags, Path(config) if config else None)
    dataset = dataset_of(wanted, progress)
    chosen = resolve(wanted, dataset)
    folder = Path(out) if out is not None else next_folder("runs", dataset.manifest.name)
    vocabularies = [dataset.path / name for name in ("users.parquet", "items.parquet")]

    def begin() -> Run:
        return Run.create(folder, chosen.to_toml(), _manifest(chosen, dataset), vocabularies)

    return _train(chosen, dataset, started, listener, begin)


def _resume(
    out: Path,
    flags: Mapping[str, Any],
    config: str | Path | None,
    started: Callable[[Run], None] | None,
    listener: Listener | None,
    progress: Callable[..., None] | None,
) -> Run:
    begun = Run(out)
    stored = config_of(out, **{name: flags[name] for name in flags if name == "threads"})
    settings = stored.model_dump(exclude_none=True)
    for name, value in flags.items():
        if name != "threads" and settings.get(name) != _anywhere(name, value):
            raise InputError(
                f"--{name.replace('_', '-')} {value} differs from the run's "
                f"{settings.get(name, 'unset')}: --resume takes the run's own configuration"
            )
    if config is not None:
        raise InputError("--config does not go with --resume, which takes the run's own")
    if begun.status == "finished":
        return begun
    dataset = dataset_of(stored, progress)
    digest = begun.manifest["dataset"]["digest"]
    if dataset.manifest.digest != digest:
        raise InputError(
            f"{out} was trained on another dataset (digest {digest[:12]}, {stored.data} now has "
            f"{dataset.manifest.digest[:12]}): restore the data, or train anew"
        )
    return _train(stored, dataset, started, listener, lambda: begun)


def _train(
    config: TrainConfig,
    dataset: Dataset,
    started: Callable[[Run], None] | None,
    listener: Listener | None,
    begin: Callable[[], Run],
) -> Run:
    """Everything is read before ``begin`` writes: bad data leave no run behind."""
    job = job_of(config, dataset)
    with local_pools(config, dataset) as pools:
        begun = begin()
        if started is not None:
            started(begun)
        return _sample(begun, config, dataset, listener, job, pools)


def _sample(
    begun: Run,
    config: TrainConfig,
    dataset: Dataset,
    listener: Listener | None,
    job: Job,
    pools: list[LocalPool],
) -> Run:
    begun.tidy()
    checkpoints = [chain.load_checkpoint() for chain in begun.chains]
    for chain, checkpoint in zip(begun.chains, checkpoints, strict=True):
        chain.rewind(checkpoint[0].sweep if checkpoint else 0)
    begun.set_status("running")
    tell = _one_at_a_time(listener or _silent)
    recorders = [
        RunRecorder(
            begun,
            chain,
            tell,
            config.checkpoint_seconds,
            sweeps=job.sweeps,
            ratings=_ratings_a_sweep(config, dataset),
        )
        for chain in range(config.chains)
    ]
    try:
        with stop_on_signal() as stop:
            run_chains(pools, job, recorders, checkpoints, stop)
        first = pools[0]
        train = first.train
        biases = fit_biases(lambda: _training_ratings(train, dataset.manifest), _shape(dataset))
        posterior = Posterior.load(begun.path).with_cells_of(
            *_sampled(
                config,
                dataset.manifest.counts["train"],
                FITTED_RATINGS,
                Role.CELLS,
                _training_ratings(train, dataset.manifest),
            )
        )
        begun.save_cells(posterior.cells)
        for part in first.held_out:
            averages = pooled_averages(pools, part)
            _write_predictions(begun, dataset, averages, part, posterior, biases)
    except Interrupted:
        begun.set_status("interrupted")
        raise
    except ChainDiverged:
        begun.set_status("diverged")
        raise
    finally:
        for recorder in recorders:
            recorder.close()
    del posterior  # the report reads its own
    write_json(begun.path / "report.json", report_of(begun))
    for chain in begun.chains:
        chain.prune_checkpoints(keep=1)
    begun.set_status("finished")
    return begun


def _silent(event: SweepEvent) -> None:
    """The listener of a caller who does not listen."""


def _one_at_a_time(listener: Listener) -> Listener:
    """Chains in threads of their own tell one listener."""
    lock = threading.Lock()

    def tell(event: SweepEvent) -> None:
        with lock:
            listener(event)

    return tell


def _ratings_a_sweep(config: TrainConfig, dataset: Dataset) -> int:
    ratings = dataset.manifest.counts["train"]
    if config.batch_size is not None:
        ratings = min(ratings, config.batch_size * dataset.manifest.blocks**2)
    return ratings * config.local_steps


def _evaluate_every(config: TrainConfig, dataset: Dataset) -> int:
    """Sweeps of minibatches take in few ratings: evaluate no more than four times as many."""
    held_out = sum(dataset.manifest.counts[part] for part in HELD_OUT)
    return max(1, math.ceil(held_out / (4 * _ratings_a_sweep(config, dataset))))


def dataset_of(config: TrainConfig, progress: Callable[..., None] | None) -> Dataset:
    """The dataset that a configuration asks for, ingested if it is not yet.

    Raises:
        InputError: the data or a flag of theirs is bad.
    """
    split = split_from_flags(
        config.split, config.folds, config.fold, config.test_file, config.split_by
    )
    return prepare(
        config.data,
        split=split,
        seed=config.seed,
        blocks=config.blocks,
        duplicates=config.duplicates,
        columns=Columns(config.user_col, config.item_col, config.rating_col, config.time_col),
        progress=progress,
    )


def resolve(config: TrainConfig, dataset: Dataset) -> TrainConfig:
    """The configuration with everything filled in that hangs on the data.

    Raises:
        InputError: the data do not suit the model.
    """
    rating = dataset.manifest.rating
    if config.model == "poisson-nmf" and rating["lowest"] < 0:
        raise InputError(
            f"--data {config.data}: poisson-nmf needs ratings of at least 0, the lowest is "
            f"{rating['lowest']:g}: shift or drop them, or take --model gaussian-mf"
        )
    if config.model == "poisson-nmf" and rating["mean"] <= 0:
        raise InputError(f"--data {config.data}: all training ratings are 0, nothing to factorize")
    users, items = _shape(dataset)
    own_rank = None if config.rank == config.preset_rank() else config.rank
    if own_rank is not None and own_rank > min(users, items):
        raise InputError(
            f"--rank {own_rank} exceeds the {users} users or {items} items of {config.data}: "
            f"at most {min(users, items)}"
        )
    update = {name: _anywhere(name, getattr(config, name)) for name in ("data", "test_file")}
    update["blocks"] = dataset.manifest.blocks
    update["duplicates"] = dataset.manifest.duplicates["policy"]
    if config.rank == config.preset_rank():  # nobody asked for it by name
        update["rank"] = min(config.rank, users, items) if config.rank else None
    sized = config.model_copy(update=update).sized(
        dataset.manifest.counts["train"], min(users, items)
    )
    return sized.resolved(rating["mean"])


def _anywhere(name: str, value: Any) -> Any:
    """A setting as it is stored: paths are absolute, as --resume may be called from elsewhere."""
    is_path = name in ("data", "test_file") and value is not None and value not in NAMES
    return str(Path(value).absolute()) if is_path else value


def _manifest(config: TrainConfig, dataset: Dataset) -> dict[str, Any]:
    about = dataset.manifest
    return {
        "status": "running",
        "chains": config.chains,
        "preset": config.preset_in_force(),
        "settings": {name: getattr(config, name) for name in SHOWN},
        "dataset": {
            "name": about.name,
            "digest": about.digest,
            "users": about.users,
            "items": about.items,
            "counts": about.counts,
            "rating": about.rating,
            "split": about.split,
        },
        "versions": {
            "bnmf": bnmf.__version__,
            "python": ".".join(map(str, sys.version_info[:3])),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "pyarrow": pa.__version__,
        },
    }


def must_be_new(out: Path) -> None:
    """Refuse a folder that something is in.

    Raises:
        InputError: it is not empty, or a file.
    """
    if out.exists() and (out.is_file() or any(out.iterdir())):
        raise InputError(f"--out {out} exists: add --resume to go on with it, or name another")


def next_folder(parent: str, name: str) -> Path:
    """The first of ``parent``/``name``-001 and so on that is not there yet.

    Raises:
        InputError: all are.
    """
    for number in range(1, 1_000_000):
        folder = Path(parent) / f"{name}-{number:03d}"
        if not folder.exists():
            return folder
    raise InputError(f"{parent}/ is full: name a folder with --out")


def job_of(config: TrainConfig, dataset: Dataset) -> Job:
    """The chain of a resolved configuration on a dataset.

    Raises:
        InputError: as `domain_of` and `sampler_of`.
    """
    assert config.step_size and config.burn_in is not None and config.thin and config.sweeps
    domain = domain_of(config)
    rule = Rule(
        model=model_of(config, dataset.manifest.rating),
        domain=domain,
        sampler=sampler_of(config, domain),
        blocks=dataset.manifest.blocks,
        step_size=config.step_size,
        temperature=config.temperature,
        batch_size=config.batch_size,
        local_steps=config.local_steps,
        row_curvature=Curvature(1.0, 0.0),
        col_curvature=Curvature(1.0, 0.0),
        resample_every=config.resample_every,
    )
    return Job(
        rule=rule,
        schedule=Schedule.parse(config.schedule),
        sweeps=config.sweeps,
        burn_in=config.burn_in,
        thin=config.thin,
        row_scaling=config.row_scaling,
        evaluate_every=_evaluate_every(config, dataset),
        step_weighted=config.average == "step-weighted",
        seed=config.seed,
        mean_rating=dataset.manifest.rating["mean"],
    )


@contextmanager
def local_pools(
    config: TrainConfig, dataset: Dataset, parts: Sequence[str] = HELD_OUT
) -> Iterator[list[LocalPool]]:
    """A pool a chain, over the same ratings, and the held-out ``parts``; they share the threads.

    Other parts are not read.
    """
    about = dataset.manifest
    blocks = range(about.blocks)
    rows, cols = about.row_offsets, about.col_offsets

    def local(b: int, c: int, x: RatingColumns) -> tuple[Any, Any, Any, tuple[int, int]]:
        shape = (rows[b + 1] - rows[b], cols[c + 1] - cols[c])
        return x.user - rows[b], x.item - cols[c], x.rating, shape

    def counts(of: np.ndarray, offsets: list[int]) -> list[torch.Tensor]:
        all_counts = torch.from_numpy(of.astype(np.float32)).unsqueeze(1)
        return [all_counts[offsets[b] : offsets[b + 1]] for b in blocks]

    train = [
        [RatingBlock.from_arrays(*local(b, c, x)) for c, x in enumerate(dataset.part("train", b))]
        for b in blocks
    ]
    pool = partial(
        LocalPool,
        train=train,
        held_out={
            part: [
                [
                    piece
                    for c, x in enumerate(dataset.part(part, b))
                    for piece in HeldOut.pieces(*local(b, c, x), c)
                ]
                for b in blocks
            ]
            for part in parts
            if about.counts[part]
        },
        row_counts=counts(dataset.users().counts, rows),
        col_counts=counts(dataset.items().counts, cols),
        threads=max(1, (config.threads or 1) // config.chains),
        watched=_watched(config, dataset, train, parts),
    )
    with ExitStack() as stack:
        yield [stack.enter_context(closing(pool())) for _ in range(config.chains)]


# Training ratings that the traced log-likelihood is of, and predictions that are traced.
WATCHED_RATINGS, WATCHED_PREDICTIONS = 512, 64
# Training ratings that the cells of the scale are fitted to.
FITTED_RATINGS = 16_384


def _watched(
    config: TrainConfig, dataset: Dataset, train: list[list[RatingBlock]], parts: Sequence[str]
) -> dict[str, Watched]:
    """The same samples for every chain; predictions of held-out pairs where there are any."""
    about = dataset.manifest

    def sample(part: str, size: int) -> Watched:
        chunks = _training_ratings(train, about) if part == "train" else _ratings(dataset, part)
        users, items, ratings = _sampled(config, about.counts[part], size, Role.WATCH, chunks)
        return Watched(
            Rows.of(users, about.row_offsets),
            Rows.of(items, about.col_offsets),
            torch.from_numpy(ratings.astype(np.float32)),
        )

    part = next((part for part in reversed(parts) if about.counts[part]), "train")
    return {
        "log_prob": sample("train", WATCHED_RATINGS),
        "predictions": sample(part, WATCHED_PREDICTIONS),
    }


def _sampled(
    config: TrainConfig, count: int, size: int, role: Role, chunks: Iterable[Ratings]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Users, items and ratings of ``size`` of the ``count`` ratings in ``chunks``, at most."""
    noise = np.random.default_rng(generator(Key(config.seed), role).initial_seed())
    picks = np.sort(noise.choice(count, min(size, count), False))
    found, done = [], 0
    for chunk in chunks:
        here = picks[(done <= picks) & (picks < done + len(chunk[0]))] - done
        found.append([column[here] for column in chunk])
        done += len(chunk[0])
    users, items, ratings = map(np.concatenate, zip(*found, strict=True))
    return users.astype(np.int64), items.astype(np.int64), ratings.astype(np.float64)


def _ratings(dataset: Dataset, part: str) -> Iterator[Ratings]:
    """Block by block."""
    for b in range(dataset.manifest.blocks):
        for x in dataset.part(part, b):
            yield x.user, x.item, x.rating


def _shape(dataset: Dataset) -> tuple[int, int]:
    return dataset.manifest.users, dataset.manifest.items


def _training_ratings(train: list[list[RatingBlock]], about: Manifest) -> Iterator[Ratings]:
    """From memory: a baseline goes through them many times."""
    for b, line in enumerate(train):
        for c, block in enumerate(line):
            lengths = block.by_row.starts.diff().numpy()
            users = about.row_offsets[b] + np.repeat(np.arange(len(lengths)), lengths)
            items = about.col_offsets[c] + block.by_row.index.numpy()
            yield users, items, block.ratings.numpy()


def _write_predictions(
    begun: Run,
    dataset: Dataset,
    pooled: list[list[RunningMoments]],
    part: str,
    posterior: Posterior,
    biases: Biases,
) -> None:
    """The held-out ratings in the dataset's order, each with its predictive mean and spread."""
    users, items = dataset.users().ids, dataset.items().ids
    path = begun.path / "predictions" / f"{part}.parquet"
    path.parent.mkdir(exist_ok=True)
    with replace_file(path) as temporary:
        writer: pq.ParquetWriter | None = None
        for b, averages in enumerate(pooled):
            means = torch.cat([average.mean for average in averages]).numpy()
            variances = torch.cat([average.variance for average in averages]).numpy()
            done = 0
            for held in dataset.part(part, b):
                here = slice(done, done + len(held.rating))
                mean, epistemic, done = means[here], variances[here], here.stop
                columns = {
                    "user": users.take(pa.array(held.user)),
                    "item": items.take(pa.array(held.item)),
                    "rating": held.rating,
                    "mean": mean,
                    "std": np.sqrt(
                        epistemic
                        + posterior.noise(
                            held.user.astype(np.int64), held.item.astype(np.int64), mean
                        )
                    ),
                    "std_epistemic": np.sqrt(epistemic),
                    "biases": biases.predict(held.user, held.item),
                }
                if held.truth is not None:
                    columns["truth"] = held.truth
                table = pa.table(columns)
                if writer is None:
                    writer = pq.ParquetWriter(temporary, table.schema, write_page_checksum=True)
                writer.write_table(table)
        assert writer is not None
        writer.close()


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Ctrl-C or SIGTERM asks for a checkpoint; a second one ends the process as usual."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(number: int, frame: object) -> None:
        asked.set()
        signal.signal(number, before[number])

    before: dict[int, Any] = {
        number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
