"""The `probe` command: what linear readers find in each frozen layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from restack.cli import output
from restack.cli.loading import (
    BatchTokens,
    Device,
    Dtype,
    Loading,
    MaxLength,
    Model,
    Trust,
    numbers,
)
from restack.cli.main import app
from restack.cli.surgery import PLAN_HELP, Json, Revision, StackOption
from restack.errors import RestackError

if TYPE_CHECKING:
    from restack.data import Split, Task

_HELD_OUT = 0.2  # of a single labelled file


@app.command()
def probe(
    model: Model,
    task: Annotated[
        str,
        typer.Option(
            help="sst2, cola, qnli, squad_answerable, ...; or a labelled file (of which a fifth is "
            "held out), or a directory with train and validation files."
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(metavar="DIRECTORY", help="Where the task's splits lie (the Hub, if none)."),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Of labelled files: the column of texts; two for pairs.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Of labelled files: the column of labels (label).")
    ] = None,
    train_split: Annotated[str, typer.Option(help="Where the readers are trained.")] = "train",
    split: Annotated[str, typer.Option("--split", help="Where they are scored.")] = "validation",
    limit: Annotated[
        int | None, typer.Option(min=1, help="A random draw of so many training examples.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Draws of examples for each layer.")] = 8,
    sizes: Annotated[
        str | None,
        typer.Option(metavar="N,...", help="Examples of a trial; several give a curve (all)."),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(metavar="N,...", help="Only these; 0 is the embeddings.")
    ] = None,
    pooling: Annotated[str, typer.Option(help="mean, cls or last.")] = "mean",
    solver: Annotated[
        str, typer.Option(help="adam (stops early) or exact (to the optimum).")
    ] = "adam",
    epochs: Annotated[int, typer.Option(min=1, help="Of adam: at most so many.")] = 40,
    rate: Annotated[float, typer.Option(help="Of adam: the learning rate.")] = 1e-3,
    batch_size: Annotated[int, typer.Option(min=1, help="Of adam.")] = 32,
    standardise: Annotated[
        bool, typer.Option("--standardise", help="Bring features to mean 0 and deviation 1.")
    ] = False,
    also_random: Annotated[
        bool,
        typer.Option("--also-random", help="Probe the same architecture with fresh weights too."),
    ] = False,
    also_random_layers: Annotated[
        bool, typer.Option("--also-random-layers", help="The same, but keeping the embeddings.")
    ] = False,
    plan: Annotated[
        str | None,
        typer.Option("--plan", metavar="PLAN", help=f"Probe the re-stacked model. {PLAN_HELP}"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of draws, readers and fresh weights.")] = 0,
    stack: StackOption = None,
    max_length: MaxLength = None,
    batch_tokens: BatchTokens = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    json: Json = False,
) -> None:
    """What a linear reader finds in each frozen layer: all layers and trials from one pass."""
    from dataclasses import replace

    from restack.data import check_classes
    from restack.observe.linear_base import Settings
    from restack.observe.probe import probe as run
    from restack.surgery import restack

    if also_random and also_random_layers:
        raise RestackError(
            "--also-random and --also-random-layers are both given", hint="choose one"
        )
    settings = Settings(
        solver=solver,  # type: ignore[arg-type]
        standardise=standardise,
        seed=seed,
        epochs=epochs,
        rate=rate,
        batch_size=batch_size,
    )
    only = numbers("--layers", layers) if layers else None
    counts = numbers("--sizes", sizes) if sizes else None
    train, scored = _splits(_task(task, column, label), data, train_split, split, limit, seed)
    check_classes(train)
    loading = Loading(device, dtype, revision, trust_remote_code)
    body, tokenizer = loading.model(model), loading.tokenizer(model)
    if plan:
        body = restack(body, plan, stack=stack, seed=seed)
    with output.stage_progress() as told:
        result = run(
            body,
            tokenizer,
            train,
            scored,
            layers=only,
            trials=trials,
            sizes=counts,
            settings=settings,
            also_random="layers" if also_random_layers else also_random,
            pooling=pooling,  # type: ignore[arg-type]
            stack=stack,
            max_length=max_length,
            batch_tokens=loading.batch_tokens(batch_tokens),
            progress=told,
        )
    result = replace(result, model=model if not plan else f"{model} ({plan})")
    if json:
        output.as_json(result.to_json())
    else:
        output.show(result)


def _task(name: str, column: str | None, label: str | None) -> Task:
    """A task by its name, or one of labelled files."""
    from restack.data import TASKS, Task, get_task

    if Path(name).exists() and name not in TASKS:
        return Task.from_file(name, columns=column, label=label or "label")
    if column or label:
        raise RestackError(
            f"--{'column' if column else 'label'} is for labelled files, and {name} is none",
            hint="leave it out, or give a directory with train and validation files as --task",
        )
    return get_task(name)


def _splits(
    task: Task, data: str | None, train: str, validation: str, limit: int | None, seed: int
) -> tuple[Split, Split]:
    """What to train on and what to score on."""
    from restack.data import load_split, parted, subsample

    place = Path(data or task.data or "")
    if not place.is_file():
        if train == validation:
            raise RestackError(
                f"--train-split and --split are both {train!r}",
                hint="score the readers on examples that they were not trained on",
            )
        found = load_split(task, train, data, limit=limit, seed=seed if limit else None)
        return found, load_split(task, validation, data)
    found, scored = parted(load_split(task, place.stem, place), _HELD_OUT, seed)
    return subsample(found, limit, seed) if limit and limit < len(found) else found, scored
