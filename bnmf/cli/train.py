"""`bnmf train`: from a table of ratings to a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bnmf import api
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
from bnmf.cli.live import LiveLine
from bnmf.cli.report import show, warn
from bnmf.config import PRESETS
from bnmf.run import read_json


def option(help_text: str) -> Any:
    """A flag whose default is the configuration's, not the command line's."""
    return typer.Option(help=help_text, show_default=False)


def train(
    data: Annotated[
        str | None, option("A data set's name, a path of ratings, or an ingested folder.")
    ] = None,
    out: Annotated[
        Path | None, option("The run folder; runs/NAME-001 and so on by default.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    config: Annotated[Path | None, option("A TOML file of settings; flags override it.")] = None,
    preset: Annotated[str | None, option(f"A set of settings: {', '.join(PRESETS)}.")] = None,
    model: Annotated[str | None, option("poisson-nmf (default) or gaussian-mf.")] = None,
    rank: Annotated[int | None, option("Number of factors K; 20 by default.")] = None,
    non_negative: Annotated[
        bool | None, typer.Option("--non-negative", help="Non-negative factors of gaussian-mf.")
    ] = None,
    prior: Annotated[
        str | None,
        option("hierarchical (default), whose parameters are sampled, or exponential: fixed."),
    ] = None,
    implicit: Annotated[
        bool | None,
        typer.Option(
            "--implicit/--no-implicit",
            help="Learn from which items a user rated, apart from how; by default.",
            show_default=False,
        ),
    ] = None,
    counts_per_unit: Annotated[
        float | None,
        option("Poisson counts a unit of rating is worth, with exponential priors; 4 by default."),
    ] = None,
    sampler: Annotated[
        str | None,
        option("sgnht (default), sgld, sgrld, sghmc, sgrhmc, sgmgt or sgmgt-d."),
    ] = None,
    domain: Annotated[
        str | None, option("corv (default), mirror, or ito with sgld: how factors stay positive.")
    ] = None,
    transform: Annotated[str | None, option("softplus (default), exp or icll.")] = None,
    step_size: Annotated[
        float | None, option("Step size at the first sweep; by default the sampler's own.")
    ] = None,
    schedule: Annotated[
        str | None, option("constant (default) or polynomial[:GAMMA:OFFSET].")
    ] = None,
    temperature: Annotated[
        float | None, option("1 samples the posterior, 0 descends to its mode.")
    ] = None,
    average: Annotated[
        str | None, option("step-weighted (default) or plain: how draws count in predictions.")
    ] = None,
    friction: Annotated[
        float | None,
        option("Friction of the momenta, and the noise injected for it; 0.5 by default."),
    ] = None,
    noise_estimate: Annotated[
        float | None,
        option("Variance of the gradient's noise, for sghmc and sgrhmc; 0 by default."),
    ] = None,
    monomial: Annotated[
        int | None, option("Monomial parameter of sgmgt's kinetics: 1 (default) or 2.")
    ] = None,
    integrator: Annotated[
        str | None, option("Of sgmgt: aboba (default, symmetric splitting) or euler.")
    ] = None,
    diffusion: Annotated[
        float | None,
        option("Diffusion that sgmgt-d adds to positions and thermostats; 0.1 by default."),
    ] = None,
    resample_every: Annotated[
        int | None, option("Sweeps between fresh draws of momenta; never by default.")
    ] = None,
    blocks: Annotated[
        int | None, option("Blocks a side of the grid; from the number of ratings by default.")
    ] = None,
    batch_size: Annotated[
        int | None, option("Ratings a step within a block; the whole block by default.")
    ] = None,
    local_steps: Annotated[int | None, option("Steps a visit of a block; 1 by default.")] = None,
    sweeps: Annotated[int | None, option("Passes over all blocks; 800 by default.")] = None,
    burn_in: Annotated[
        int | None, option("Sweeps that do not count; a quarter by default.")
    ] = None,
    thin: Annotated[
        int | None, option("Sweeps between kept draws; about 32 are kept by default.")
    ] = None,
    chains: Annotated[
        int | None, option("Chains side by side, pooled in predictions; 1 by default.")
    ] = None,
    split: SplitFlag = None,
    folds: FoldsFlag = None,
    fold: FoldFlag = None,
    test_file: TestFileFlag = None,
    split_by: SplitByFlag = None,
    duplicates: DuplicatesFlag = None,
    user_col: UserColFlag = None,
    item_col: ItemColFlag = None,
    rating_col: RatingColFlag = None,
    time_col: TimeColFlag = None,
    seed: Annotated[int | None, option("Seed of the split and of the chain; 0 by default.")] = None,
    threads: Annotated[
        int | None,
        option(
            "Blocks at work at once, shared by the chains; changes no result. All cores by default."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
) -> None:
    """Sample the posterior of a factorization of a table of ratings."""
    settings = {
        name: value
        for name, value in locals().items()
        if value is not None and name not in {"data", "out", "resume", "config", "as_json"}
    }
    with LiveLine() as live:
        run = api.train(
            data,
            out=out,
            resume=resume,
            config=config,
            listener=live.sweep,
            progress=live.reading,
            **settings,
        )
    result = read_json(run.path / "report.json")
    if as_json:
        print(json.dumps({"run": str(run.path), **result}))
    else:
        show(str(run.path), result)
    warn(result)
