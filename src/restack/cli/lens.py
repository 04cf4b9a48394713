"""The `lens` command: what every layer already knows."""

from __future__ import annotations

import os
from pathlib import Path
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
    texts,
)
from restack.cli.main import app
from restack.cli.surgery import PLAN_HELP, Json, Revision, StackOption
from restack.errors import CheckpointError, RestackError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from restack.observe.curves import Curve
    from restack.observe.decode import DecodedText
    from restack.observe.heads import Head
    from restack.observe.tuned import TunedLens
    from restack.plan import Plan

_MOST_DECODED = 20


@app.command()
def lens(
    model: Model,
    text: Texted = None,
    data: Data = None,
    column: Column = None,
    split: SplitName = None,
    limit: Limit = None,
    plan: Annotated[
        list[str] | None,
        typer.Option("--plan", metavar="PLAN", help=f"Read this plan too; repeatable. {PLAN_HELP}"),
    ] = None,
    curve: Annotated[
        list[str] | None,
        typer.Option(
            "--curve",
            metavar="KIND[:DEPTH]",
            help="Many plans at once, ending at a depth; repeatable: duplicate, duplicate-last, "
            "duplicate-one, repeat, upscale, drop, drop-bottom, drop-even, drop-odd, "
            "drop-symmetric, drop-one.",
        ),
    ] = None,
    decode: Annotated[
        bool, typer.Option("--decode", help="Show what each layer decodes the texts to.")
    ] = False,
    head: Annotated[
        str | None, typer.Option("--head", metavar="FROM", help="Use the head of this checkpoint.")
    ] = None,
    fit_head: Annotated[
        bool, typer.Option("--fit-head", help="Fit a head on the texts, the body frozen.")
    ] = False,
    tuned: Annotated[
        Path | None,
        typer.Option("--tuned", metavar="FILE", help="Read through this tuned lens too."),
    ] = None,
    tune: Annotated[
        Path | None,
        typer.Option("--tune", metavar="FILE", help="Train a tuned lens on the texts, save it."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of fresh slots and of fitting.")] = 0,
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
    """What every layer already knows: its states through the model's own head, untrained."""
    from dataclasses import replace

    from restack.observe.lens import lens as run

    _one_of("--head", head, "--fit-head", fit_head)
    _one_of("--tuned", tuned, "--tune", tune)
    if tune:
        _refuse_taken(tune)
    found = texts(text, data, column, split, limit)
    loading = Loading(device, dtype, revision, trust_remote_code)
    body, tokenizer = loading.model(model), loading.tokenizer(model)
    wanted = _plans(body, stack, plan or [], curve or [])
    given = loading.inputs(body, tokenizer, found, length=max_length, tokens=batch_tokens)
    output.note(str(given))
    used = _head(body, tokenizer, given, loading, head, fit_head, stack, seed)
    through = _tuned(body, given, used, tuned, tune, stack, seed)
    states = given.real * (_depth(body, stack) + 1)
    with output.count_progress("states of tokens", states) as advance:
        result = run(body, given.batches, stack=stack, head=used, tuned=through, progress=advance)
    result = replace(result, model=model)
    effort: dict[str, Any] = {}
    if wanted:
        line = _along(body, given, used, wanted, stack, seed, in_bytes(memory))
        result, effort = replace(result, plans=line.plans), _effort(line)
    shown = _decoded(body, tokenizer, given, used, through, stack, max_length) if decode else []
    if json:
        decoded = {"decoded": [item.to_json() for item in shown]} if decode else {}
        output.as_json(result.to_json() | given.to_json() | effort | decoded)
    else:
        output.show(result, *shown)


def _one_of(name: str, value: object, other: str, other_value: object) -> None:
    if value and other_value:
        raise RestackError(f"{name} and {other} are both given", hint="choose one")


def _refuse_taken(file: Path) -> None:
    """Refuse a file that is there, or cannot be written, before the work for it is done."""
    if file.exists():
        raise CheckpointError(
            f"{file} exists already", hint="give another name, or read it with --tuned"
        )
    place = next(parent for parent in file.absolute().parents if parent.exists())
    if not (place.is_dir() and os.access(place, os.W_OK)):
        raise CheckpointError(
            f"{file} cannot be written: {place} is no directory that can be written to"
        )


def _depth(body: PreTrainedModel, stack: str | None) -> int:
    from restack.anatomy import models

    return models.pick(body, stack).depth


def _plans(
    body: PreTrainedModel, stack: str | None, plans: list[str], curves: list[str]
) -> list[Plan]:
    from restack.observe.curves import plan_curve
    from restack.plan import Plan

    depth = _depth(body, stack)
    found = [Plan.parse(text, depth) for text in plans]
    for kind in curves:
        found += plan_curve(kind, depth)
    return list(dict.fromkeys(found))  # every curve begins with the whole stack


def _head(
    body: PreTrainedModel,
    tokenizer: Any,
    given: Inputs,
    loading: Loading,
    source: str | None,
    fit: bool,
    stack: str | None,
    seed: int,
) -> Head:
    from restack.observe.fitted_head import EPOCHS, MOST_TOKENS, fit_head
    from restack.observe.heads import graft_head, own_head

    if source:
        grafted = graft_head(body, loading.model(source), stack=stack, label=source)
        _same_vocabulary(given, tokenizer, loading, source)
        return grafted
    if not fit:
        return own_head(body, stack=stack)
    if body.get_output_embeddings() is not None:
        output.note("the model has a head of its own; one is fitted as --fit-head says")
    tokens = min(given.real, MOST_TOKENS)
    with output.stage_progress({"states": tokens, "fitting": tokens * EPOCHS}) as told:
        return fit_head(
            body,
            given.batches,
            stack=stack,
            seed=seed,
            progress=lambda what, count, loss: told(what, count),
        )


def _same_vocabulary(given: Inputs, tokenizer: Any, loading: Loading, source: str) -> None:
    """Refuse a head to which the tokens of these texts are others."""
    from restack.observe.similarity import same_tokens

    try:
        other = loading.tokenizer(source)
    except CheckpointError:  # beside a head there need be none
        return
    for batch in given.batches:
        same_tokens(batch, tokenizer, other)


def _tuned(
    body: PreTrainedModel,
    given: Inputs,
    head: Head,
    file: Path | None,
    make: Path | None,
    stack: str | None,
    seed: int,
) -> TunedLens | None:
    from restack.observe.tuned import EPOCHS, load_tuned, save_tuned, tune_lens

    if file:
        return load_tuned(file, head)
    if not make:
        return None
    with output.count_progress("tuning the lens", given.real * EPOCHS) as advance:
        made = tune_lens(
            body,
            given.batches,
            stack=stack,
            head=head,
            seed=seed,
            progress=lambda count, loss: advance(count),
        )
    save_tuned(made, make)
    output.note(f"{make} holds the tuned lens, which was trained on the very texts read here")
    return made


def _along(
    body: PreTrainedModel,
    given: Inputs,
    head: Head,
    plans: list[Plan],
    stack: str | None,
    seed: int,
    memory: int | None,
) -> Curve:
    """Accuracies of all plans by one virtual evaluation."""
    from restack.observe.curves import plan_accuracy

    with output.count_progress("texts x plans", len(given) * len(plans)) as advance:
        run = plan_accuracy(
            body,
            plans,
            given.batches,
            stack=stack,
            head=head,
            seed=seed,
            state_memory=memory,
            progress=advance,
        )
    apart = sum(map(len, plans))
    many = f"{len(plans)} plans" if len(plans) > 1 else "1 plan"
    note = f"{many} in {run.edges} layer applications a batch, one by one {apart}"
    output.note(note if not run.fallback else f"rebuilt for every plan: {run.fallback}")
    return run


def _effort(run: Curve) -> dict[str, Any]:
    return {
        "edges": run.edges,
        "layer_applications": run.layer_applications,
        "fallback": run.fallback,
    }


def _decoded(
    body: PreTrainedModel,
    tokenizer: Any,
    given: Inputs,
    head: Head,
    tuned: TunedLens | None,
    stack: str | None,
    max_length: int | None,
) -> list[DecodedText]:
    from restack.observe.decode import decode

    chosen = given.found.texts[:_MOST_DECODED]
    if len(chosen) < len(given):
        output.note(f"--decode shows the first {len(chosen)} of {len(given):,} texts")
    return decode(
        body, tokenizer, chosen, stack=stack, head=head, tuned=tuned, max_length=max_length
    )
