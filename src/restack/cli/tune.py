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
from restack.cli.splits import named_splits
from restack.cli.surgery import PLAN_HELP, Json, StackOption
from restack.errors import RestackError

if TYPE_CHECKING:
    from rich.table import Table

    from restack.data import Split
    from restack.tune import Teacher
    from restack.tune.healing import Point
    from restack.tune.tuned import Tuned


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
        str,
        typer.Option(
            help="How fresh slots start: family, standard, paper, paper-keep-norms or released."
        ),
    ] = "family",
    stack: StackOption = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="FROM", help="If it does not lie beside the model.")
    ] = None,
    teacher: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Learn from this model instead of the labels."),
    ] = None,
    distil: Annotated[
        str, typer.Option(help="What of the teacher: logits, states or both.")
    ] = "logits",
    temperature: Annotated[float, typer.Option(help="Of the logits of teacher and student.")] = 1.0,
    state_weight: Annotated[
        float, typer.Option(help="Of states beside logits, with --distil both.")
    ] = 1.0,
    label_weight: Annotated[
        float, typer.Option(help="Of the labels (or of the text itself) beside the teacher.")
    ] = 0.0,
    unlabelled: Annotated[
        bool,
        typer.Option(
            "--unlabelled", help="Do not read the training labels, which need not be there."
        ),
    ] = False,
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
    taught = _teacher(teacher, distil, temperature, state_weight, label_weight)
    train, validation = named_splits(
        task,
        data,
        column,
        label,
        kind,
        train_split,
        eval_split or [],
        limit,
        eval_limit,
        labelled=not unlabelled,
    )
    for what, split in (("trains on", train), *(("scores on", s) for s in validation.values())):
        output.note(f"{what} {split}: {len(split):,} examples")
    options: dict[str, Any] = {
        "tokenizer": _tokenizer(tokenizer),
        "plan": plan,
        "stack": stack,
        "init": init,
        "teacher": taught,
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
        output.as_json({"output": str(out), **_without_curve(tuned)})
        return
    for note in tuned.notes:
        output.note(note)
    if tuned.plan is not None and tuned.source_depth is not None:
        from restack.plan import Plan

        output.show(Plan.parse(tuned.plan, tuned.source_depth))
    output.show(*_recovery(tuned), _table(tuned), *_summary(tuned, out))


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


def _teacher(
    model: str | None, source: str, temperature: float, states: float, labels: float
) -> Teacher | None:
    if model is None:
        if (source, temperature, states, labels) != ("logits", 1.0, 1.0, 0.0):
            raise RestackError(
                "--distil, --temperature, --state-weight and --label-weight are about a teacher",
                hint="Name one with --teacher.",
            )
        return None
    from restack.tune import Distil, Teacher

    return Teacher(model, Distil(source, temperature, states, labels))  # type: ignore[arg-type]


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
                scores = ", ".join(
                    f"{name} {value:.4f}" for name, value in numbers.items() if _main(name)
                )
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


def _without_curve(tuned: Tuned) -> dict[str, Any]:
    """All but the curve, of which only what came back of a teacher."""
    from dataclasses import asdict

    found = {name: value for name, value in tuned.to_json().items() if name != "curve"}
    if points := _points(tuned):
        found["recovery"] = [asdict(point) for point in points]
    return found


def _main(name: str) -> bool:
    """Whether a metric is shown: parts of SQuAD's scores, counts and thresholds are not."""
    parts = ("has_answer", "no_answer", "total", "threshold")
    return not any(part in name for part in parts)


def _table(tuned: Tuned) -> Table:
    from rich.table import Table

    every = dict.fromkeys(name for found in tuned.metrics.values() for name in found)
    names = [name for name in every if _main(name)]
    table = Table("split", box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right")
    for split, found in tuned.metrics.items():
        table.add_row(split, *(f"{found[n]:.4f}" if n in found else "" for n in names))
    return table


def _recovery(tuned: Tuned) -> Iterator[Table]:
    """What came back of the teacher, with a bar for each evaluation."""
    from restack.tune.healing import recovery_table

    if (points := _points(tuned)) and tuned.teacher is not None:
        metric = tuned.metric or ""
        own = tuned.teacher["metrics"].get(next(iter(tuned.metrics)), {})
        yield recovery_table(points, metric, own.get(metric))


def _points(tuned: Tuned) -> tuple[Point, ...]:
    from restack.tune.healing import recovery

    return recovery(tuned, tuned.metric) if tuned.teacher and tuned.metric else ()


def _summary(tuned: Tuned, out: Path) -> Iterator[str]:
    if tuned.metrics:
        yield f"of the weights of step {tuned.best_step:,} of {tuned.steps:,}"
    pace = output.number(tuned.examples_per_second)
    yield (
        f"{output.number(tuned.parameters)} parameters, {output.number(tuned.trained)} trained in "
        f"{tuned.seconds.get('train', 0.0):.1f} s, {pace} examples/s"
    )
    yield f"written to {out}"
