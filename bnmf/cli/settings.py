"""The flags that set a run's configuration: one table for all commands that sample."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypedDict, get_type_hints

import typer

from bnmf.cli.data import (
    DuplicatesFlag,
    FoldFlag,
    FoldsFlag,
    ItemColFlag,
    RatingColFlag,
    SplitByFlag,
    SplitFlag,
    TestFileFlag,
    TimeColFlag,
    UserColFlag,
)
from bnmf.config import PRESETS


def option(help_text: str) -> Any:
    """A flag whose default is the configuration's, not the command line's."""
    return typer.Option(help=help_text, show_default=False)


class Settings(TypedDict, total=False):
    """Fields of `bnmf.config.TrainConfig`, and what their flags say of themselves."""

    data: Annotated[
        str | None, option("A data set's name, a path of ratings, or an ingested folder.")
    ]
    preset: Annotated[str | None, option(f"A set of settings: {', '.join(PRESETS)}.")]
    model: Annotated[str | None, option("poisson-nmf (default) or gaussian-mf.")]
    rank: Annotated[
        int | None, option("Number of factors K; by default from the number of ratings.")
    ]
    non_negative: Annotated[
        bool | None,
        typer.Option(
            "--non-negative/--no-non-negative",
            help="Non-negative factors of gaussian-mf.",
            show_default=False,
        ),
    ]
    prior: Annotated[
        str | None,
        option("hierarchical (default), whose parameters are sampled, or exponential: fixed."),
    ]
    implicit: Annotated[
        bool | None,
        typer.Option(
            "--implicit/--no-implicit",
            help="Learn from which items a user rated, apart from how; by default.",
            show_default=False,
        ),
    ]
    counts_per_unit: Annotated[
        float | None,
        option("Poisson counts a unit of rating is worth, with exponential priors; 4 by default."),
    ]
    sampler: Annotated[
        str | None,
        option("sgnht (default), sgld, sgrld, sghmc, sgrhmc, sgmgt or sgmgt-d."),
    ]
    domain: Annotated[
        str | None, option("corv (default), mirror, or ito with sgld: how factors stay positive.")
    ]
    transform: Annotated[str | None, option("softplus (default), exp or icll.")]
    step_size: Annotated[
        float | None, option("Step size at the first sweep; by default the sampler's own.")
    ]
    schedule: Annotated[str | None, option("constant (default) or polynomial[:GAMMA:OFFSET].")]
    temperature: Annotated[float | None, option("1 samples the posterior, 0 descends to its mode.")]
    average: Annotated[
        str | None, option("step-weighted (default) or plain: how draws count in predictions.")
    ]
    friction: Annotated[
        float | None,
        option("Friction of the momenta, and the noise injected for it; 0.5 by default."),
    ]
    noise_estimate: Annotated[
        float | None,
        option("Variance of the gradient's noise, for sghmc and sgrhmc; 0 by default."),
    ]
    monomial: Annotated[
        int | None, option("Monomial parameter of sgmgt's kinetics: 1 (default) or 2.")
    ]
    integrator: Annotated[
        str | None, option("Of sgmgt: aboba (default, symmetric splitting) or euler.")
    ]
    diffusion: Annotated[
        float | None,
        option("Diffusion that sgmgt-d adds to positions and thermostats; 0.1 by default."),
    ]
    resample_every: Annotated[
        int | None, option("Sweeps between fresh draws of momenta; never by default.")
    ]
    blocks: Annotated[
        int | None, option("Blocks a side of the grid; from the number of ratings by default.")
    ]
    batch_size: Annotated[
        int | None, option("Ratings a step within a block; the whole block by default.")
    ]
    local_steps: Annotated[int | None, option("Steps a visit of a block; 1 by default.")]
    sweeps: Annotated[
        int | None, option("Passes over all blocks; by default from the number of ratings.")
    ]
    burn_in: Annotated[int | None, option("Sweeps that do not count; a quarter by default.")]
    thin: Annotated[int | None, option("Sweeps between kept draws; about 32 are kept by default.")]
    chains: Annotated[
        int | None, option("Chains side by side, pooled in predictions; 1 by default.")
    ]
    split: SplitFlag
    folds: FoldsFlag
    fold: FoldFlag
    test_file: TestFileFlag
    split_by: SplitByFlag
    duplicates: DuplicatesFlag
    user_col: UserColFlag
    item_col: ItemColFlag
    rating_col: RatingColFlag
    time_col: TimeColFlag
    seed: Annotated[int | None, option("Seed of the split and of the chain; 0 by default.")]
    threads: Annotated[
        int | None,
        option(
            "Blocks at work at once, shared by the chains; changes no result. All cores by default."
        ),
    ]


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` with the flags of `Settings` in the place of its ``**settings``.

    It gets those that were given; its own parameters are keywords.
    """
    flags = get_type_hints(Settings, include_extras=True)

    @functools.wraps(command)
    def with_flags(**arguments: Any) -> None:
        command(**{k: v for k, v in arguments.items() if k not in flags or v is not None})

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=flag)
        for name, flag in flags.items()
    ]
    own = inspect.signature(command, eval_str=True)
    parameters += [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    with_flags.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_flags
