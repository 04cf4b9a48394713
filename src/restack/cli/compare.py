"""The `compare` command: how alike two models are, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from restack.cli import output
from restack.cli.loading import (
    BatchTokens,
    Column,
    Data,
    Device,
    Dtype,
    Limit,
    Loading,
    MaxLength,
    SplitName,
    Texted,
    Trust,
    texts,
)
from restack.cli.main import app
from restack.cli.surgery import Json, StackOption
from restack.errors import RestackError


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="The first model, such as pretrained.")],
    b: Annotated[
        str | None,
        typer.Argument(metavar="[B]", help="The second one; if none, A re-stacked along --plan."),
    ] = None,
    text: Texted = None,
    data: Data = None,
    column: Column = None,
    split: SplitName = None,
    limit: Limit = None,
    plan: Annotated[
        str | None,
        typer.Option(
            "--plan", metavar="PLAN", help="How B is made of A, if B has no record that says it."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of fresh slots, where there is no B.")] = 0,
    stack: StackOption = None,
    max_length: MaxLength = None,
    batch_tokens: BatchTokens = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    trust_remote_code: Trust = False,
    json: Json = False,
) -> None:
    """How alike two models of one family are, layer by layer: states and weights."""
    from dataclasses import replace

    from restack.observe.similarity import compare as run
    from restack.surgery import restack

    if b is None and plan is None:
        raise RestackError(
            "there is nothing to compare with", hint="name a second model, or give --plan"
        )
    found = texts(text, data, column, split, limit)
    loading = Loading(device, dtype, None, trust_remote_code)
    one = loading.model(a)
    if b is None:
        two, second, known = restack(one, str(plan), stack=stack, seed=seed), f"{a} ({plan})", plan
        tokenizers = (loading.tokenizer(a),) * 2
    else:
        two, second, known = loading.model(b), b, plan or _recorded_plan(b)
        tokenizers = loading.tokenizer(a), loading.tokenizer(b)
    given = loading.inputs(one, tokenizers[0], found, length=max_length, tokens=batch_tokens)
    output.note(str(given))
    with output.count_progress("texts", len(given)) as advance:
        result = run(
            one,
            two,
            given.batches,
            stack=stack,
            plan=known,
            tokenizers=tokenizers,
            progress=advance,
        )
    result = replace(result, a=a, b=second)
    if json:
        output.as_json(result.to_json() | given.to_json())
    else:
        output.show(result)


def _recorded_plan(location: str) -> str | None:
    """The plan that the record of a re-stacked checkpoint tells of."""
    from restack.anatomy.checkpoint import open_checkpoint
    from restack.surgery.record import read_record

    if not Path(location).is_dir():
        return None
    record = read_record(open_checkpoint(location))
    return str(record["plan"]) if record and record.get("plan") else None
