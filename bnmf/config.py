"""The configuration of a training run: flags, files and presets become one flat, checked table."""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bnmf.schedules import Schedule
from data_pipeline.errors import InputError

PRESETS: dict[str, dict[str, Any]] = {
    # what predicts best, on validation ratings (experiments/LOG.md)
    "accurate": {"model": "gaussian-mf"},
    # a look: most of the way in a tenth of the time
    "quick": {"model": "gaussian-mf", "rank": 20, "sweeps": 100, "burn_in": 30},
    # Yokoi et al., section 6.1 and appendix C: plain CoRV-SGLD, minibatches from the whole set.
    "corv-paper": {
        "model": "poisson-nmf",
        "prior": "exponential",
        "sampler": "sgld",
        "domain": "corv",
        "rank": 20,
        "blocks": 1,
        "batch_size": 10_000,
        "counts_per_unit": 1.0,
        "prior_rate_w": 1.0,
        "prior_rate_h": 1.0,
        "row_scaling": False,
        "sweeps": 10_000,
        "burn_in": 1_000,
        "step_size": 5e-3,
    },
    # Ding et al., section 5.2 (ml-1m), by their algorithm 2: eta = h^2 = 6e-7, a = A h = 0.1.
    # Noise levels of users and items are ours, their one precision is not to be had.
    "sgnht-paper": {
        "model": "gaussian-mf",
        "sampler": "sgnht",
        "implicit": False,
        "rank": 10,
        "blocks": 1,
        "batch_size": 400,
        "row_scaling": False,
        "step_size": 7.75e-4,
        "friction": 129.0,
        "sweeps": 100_000,
        "burn_in": 20_000,
    },
}

MOMENTA = ("sghmc", "sgnht", "sgrhmc", "sgmgt", "sgmgt-d")

# What goes with some samplers or models alone: its default, the choice it hangs on, and which.
# A default of ... is computed from the data or other settings.
OPTIONS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "friction": (0.5, "sampler", MOMENTA),
    "noise_estimate": (0.0, "sampler", ("sghmc", "sgrhmc")),
    "monomial": (1, "sampler", ("sgmgt", "sgmgt-d")),
    "integrator": ("aboba", "sampler", ("sgmgt", "sgmgt-d")),
    "diffusion": (0.1, "sampler", ("sgmgt-d",)),
    "resample_every": (None, "sampler", MOMENTA),
    "transform": (..., "domain", ("corv", "ito")),
    "counts_per_unit": (4.0, "prior", ("exponential",)),
    "prior_rate_w": (..., "prior", ("exponential",)),
    "prior_rate_h": (..., "prior", ("exponential",)),
    "implicit": (True, "prior", ("hierarchical",)),
    "non_negative": (..., "prior", ("hierarchical",)),
}

# By sampler, then by sampler and domain or model; chosen on validation ratings (experiments/LOG.md).
STEP_SIZES: dict[str, float] = {
    "sgld": 0.04,
    "sgrld": 0.03,
    "sghmc": 0.1,
    "sgnht": 0.1,
    "sgrhmc": 0.1,
    "sgmgt": 0.2,
    "sgmgt-d": 0.2,
    "sgld mirror": 0.03,
    "sgld ito": 1e-4,
    "sgnht gaussian-mf": 0.15,
}

# By model: rank and sweeps that are good for training ratings up to a number; on validation
# ratings (experiments/LOG.md). The largest stand for what a laptop does in minutes.
SIZES: dict[str, list[tuple[float, int, int]]] = {
    "poisson-nmf": [(3e4, 6, 1500), (3e5, 10, 1500), (3e6, 20, 800), (math.inf, 32, 400)],
    "gaussian-mf": [(3e4, 6, 1500), (3e5, 32, 1000), (3e6, 32, 500), (math.inf, 64, 300)],
}


class TrainConfig(BaseModel):
    """All settings of a run. None means: chosen from the data when the run starts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: str = Field(min_length=1)
    user_col: str | None = None
    item_col: str | None = None
    rating_col: str | None = None
    time_col: str | None = None
    duplicates: Literal["last", "error", "mean"] | None = None
    split: str | None = None
    split_by: Literal["time"] | None = None
    folds: int | None = None
    fold: int | None = None
    test_file: str | None = None

    preset: str | None = None
    model: Literal["poisson-nmf", "gaussian-mf"] = "poisson-nmf"
    rank: int | None = Field(None, ge=1, le=4096)
    prior: Literal["hierarchical", "exponential"] = "hierarchical"
    non_negative: bool | None = None
    implicit: bool | None = None
    counts_per_unit: float | None = Field(None, gt=0, allow_inf_nan=False)
    prior_rate_w: float | None = Field(None, gt=0, allow_inf_nan=False)
    prior_rate_h: float | None = Field(None, gt=0, allow_inf_nan=False)

    sampler: Literal["sgnht", "sgld", "sgrld", "sghmc", "sgrhmc", "sgmgt", "sgmgt-d"] = "sgnht"
    domain: Literal["corv", "mirror", "ito"] = "corv"
    transform: str | None = None
    step_size: float | None = Field(None, gt=0, allow_inf_nan=False)
    schedule: str = "constant"
    temperature: float = Field(1.0, ge=0, allow_inf_nan=False)
    average: Literal["step-weighted", "plain"] = "step-weighted"
    friction: float | None = Field(None, ge=0, allow_inf_nan=False)
    noise_estimate: float | None = Field(None, ge=0, allow_inf_nan=False)
    monomial: Literal[1, 2] | None = None
    integrator: Literal["aboba", "euler"] | None = None
    diffusion: float | None = Field(None, ge=0, allow_inf_nan=False)
    resample_every: int | None = Field(None, ge=1)
    row_scaling: bool = True

    blocks: int | None = Field(None, ge=1)
    batch_size: int | None = Field(None, ge=1)
    local_steps: int = Field(1, ge=1)
    sweeps: int | None = Field(None, ge=1)
    burn_in: int | None = Field(None, ge=0)
    thin: int | None = Field(None, ge=1)
    chains: int = Field(1, ge=1)
    seed: int = Field(0, ge=0, lt=2**63)
    threads: int | None = Field(None, ge=1)
    checkpoint_seconds: float = Field(30.0, ge=0)

    @model_validator(mode="after")
    def _combinations(self) -> TrainConfig:
        Schedule.parse(self.schedule)
        if self.domain == "ito" and self.sampler != "sgld":
            raise ValueError(
                f"--domain ito is for --sampler sgld: the Itô formula transforms plain Langevin "
                f"dynamics; run {self.sampler} with --domain corv"
            )
        if self.prior == "exponential" and self.model != "poisson-nmf":
            raise ValueError("--prior exponential is for --model poisson-nmf: leave it out")
        if self.prior == "hierarchical" and self.domain != "corv":
            raise ValueError(
                f"--domain {self.domain} needs --prior exponential: the hierarchical prior is that "
                "of the proxies, which --domain corv samples"
            )
        if self.model == "poisson-nmf" and self.non_negative is False:
            raise ValueError("--no-non-negative is for --model gaussian-mf: rates are above 0")
        for option, (_, choice, takers) in OPTIONS.items():
            if getattr(self, option) is not None and getattr(self, choice) not in takers:
                raise ValueError(
                    f"--{option.replace('_', '-')} is for --{choice} {', '.join(takers)}: "
                    f"{getattr(self, choice)} has none; leave it out"
                )
        if self.sweeps is None:
            return self
        if self.burn_in is not None and self.burn_in >= self.sweeps:
            raise ValueError(
                f"--burn-in {self.burn_in} leaves none of the {self.sweeps} sweeps: "
                "lower it or raise --sweeps"
            )
        burn_in = self.sweeps // 4 if self.burn_in is None else self.burn_in
        if self.thin is not None and self.thin > self.sweeps - burn_in:
            raise ValueError(
                f"--thin {self.thin} keeps none of the {self.sweeps - burn_in} sweeps after "
                "burn-in: lower it or raise --sweeps"
            )
        return self

    def sized(self, ratings: int, most: int) -> TrainConfig:
        """With a rank, ``most`` at most, and sweeps for a number of training ratings.

        Raises:
            InputError: a burn-in or thinning that leaves none of the sweeps.
        """
        of = "poisson-nmf" if self.non_negative else self.model  # parts are parts
        rank, sweeps = next((k, t) for up_to, k, t in SIZES[of] if ratings <= up_to)
        own = self.model_dump(exclude_none=True)
        try:
            return TrainConfig(**{"rank": min(rank, most), "sweeps": sweeps} | own)
        except ValidationError as error:
            raise InputError(_first_problem(error, {}, own, None)) from error

    def resolved(self, mean_rating: float) -> TrainConfig:
        """Every None of the model, the sampler and the chain filled in; of a `sized` one.

        The prior rates make the prior's mean prediction K / (rate_w rate_h) the data's mean.
        About 32 draws are kept.
        """
        assert self.rank is not None and self.sweeps is not None
        rate = math.sqrt(self.rank / mean_rating) if mean_rating > 0 else None
        burn_in = self.sweeps // 4 if self.burn_in is None else self.burn_in
        step_size = STEP_SIZES[self.sampler]
        for beside in (str(self.domain), str(self.model)):
            step_size = STEP_SIZES.get(f"{self.sampler} {beside}", step_size)
        non_negative = self.non_negative or self.model == "poisson-nmf"
        chosen = {
            "prior_rate_w": rate,
            "prior_rate_h": rate,
            "burn_in": burn_in,
            "thin": max(1, (self.sweeps - burn_in) // 32),
            "step_size": step_size,
            "transform": "softplus" if non_negative else "identity",
            "non_negative": non_negative,
            "threads": _cores(),
        }
        chosen |= {name: default for name, (default, *_) in OPTIONS.items() if default is not ...}
        for option, (_, choice, takers) in OPTIONS.items():
            if getattr(self, choice) not in takers:
                chosen[option] = None
        return self.model_copy(
            update={name: value for name, value in chosen.items() if getattr(self, name) is None}
        )

    def preset_rank(self) -> int | None:
        """What the preset has, if it has one."""
        return PRESETS[self.preset].get("rank") if self.preset else None

    def preset_in_force(self) -> dict[str, Any] | None:
        """The preset's name, what it set, and what was chosen over it; None without a preset."""
        if self.preset is None:
            return None
        settings, overridden = {}, {}
        for name, value in PRESETS[self.preset].items():
            now = getattr(self, name)
            if now == value:
                settings[name] = value
            else:
                overridden[name] = {"preset": value, "now": now}
        return {"name": self.preset, "settings": settings, "overridden": overridden}

    def to_toml(self, fields: set[str] | None = None) -> str:
        """A file that ``--config`` takes: one setting a line; all of them, or some ``fields``."""
        settings = self.model_dump(exclude_none=True, include=fields)
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())


def config_of(run: Path, **changed: Any) -> TrainConfig:
    """The resolved configuration that a run folder was made with.

    Raises:
        InputError: its config.toml is missing or damaged, or a changed setting is out of range.
    """
    path = run / "config.toml"
    config = combine(changed, path, "restore it or train again")
    if not (config.rank and config.sweeps) or config != config.resolved(1.0):
        raise InputError(f"{path} is damaged: restore it or train again")
    return config


def combine(
    flags: Mapping[str, Any], config_file: Path | None = None, way_out: str = "check --config"
) -> TrainConfig:
    """Flags over the file over the preset over the defaults.

    Raises:
        InputError: the file cannot be read (``way_out`` is then said), an unknown key or preset,
            or a value out of range; names it and its place.
    """
    from_file = _read_toml(config_file, way_out) if config_file else {}
    preset = flags.get("preset", from_file.get("preset"))
    if preset is not None and (not isinstance(preset, str) or preset not in PRESETS):
        place = "--preset" if "preset" in flags else f"{config_file}: preset"
        raise InputError(f"{place} {preset} is unknown: choose from {', '.join(PRESETS)}")
    given = {**from_file, **flags}
    settings = {**(PRESETS[preset] if preset else {}), **given}
    sweeps, burn_in = settings.get("sweeps"), settings.get("burn_in")
    if "burn_in" not in given and isinstance(sweeps, int) and burn_in and burn_in >= sweeps:
        del settings["burn_in"]  # the preset's, for more sweeps than are wanted
    try:
        return TrainConfig(**settings)
    except ValidationError as error:
        raise InputError(_first_problem(error, from_file, flags, config_file)) from error


def _read_toml(path: Path, way_out: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({_reason(error)}): {way_out}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML ({error}): {way_out}") from error


def _first_problem(
    error: ValidationError,
    from_file: Mapping[str, Any],
    flags: Mapping[str, Any],
    config_file: Path | None,
) -> str:
    problem = error.errors()[0]
    message = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return message
    name = str(problem["loc"][0])
    in_file = name in from_file and name not in flags
    place = f"{config_file}: {name}" if in_file else f"--{name.replace('_', '-')}"
    if problem["type"] == "extra_forbidden":
        return f"{place} is no setting of a training run: remove it or mend its spelling"
    if problem["type"] == "missing":
        return f"{place} is required: a data set's name or a path"
    return f"{place}: {message[0].lower()}{message[1:]}, got {problem['input']!r}"


def _cores() -> int:
    """The cores that this process may use, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
