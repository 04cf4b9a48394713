"""The `score` command: how much each layer matters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from restack.cli import output
from restack.cli.loading import (
    BatchTokens,
    Column,
    Data,
    Device,
    Dtype,
    Inputs,
    Limit,
    Loading,
    MaxLength,
    Memory,
    Model,
    SplitName,
    Texted,
    Trust,
    in_bytes,
    numbers,
    texts,
)
from restack.cli.main import app
from restack.cli.surgery import Json, Revision, StackOption
from restack.errors import RestackError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from restack.data import Split, Task, Texts
    from restack.observe.lens import LensResult


@app.command()
def score(
    model: Model,
    text: Texted = None,
    data: Data = None,
    column: Column = None,
    split: SplitName = None,
    limit: Limit = None,
    task: Annotated[
        str | None,
        typer.Option(help="Take the loss and metrics of this task; --data holds its splits."),
    ] = None,
    measures: Annotated[
        str | None,
        typer.Option(
            help="Only these, with commas between (all that can be): cls_cosine, token_cosine, "
            "block_influence, angular_distance, relative_update, cka, taylor, exact, "
            "accuracy_gain."
        ),
    ] = None,
    blocks: Annotated[
        str | None,
        typer.Option(metavar="N,...", help="Also blocks of so many consecutive layers: 2,4."),
    ] = None,
    drop: Annotated[
        int | None, typer.Option(min=1, help="Give the plan without this many layers.")
    ] = None,
    drop_above: Annotated[
        float | None, typer.Option(help="Give the plan without layers above this value: 0.925.")
    ] = None,
    drop_below: Annotated[
        float | None, typer.Option(help="Give the plan without layers below this value.")
    ] = None,
    drop_block: Annotated[
        int | None, typer.Option(min=1, help="Give the plan without the best block of this length.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="MEASURE",
            help="What these choose by (cls_cosine; for --drop-block angular_distance).",
        ),
    ] = None,
    stack: StackOption = None,
    max_length: MaxLength = None,
    batch_tokens: BatchTokens = None,
    memory: Memory = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    json: Json = False,
) -> None:
    """How much each layer matters, by many measures at once; and the plan that follows."""
    from dataclasses import replace

    from restack.observe.score import plan_from
    from restack.observe.score import score as run
    from restack.observe.score_result import check_choice

    choices = {"above": drop_above, "below": drop_below, "count": drop, "block": drop_block}
    chosen: dict[str, Any] = {key: value for key, value in choices.items() if value is not None}
    measure = by or ("angular_distance" if drop_block else "cls_cosine")
    lengths = numbers("--blocks", blocks) if blocks is not None else []
    lengths += [drop_block] if drop_block else []
    named = measures.split(",") if measures is not None else None
    _check(chosen, by, measure, named)
    found, of, labels = _found(text, data, column, split, limit, task)
    loading = Loading(device, dtype, revision, trust_remote_code)
    body, tokenizer = loading.model(model), loading.tokenizer(model)
    if chosen:
        check_choice(_depth(body, stack), measure, **chosen)
    given = loading.inputs(body, tokenizer, found, length=max_length, tokens=batch_tokens)
    output.note(str(given))
    lens = _lens(body, given, named, stack)
    with output.stage_progress(_totals(body, given, lengths, stack)) as told:
        result = run(
            body,
            given.batches,
            stack=stack,
            blocks=sorted({1, *lengths}),
            measures=named,
            task=of,
            labels=labels,
            lens=lens,
            memory=in_bytes(memory),
            progress=told,
        )
    result = replace(result, model=model)
    plan = plan_from(result, measure, **chosen) if chosen else None
    if json:
        output.as_json(result.to_json() | given.to_json() | {"plan": plan and str(plan)})
        return
    output.show(result)
    if plan:
        output.show("", f"without the most dispensable by {measure}:", plan)


def _check(chosen: dict[str, Any], by: str | None, measure: str, named: list[str] | None) -> None:
    """Refuse options that do not fit together."""
    if by and not chosen:
        raise RestackError("--by says what --drop... chooses by", hint="give one of these too")
    if len(chosen) > 1:
        raise RestackError(
            "several of --drop, --drop-above, --drop-below and --drop-block are given",
            hint="each gives a plan of its own: choose one",
        )
    # what grows without a layer is called by its metric, such as loss_increase
    if chosen and named and "exact" not in named and measure not in named:
        raise RestackError(
            f"--drop... is to choose by {measure}, which is not among --measures",
            hint="add it there, or say with --by which of them is meant",
        )


def _found(
    text: list[str] | None,
    data: str | None,
    column: str | None,
    split: str | None,
    limit: int | None,
    task: str | None,
) -> tuple[Texts | Split, Task | None, Any]:
    """The texts; with a task the task and the labels as well."""
    if task is None:
        return texts(text, data, column, split, limit), None, None
    if text or column:
        raise RestackError(
            f"--{'text' if text else 'column'} cannot be used with --task, which has its own",
            hint="leave one of them out",
        )
    from restack.data import get_task, load_split

    chosen = get_task(task)
    rows = load_split(chosen, split or "validation", data, limit=limit)
    return rows, chosen, rows.labels


def _lens(
    body: PreTrainedModel, given: Inputs, named: list[str] | None, stack: str | None
) -> LensResult | None:
    """What the own head reads of each layer, where that is wanted and there is one."""
    from restack.observe.heads import own_head
    from restack.observe.lens import lens

    if named is not None and "accuracy_gain" not in named:
        return None
    try:
        head = own_head(body, stack=stack)
    except RestackError:
        if named is not None:
            raise
        return None
    with output.count_progress("states of tokens", given.real * (_depth(body, stack) + 1)) as told:
        return lens(body, given.batches, stack=stack, head=head, progress=told)


def _depth(body: PreTrainedModel, stack: str | None) -> int:
    from restack.anatomy import models

    return models.pick(body, stack).depth


def _totals(
    body: PreTrainedModel, given: Inputs, lengths: list[int], stack: str | None
) -> dict[str, int]:
    """How much there is to do at most, by what the stages are called."""
    depth = _depth(body, stack)
    plans = 1 + sum(depth - n + 1 for n in {1, *lengths} if 0 < n < depth)
    return {"states": len(given), "exact": len(given) * plans}
