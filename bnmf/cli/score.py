"""`bnmf score`: predictions for any number of pairs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from bnmf.cli.data import ItemColFlag, UserColFlag
from bnmf.posterior import Posterior
from data_pipeline.errors import InputError
from data_pipeline.files import replace_file
from data_pipeline.sources import Columns, read_pairs


def score(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    pairs: Annotated[Path, typer.Option(help="A csv or Parquet file with user and item columns.")],
    out: Annotated[Path, typer.Option(help="The Parquet file to write.")],
    user_col: UserColFlag = None,
    item_col: ItemColFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict the rating of each pair, in the file's order, in constant memory.

    Unknown ids get the prior's prediction and are marked, never dropped.
    """
    if out.resolve() == pairs.resolve():
        raise InputError(f"--out {out} is the file of --pairs: name another")
    posterior = Posterior.load(run)
    count = unknown = 0
    batches = read_pairs(pairs, Columns(user=user_col, item=item_col))
    first = next(batches, None)  # bad pairs leave no folder behind
    if first is None:
        raise InputError(f"--pairs {pairs} holds no pairs")
    if out.is_dir():
        raise InputError(f"--out {out} is a folder: name a file")
    out.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(out) as temporary:
        writer: pq.ParquetWriter | None = None
        for batch in itertools.chain([first], batches):
            prediction = posterior.predict(batch["user"], batch["item"])
            known = prediction.known_user & prediction.known_item
            count, unknown = count + len(known), unknown + int((~known).sum())
            table = pa.table({"user": batch["user"], "item": batch["item"], **prediction._asdict()})
            if writer is None:
                writer = pq.ParquetWriter(temporary, table.schema)
            writer.write_table(table)
        assert writer is not None
        writer.close()
    if as_json:
        print(json.dumps({"out": str(out), "pairs": count, "unknown": unknown}))
    else:
        print(f"{out}: {count:,} pairs scored, {unknown:,} with an unknown user or item")
