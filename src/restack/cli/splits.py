"""The splits that the options of `tune` name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from restack.errors import RestackError

if TYPE_CHECKING:
    from restack.data import Split

_HELD_OUT = 0.1  # of data without a validation split


def named_splits(
    name: str,
    data: str | None,
    column: str | None,
    label: str | None,
    kind: str | None,
    train_split: str,
    eval_splits: list[str],
    limit: int | None,
    eval_limit: int | None,
    *,
    labelled: bool = True,
) -> tuple[Split, dict[str, Split]]:
    """What to train on, and what to score on by name."""
    from restack.data import load_split, parted, subsample
    from restack.data.tables import split_files

    task, data = _task(name, data, column, label, kind)
    place = Path(data or task.data or "").expanduser()
    if not labelled and (place.is_file() or task.label is None):
        raise RestackError(
            "--unlabelled is about the training split of a task that has labels",
            hint="Give a directory with --data, and the split of texts with --train-split.",
        )
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
        train = load_split(task, train_split, data, labelled=labelled)
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
    from restack.data.tables import READERS

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
    if Path(name).suffix in READERS:
        raise RestackError(f"--task {name}: there is no such file")
    if kind in ("lm", "mlm"):
        return _named_texts(name, kind, column), None
    task = get_task(name)
    if kind is not None and kind != task.kind:
        raise RestackError(f"the task {task.name} is a {task.kind}", hint="Leave --kind out.")
    if column is not None:
        columns = tuple(column.split(","))
        if task.kind == "span" and len(columns) != 2:
            raise RestackError(
                f"{task.name} reads two columns, and --column names {column!r}",
                hint="Name the questions, then the contexts: question,context.",
            )
        task = replace(task, columns=columns)
    return (task if label is None else replace(task, label=label)), data


def _named_texts(name: str, kind: str, column: str | None) -> Any:
    """Language modelling on texts of the Hub, or of the demo language."""
    from restack.data import Task
    from restack.data.language import SIZES
    from restack.data.tasks import DEFAULT_METRICS
    from restack.data.texts import MADE

    hub, _, config = name.partition(":")
    made = MADE.get(name)
    return Task(
        name if made else hub.rpartition("/")[2],
        kind,  # type: ignore[arg-type]
        tuple((column or "text").split(",")),
        None,
        metrics=DEFAULT_METRICS[kind],  # type: ignore[index]
        hub=None if made else hub,
        config=config or None,
        sizes=SIZES if made else {},
        made=made,
    )
