"""The `bnmf` command: its subcommands, and how it ends.

Exit codes: 0, 1 (failed), 2 (bad input), 130 (interrupted).
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

import bnmf
from bnmf.cli import data, evaluate, experiment, score, train, tune
from bnmf.training import ChainDiverged, Interrupted
from data_pipeline.errors import InputError

app = typer.Typer(
    name="bnmf",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"bnmf {bnmf.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="And exit.")
    ] = False,
) -> None:
    """Bayesian non-negative matrix factorization of ratings."""


app.add_typer(data.app, name="data")
app.command("train")(train.train)
app.command("tune")(tune.tune)
app.command("evaluate")(evaluate.evaluate)
app.command("score")(score.score)
app.command("experiment")(experiment.experiment)

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; one line on stderr for whatever went wrong."""
    try:
        code = app(arguments, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (InputError, ChainDiverged) as error:
        return _fail(str(error), 2)
    except TyperException as error:
        return _fail(f"{error.format_message()} (see --help)", 2)
    except Interrupted as error:
        return _fail(f"{error}; go on with --resume", 130)
    except (KeyboardInterrupt, Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output has gone; keep Python from complaining once more at exit.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 0
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        if error.errno in FULL_DISK:
            return _fail(f"{place}the disk is full: free some space, then run again", 2)
        return _fail(f"{place}{error.strerror or error}", 2)


def _fail(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
