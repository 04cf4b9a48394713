"""One split of a task in memory: its texts, its labels as codes, and what part of it this is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from restack.data.cache import fingerprint
from restack.data.glue import TASKS
from restack.data.tables import Table, made_table, read_hub, read_table
from restack.data.tasks import Task, label_name, label_parts
from restack.data.texts import Text, pick_split
from restack.errors import DataError

_UNREAD = "labels not read"


@dataclass(frozen=True, slots=True)
class Split:
    """Examples of one task. All sequences are of one length."""

    task: Task
    name: str
    texts: Sequence[Text]
    labels: Sequence[Any]
    """By kind: int; float; tuple of ints; SQuAD's answers as `{"text", "answer_start"}`; None."""
    ids: Sequence[str | int]
    """SQuAD's ids, else the number of the row in its source."""
    fingerprint: str
    partial: str | None = None
    """What part of the official split this is, where it is not all of it."""

    @property
    def lacks_labels(self) -> bool:
        """Whether the task has labels, and these examples have none."""
        return self.task.kind not in ("lm", "mlm") and any(label is None for label in self.labels)

    def __len__(self) -> int:
        return len(self.texts)

    def __str__(self) -> str:
        note = f" ({self.partial})" if self.partial else ""
        return f"{self.task.name}/{self.name}{note}"


def load_split(
    task: Task,
    split: str,
    data: str | Path | None = None,
    *,
    limit: int | None = None,
    seed: int | None = None,
    labelled: bool = True,
) -> Split:
    """Load and check a split: from the Hub, or from `data`.

    `data` is a directory with `<task>/<split>.parquet` or `<split>.parquet` (or .jsonl, .csv), or
    one file. `split` is `train`, `validation`, `test` or the name of a file without its ending.
    `limit` keeps the first so many rows, with `seed` a random draw of so many. Labels that are not
    read (`labelled`) need not be there; they are None then.
    """
    split = _first_split(task, split)
    table = _read(task, split, data)
    columns = [table.strings(name) for name in task.columns]
    texts: list[Text] = list(columns[0] if len(columns) == 1 else zip(*columns, strict=True))
    rows = list(range(len(texts)))
    values: list[Any] = [None] * len(texts)
    if task.label is not None and labelled:
        values = table.values(task.label)
    if task.skip is not None:
        rows = [row for row in rows if values[row] != task.skip]
    if not rows:
        raise DataError(f"{table.where} has no labelled row")
    labels = [None] * len(rows)
    if labelled:
        labels = _coded(task, [(row, values[row]) for row in rows], table)
    texts = [texts[row] for row in rows]
    named = task.kind == "span" and "id" in table.columns
    loaded = Split(
        task,
        split,
        texts,
        labels,
        table.strings("id") if named else rows,
        fingerprint(texts, labels),
        ", ".join(filter(None, [_part(task, split, len(rows)), None if labelled else _UNREAD]))
        or None,
    )
    if limit is None or limit >= len(loaded):
        return loaded
    if limit < 1:
        raise DataError(f"a limit of {limit} leaves no example", hint="Give a limit of 1 or more.")
    if seed is not None:
        return subsample(loaded, limit, seed)
    return take(loaded, range(limit), f"the first {limit:,} of {len(loaded):,} rows")


def subsample(split: Split, n: int, seed: int) -> Split:
    """A random draw of `n` examples without repeats, in their order; the same for the same seed."""
    if not 1 <= n <= len(split):
        raise DataError(f"{split}: cannot draw {n:,} of {len(split):,} examples")
    rows = np.sort(np.argsort(np.random.PCG64(seed).random_raw(len(split)), kind="stable")[:n])
    return take(split, rows.tolist(), f"{n:,} of {len(split):,} rows drawn with seed {seed}")


def parted(split: Split, part: float, seed: int) -> tuple[Split, Split]:
    """Two splits of one: a random draw of the `part`, held out, and before it all the others."""
    held = round(len(split) * part)
    if not 0 < held < len(split):
        raise DataError(
            f"{split}: of {len(split):,} examples {part:g} cannot be held out",
            hint="Give more examples, or a directory with files of their own to train and to "
            "evaluate on (train, validation).",
        )
    order = np.argsort(np.random.PCG64(seed).random_raw(len(split)), kind="stable")
    kept, drawn = (np.sort(rows).tolist() for rows in (order[held:], order[:held]))
    note = f"of {len(split):,} rows, parted with seed {seed}"
    return (
        take(split, kept, f"{len(kept):,} {note}"),
        take(split, drawn, f"{len(drawn):,} held out {note}"),
    )


def check_classes(split: Split) -> None:
    """Refuse a split to train on in which all examples have one label."""
    if split.lacks_labels:
        return
    if split.task.kind == "classification" and len(set(split.labels)) < 2:
        only = split.task.labels[split.labels[0]]
        raise DataError(
            f"{split}: all {len(split):,} examples have the label {only!r}",
            hint="Training needs examples of at least two labels; take more, or another seed.",
        )


def take(split: Split, rows: Sequence[int], note: str) -> Split:
    """The examples at these places; `note` says what part they are."""
    texts = [split.texts[row] for row in rows]
    labels = [split.labels[row] for row in rows]
    return replace(
        split,
        texts=texts,
        labels=labels,
        ids=[split.ids[row] for row in rows],
        fingerprint=fingerprint(texts, labels),
        partial=", ".join(filter(None, [split.partial, note])),
    )


def _part(task: Task, split: str, rows: int) -> str | None:
    """What is to be said about a split that is not the official one."""
    if not task.sizes:
        return None
    official = task.sizes.get(split)
    if official is None:
        return f"{rows:,} rows, no official split"
    return None if rows == official else f"{rows:,} rows, official {official:,}"


def _coded(task: Task, values: list[tuple[int, Any]], table: Table) -> list[Any]:
    """The labels as codes; the error names the row and the value."""
    if task.label is None:
        return [None] * len(values)
    if all(value in (None, -1) for _, value in values):
        raise DataError(
            f"{table.where}: the labels of this split are hidden or missing",
            hint="The test labels of GLUE are not published; use a validation split.",
        )
    code = _coder(task)
    coded = []
    for row, value in values:
        try:
            coded.append(code(value))
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"{table.where}, column {task.label!r}, row {row} (counted from 0): found "
                f"{str(value)[:80]!r}, expected {_expected(task)}",
                hint="Mend or remove the row, or define the task with the right labels.",
            ) from error
    return coded


def _expected(task: Task) -> str:
    if task.kind == "regression":
        return "a finite number"
    if task.label == "answers":
        return "answers with a list `text` and a list `answer_start` of equal length"
    return f"{'any' if task.kind == 'multilabel' else 'one'} of {', '.join(task.labels)}"


def _coder(task: Task) -> Callable[[Any], Any]:
    places = {name: place for place, name in enumerate(task.labels)}
    # With labels such as 1 to 5 a number is always a name: 0 must not pass as the first of them.
    by_code = not any(name.lstrip("-").isdigit() for name in places)

    def one(value: Any) -> int:
        """A label by its name, or else by its code."""
        name = label_name(value)
        if name in places:
            return places[name]
        if by_code and not isinstance(value, str) and 0 <= int(name) < len(places):
            return int(name)
        raise ValueError(value)

    def number(value: Any) -> float:
        if isinstance(value, bool) or not math.isfinite(float(value)):
            raise ValueError(value)
        return float(value)

    def answers(value: Any) -> dict[str, list[Any]]:
        text, start = list(value["text"]), list(value["answer_start"])
        if len(text) != len(start) or not all(isinstance(t, str) for t in text):
            raise ValueError(value)
        return {"text": text, "answer_start": [int(s) for s in start]}

    if task.kind == "regression":
        return number
    if task.kind == "multilabel":
        return lambda value: tuple(sorted({one(part) for part in label_parts(value)}))
    if task.kind == "span":
        return answers
    if task.label == "answers":  # SQuAD as a classification: is there an answer?
        return lambda value: int(bool(answers(value)["text"]))
    return one


def _first_split(task: Task, split: str) -> str:
    """The name of a split as the task has it: MNLI's `validation` is `validation_matched`."""
    known = {
        "train": task.train,
        "validation": task.validation[0],
        "test": (task.test or ("test",))[0],
    }
    return known.get(split, split)


def _read(task: Task, split: str, data: str | Path | None) -> Table:
    """The table of a split, from a file, a directory or the Hub."""
    place = data or task.data
    if place is None:
        if task.made is not None:
            return made_table(task.made, split)
        if task.hub is None:
            raise DataError(f"the task {task.name} is on no Hub", hint="Give its data directory.")
        table = read_hub(task.hub, task.config, split)
        renamed = dict(zip(task.hub_columns, task.columns, strict=False))
        return replace(table, columns={renamed.get(k, k): c for k, c in table.columns.items()})
    place = Path(place).expanduser()
    if place.is_file():
        if split != place.stem:
            raise DataError(
                f"{place} is one file, and the split {split!r} was asked for",
                hint=f"Ask for {place.stem!r}, or give a directory with {split}{place.suffix}.",
            )
        return read_table(place)
    if not place.is_dir():
        raise DataError(f"{place}: there is no such file or directory")
    folder = task.folder or task.name
    inside = place / folder
    # sst2 and cola have the same columns: the wrong folder would be read without a word
    if not inside.is_dir() and place.resolve().name in TASKS and place.resolve().name != folder:
        raise DataError(
            f"{place} holds the task {place.resolve().name}, not {task.name}",
            hint=f"Give the directory above it, or the one of {task.name}.",
        )
    return read_table(pick_split(inside if inside.is_dir() else place, split)[1])
