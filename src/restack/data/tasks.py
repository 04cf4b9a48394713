"""What a task is: its texts, its labels, its metrics and where its data are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from restack.data.tables import read_table
from restack.data.texts import choose_columns, pick_split
from restack.errors import DataError

Kind = Literal["classification", "regression", "multilabel", "span", "lm", "mlm"]


@dataclass(frozen=True, slots=True)
class Task:
    """One task. The first metric picks the best checkpoint."""

    name: str
    kind: Kind
    columns: tuple[str, ...]
    """One or two columns of text, in the order in which a model reads them."""
    label: str | None
    labels: tuple[str, ...] = ()
    """The names of the labels; the code of a label is its place here."""
    metrics: tuple[str, ...] = ("accuracy",)
    hub: str | None = None
    config: str | None = None
    hub_columns: tuple[str, ...] = ()
    """What the Hub's copy calls the columns, where it differs."""
    train: str = "train"
    validation: tuple[str, ...] = ("validation",)
    test: tuple[str, ...] = ("test",)
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Rows of the official splits, without those that have no label."""
    skip: int | None = None
    """A label code that marks rows to leave out (SNLI: annotators did not agree)."""
    folder: str | None = None
    """The directory that holds the task's files, where it is not called as the task."""
    data: str | None = None
    """The file or directory that a task of one's own was defined by."""
    made: str | None = None
    """What of the demo language its rows are made by, where they are not read."""

    @property
    def outputs(self) -> int:
        """How many numbers a head for this task gives: one a label, one, or start and end."""
        return {"regression": 1, "span": 2}.get(self.kind, len(self.labels))

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        columns: str | Sequence[str] | None = None,
        label: str | None = None,
        kind: Kind | None = None,
        labels: Sequence[str] = (),
    ) -> Task:
        """A task of one's own, from a labelled file or a directory with `train` and others.

        Without `kind` the values of the label column tell: fractions make a regression, lists
        multi-label (in CSV `a;b`, to be named by `kind`), and all else a classification.
        Without `labels` they are the values that occur, in order; those of `train` if it is a
        directory. For language modelling give `kind` as `lm` or `mlm` and no label.
        """
        place = Path(path).expanduser()
        if not place.exists():
            raise DataError(f"{path}: there is no such file or directory")
        table = read_table(pick_split(place, "train")[1] if place.is_dir() else place)
        if label is None and kind not in ("lm", "mlm"):
            raise DataError(
                f"{table.where}: which column holds the labels? "
                f"Columns: {', '.join(table.columns)}",
                hint="Name the label column, or give the kind 'lm' or 'mlm'.",
            )
        if label is not None:
            values = table.values(label)
            kind = kind or _kind_of(values)
            labels = labels or _names_of(values, kind, table.where)
            if kind == "classification" and len(labels) < 2:
                found = f"all rows have the label {labels[0]!r}" if labels else "there is no label"
                raise DataError(
                    f"{table.where}, column {label!r}: {found}",
                    hint="A classification needs two; name the labels if some do not occur here.",
                )
            others = {name: c for name, c in table.columns.items() if name != label}
            table = replace(table, columns=others)
        assert kind is not None
        return cls(
            place.stem,
            kind,
            choose_columns(table, columns),
            label,
            tuple(labels),
            DEFAULT_METRICS[kind],
            data=str(place),
        )


DEFAULT_METRICS: dict[Kind, tuple[str, ...]] = {
    "classification": ("accuracy", "f1_macro", "matthews"),
    "regression": ("pearson", "spearman"),
    "multilabel": ("f1_micro", "f1_macro", "accuracy"),
    "span": ("f1", "exact"),
    "lm": ("perplexity",),
    "mlm": ("perplexity",),
}
"""Metrics of a task of one's own, by kind."""


def label_parts(value: Any) -> list[Any]:
    """The labels in one cell of a multi-label column: a list, or `a;b` as CSV must write it."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(";") if part.strip()]
    return list(value) if isinstance(value, list) else [value]


def _kind_of(values: list[Any]) -> Kind:
    present = [value for value in values if value is not None]
    if any(isinstance(value, list) for value in present):
        return "multilabel"
    if any(isinstance(value, float) and not value.is_integer() for value in present):
        return "regression"
    return "classification"


def _names_of(values: list[Any], kind: Kind, where: str) -> tuple[str, ...]:
    """The labels that occur, if the kind has such; numbers in order of size, text by letter."""
    if kind not in ("classification", "multilabel"):
        return ()
    seen: set[Any] = set()
    for value in values:
        if value is not None:
            seen.update(label_parts(value) if kind == "multilabel" else [value])
    try:
        return tuple(label_name(value) for value in sorted(seen))
    except TypeError as error:
        raise DataError(
            f"{where}: labels of different types: {', '.join(map(repr, seen))}",
            hint="Write all labels as text, or all as numbers.",
        ) from error


def label_name(value: Any) -> str:
    """A label as text: 1 for 1, 1.0 and True alike."""
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    return str(value)
