"""The `tune` command: bring a model to a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restack.cli import output
from restack.cli.loading import Device, Model
from restack.cli.main import app
from restack.cli.settings import recipe_from, with_settings
from restack.cli.surgery import PLAN_HELP, Json, StackOption
from restack.errors import RestackError

if TYPE_CHECKING:
    from rich.table import Table

    from restack.data import Split
    from restack.tune.tuned import Tuned

_HELD_OUT = 0.1  # of data without a validation split


@app.command()
@with_settings
def tune(
    model: Model,
    task: Annotated[
        str,
        typer.Option(
            help="sst2, cola, mnli, squad_v2, ...; a labelled file, or a directory with train and "
            "validation files; or lm or mlm, with the texts as --data."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The directory to write.")],
    data: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Where the task's splits lie (the Hub, if none)."),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option("--plan", metavar="PLAN", help=f"Re-stack before the training. {PLAN_HELP}"),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Tune, apply the plan and tune again, N times: with --plan drop:top=1 and "
            "--epochs 2, one layer goes after every two epochs. Writes OUT/round-0 to round-N.",
        ),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="The column of texts; two names with a comma for pairs.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Of files: the column of labels.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="Of files: classification, regression, multilabel, lm or mlm."),
    ] = None,
    train_split: Annotated[str, typer.Option(help="What to train on.")] = "train",
    eval_split: Annotated[
        list[str] | None,
        typer.Option(help="What to score on; repeatable, the first one picks the best weights."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="A random draw of so many training examples.")
    ] = None,
    eval_limit: Annotated[
        int | None, typer.Option(min=1, help="Score on the first so many examples.")
    ] = None,
    init: Annotated[
        str, typer.Option(help="How fresh slots start: standard, paper, released, family, ...")
    ] = "standard",
    stack: StackOption = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="FROM", help="If it does not lie beside the model.")
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings from .toml or .json, also from a tune.json."),
    ] = None,
    assigned: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was interrupted.")
    ] = False,
    save_every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Between checkpoints of the run.")
    ] = 300.0,
    tracker: Annotated[
        list[str] | None,
        typer.Option(help="Also tell tensorboard, wandb or mlflow; repeatable."),
    ] = None,
    device: Device = "auto",
    json: Json = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Train a model on a task, after re-stacking it, and write an ordinary model directory."""
    wanted = recipe_from(recipe, settings, assigned or ())
    if rounds is not None and plan is None:
        raise RestackError("--rounds needs a plan", hint="Such as --plan drop:top=1.")
    train, validation = _splits(
        task, data, column, label, kind, train_split, eval_split or [], limit, eval_limit
    )
    for what, split in (("trains on", train), *(("scores on", s) for s in validation.values())):
        output.note(f"{what} {split}: {len(split):,} examples")
    options: dict[str, Any] = {
        "tokenizer": _tokenizer(tokenizer),
        "plan": plan,
        "stack": stack,
        "init": init,
        "out": out,
        "resume": resume,
        "device": None if device == "auto" else device,
        "save_seconds": save_every,
        "trackers": tuple(tracker or ()),
    }
    if rounds is not None:
        _in_rounds(model, train, validation, wanted, rounds, options, json=json)
        return
    from restack.tune import tune as run

    with _progress() as told:
        tuned = run(model, train, validation, wanted, progress=told, **options)
    if json:
        output.as_json({"output": str(out), **_without_curve(tuned.to_json())})
        return
    for note in tuned.notes:
        output.note(note)
    if tuned.plan is not None and tuned.source_depth is not None:
        from restack.plan import Plan

        output.show(Plan.parse(tuned.plan, tuned.source_depth))
    output.show(_table(tuned), *_summary(tuned, out))


def _in_rounds(
    model: str,
    train: Split,
    validation: Mapping[str, Split],
    recipe: Any,
    rounds: int,
    options: dict[str, Any],
    *,
    json: bool,
) -> None:
    from restack.tune.rounds import rounds_table, tune_in_rounds

    with _progress() as told:
        found = tune_in_rounds(
            model, train, validation, recipe, rounds=rounds, progress=told, **options
        )
    if json:
        output.as_json({"output": str(options["out"]), "rounds": [r.to_json() for r in found]})
    else:
        output.show(rounds_table(found), f"written to {options['out']}")


def _splits(
    name: str,
    data: str | None,
    column: str | None,
    label: str | None,
    kind: str | None,
    train_split: str,
    eval_splits: list[str],
    limit: int | None,
    eval_limit: int | None,
) -> tuple[Split, dict[str, Split]]:
    """What to train on, and what to score on by name."""
    from restack.data import load_split, parted, subsample
    from restack.data.tables import split_files

    task, data = _task(name, data, column, label, kind)
    place = Path(data or task.data or "").expanduser()
    if place.is_file():
        if eval_splits:
            raise RestackError(
                f"{place} is one file and has no split {eval_splits[0]!r}",
                hint="Leave --eval-split out (a tenth is held out), or give a directory.",
            )
        whole = load_split(task, place.stem, place)
        train, held = parted(whole, _HELD_OUT, 0)
        validation = {"validation": held}
    elif (
        not eval_splits
        and task.data is not None
        and task.validation[0] not in split_files(Path(task.data).expanduser())
    ):
        train, held = parted(load_split(task, train_split, data), _HELD_OUT, 0)
        validation = {"validation": held}
    else:
        train = load_split(task, train_split, data)
        names = eval_splits or list(task.validation)
        validation = {split: load_split(task, split, data, limit=eval_limit) for split in names}
    if eval_limit is not None and "validation" in validation and len(validation) == 1:
        held = validation["validation"]
        if eval_limit < len(held):
            validation = {"validation": subsample(held, eval_limit, 0)}
    if limit is not None and limit < len(train):
        train = subsample(train, limit, 0)
    return train, validation


def _task(
    name: str, data: str | None, column: str | None, label: str | None, kind: str | None
) -> tuple[Any, str | None]:
    """The task, and where its data are if that is not told by the task itself."""
    from dataclasses import replace

    from restack.data import TASKS, Task, get_task

    if name in ("lm", "mlm"):
        if data is None:
            raise RestackError(f"--task {name} needs texts", hint="Name them with --data.")
        name, kind, data = data, name, None
    if Path(name).expanduser().exists() and name not in TASKS:
        if data is not None:
            raise RestackError(
                f"--data {data} is given, and the task {name} names its own data",
                hint="Leave --data out.",
            )
        made = Task.from_file(name, columns=column, label=label, kind=kind)  # type: ignore[arg-type]
        return made, None
    if kind in ("lm", "mlm"):
        return _hub_texts(name, kind, column), None
    task = get_task(name)
    if kind is not None and kind != task.kind:
        raise RestackError(f"the task {task.name} is a {task.kind}", hint="Leave --kind out.")
    if column is not None:
        task = replace(task, columns=tuple(column.split(",")))
    return (task if label is None else replace(task, label=label)), data


def _hub_texts(name: str, kind: str, column: str | None) -> Any:
    from restack.data import Task
    from restack.data.tasks import DEFAULT_METRICS

    hub, _, config = name.partition(":")
    return Task(
        hub.rpartition("/")[2],
        kind,  # type: ignore[arg-type]
        (column or "text",),
        None,
        metrics=DEFAULT_METRICS[kind],  # type: ignore[index]
        hub=hub,
        config=config or None,
    )


def _tokenizer(name: str | None) -> Any:
    if name is None:
        return None
    from restack.cli.loading import Loading

    return Loading().tokenizer(name)


@contextmanager
def _progress() -> Iterator[Any]:
    """A bar with the loss, examples a second and the time left; a line for each evaluation."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Left())
    console = output.console(stderr=True)
    bars: dict[str, Any] = {}
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:

        def told(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
            if what == "evaluated":
                if "evaluate" in bars:
                    bar.update(bars["evaluate"], visible=False)
                scores = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
                output.note(f"step {done:,} of {total:,}: {scores}")
                return
            if what not in bars:
                bars[what] = bar.add_task(what, total=total)
            text = what
            if "loss" in numbers:
                text = f"{what}  loss {numbers['loss']:.4f}"
            if numbers.get("pace"):
                text += f"  {output.number(numbers['pace'])} examples/s"
            bar.update(bars[what], completed=done, total=total, description=text, visible=True)

        yield told


def _without_curve(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "curve"}


def _table(tuned: Tuned) -> Table:
    from rich.table import Table

    names = list(dict.fromkeys(name for found in tuned.metrics.values() for name in found))
    table = Table("split", box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right")
    for split, found in tuned.metrics.items():
        table.add_row(split, *(f"{found[n]:.4f}" if n in found else "" for n in names))
    return table


def _summary(tuned: Tuned, out: Path) -> Iterator[str]:
    if tuned.metrics:
        yield f"of the weights of step {tuned.best_step:,} of {tuned.steps:,}"
    pace = output.number(tuned.examples_per_second)
    yield (
        f"{output.number(tuned.parameters)} parameters, {output.number(tuned.trained)} trained in "
        f"{tuned.seconds.get('train', 0.0):.1f} s, {pace} examples/s"
    )
    yield f"written to {out}"
