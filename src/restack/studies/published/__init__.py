"""The numbers of the three papers' tables, as facts to stand beside what is measured.

The files keep the numbers as printed, in percent where the paper has percent, and its oddities; a
`note` says where a paper contradicts itself. The rows read from them have fractions, as all scores
of this project have, and layers counted from 0.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

Record = dict[str, str]


@dataclass(frozen=True, slots=True)
class Score:
    """One score of one model on one task."""

    model: str
    """As the paper calls it."""
    change: int
    """Top layers dropped, or the depth after duplicating; 0 where the model's name says it."""
    task: str
    metric: str
    """"" where the paper names none."""
    value: float
    """A fraction."""
    note: str


@dataclass(frozen=True, slots=True)
class LayersWithin:
    """How many layers could go from a model on a task at a loss of at most `points`."""

    model: str
    points: int
    task: str
    layers: int


@dataclass(frozen=True, slots=True)
class Size:
    """What dropping the top layers costs and saves."""

    model: str
    dropped: int
    loss: float
    """Of the mean score, as a fraction."""
    parameters: int
    finetune_speedup: float
    inference_time_saved: float | None
    """A fraction; none for the untouched model."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """The layers that contribute too little at a threshold, counted from 0."""

    model: str
    threshold: float
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model by its sizes."""

    model: str
    layers: int
    hidden: int
    heads: int


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The score of summed probabilities; `members` as the paper writes them."""

    model: str
    members: str
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class TaskPair:
    """How alike permutations of layers do on two tasks."""

    first: str
    second: str
    spearman: float
    spearman_p: float
    pearson: float
    pearson_p: float
    n: int


@dataclass(frozen=True, slots=True)
class TaskSize:
    """The data of a task, as printed (k: thousands)."""

    task: str
    train: str
    validation: str
    metric: str
    note: str


def source(table: str) -> str:
    """Paper and place of a table, for instance of `drop_table3_size_and_speed`."""
    return _read(table)[0]


def tables() -> tuple[str, ...]:
    """The names of all tables."""
    names = (item.name for item in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(".csv") for name in names if name.endswith(".csv")))


def records(table: str) -> tuple[Record, ...]:
    """The rows of a table as they are printed, by the names of its columns."""
    return _read(table)[1]


def drop_scores() -> tuple[Score, ...]:
    """Top layers dropped, by model, number and task (Sajjad et al., tables 1 and 6)."""
    return tuple(
        Score(
            row["model"],
            int(row["dropped_top_layers"]),
            row["task"],
            "",
            _fraction(row["score"]),
            row["note"],
        )
        for row in records("drop_table1_top_layers")
    )


def drop_layers_within() -> tuple[LayersWithin, ...]:
    """Layers that can go within 1, 2 and 3 points (Sajjad et al., table 2)."""
    return tuple(
        LayersWithin(row["model"], int(row["max_loss_points"]), task, int(row[task]))
        for row in records("drop_table2_layers_dropped_within_loss")
        for task in _others(row, "model", "max_loss_points")
    )


def drop_sizes() -> tuple[Size, ...]:
    """Size and speed (Sajjad et al., table 3)."""
    return tuple(
        Size(
            row["model"],
            int(row["dropped_top_layers"]),
            _fraction(row["avg_loss_points"]),
            int(row["params_millions"]) * 1_000_000,
            float(row["finetune_speedup"]),
            _fraction(saved) if (saved := row["inference_time_reduction_percent"]) else None,
        )
        for row in records("drop_table3_size_and_speed")
    )


def drop_comparable() -> tuple[Score, ...]:
    """Models of about the size of DistilBERT (Sajjad et al., table 4)."""
    return tuple(_by_task("drop_table4_comparable_sizes"))


def drop_from_finetuned() -> tuple[Score, ...]:
    """Dropped from the pretrained and from a fine-tuned (-FT-) model (Sajjad et al., table 5)."""
    return tuple(_by_task("drop_table5_from_finetuned"))


def drop_contributions() -> tuple[Contribution, ...]:
    """The layers that the contribution strategy chose (Sajjad et al., in the text)."""
    return tuple(
        Contribution(
            row["model"],
            float(row["threshold"]),
            tuple(int(layer) - 1 for layer in row["layers_dropped_1based"].split()),
        )
        for row in records("drop_contribution_choices")
    )


def duplicate_models() -> tuple[ModelShape, ...]:
    """The models of Kao et al., table 1."""
    return tuple(
        ModelShape(row["model"], *(int(row[name]) for name in ("layers", "hidden", "heads")))
        for row in records("duplicate_table1_models")
    )


def duplicate_scores() -> tuple[Score, ...]:
    """Single models of some depths; the shallowest of each is the mean of three baselines."""
    return tuple(
        Score(row["model"], int(row["layers"]), *_task(column), _fraction(row[column]), note)
        for row in records("duplicate_tables3_4_single_models")
        for column in _others(row, "model", "layers")
        if row[column]
        for note in [row["note"] if row["note"].startswith(column) else ""]
    )


def duplicate_ensembles() -> tuple[Ensemble, ...]:
    """Ensembles of baselines and of depths on SQuAD 2.0 (Kao et al., tables 5 and 6)."""
    return tuple(
        Ensemble(row["model"], row["members"], _task(column)[1], _fraction(row[column]))
        for row in records("duplicate_tables5_6_ensembles")
        for column in _others(row, "model", "members")
    )


def reinit_correlations() -> tuple[TaskPair, ...]:
    """Permutations of layers between tasks (Tamkin et al., table 1)."""
    found = []
    for row in records("reinit_table1_permutation_correlation"):
        first, second = row["tasks"].split()
        rho, rho_p, r, r_p = (float(row[name]) for name in list(row)[1:5])
        found.append(TaskPair(first, second, rho, rho_p, r, r_p, int(row["n"])))
    return tuple(found)


def reinit_tasks() -> tuple[TaskSize, ...]:
    """The tasks of Tamkin et al., table 2."""
    return tuple(TaskSize(**row) for row in records("reinit_table2_tasks"))


TYPED: dict[str, Callable[[], tuple[object, ...]]] = {
    "drop_contribution_choices": drop_contributions,
    "drop_table1_top_layers": drop_scores,
    "drop_table2_layers_dropped_within_loss": drop_layers_within,
    "drop_table3_size_and_speed": drop_sizes,
    "drop_table4_comparable_sizes": drop_comparable,
    "drop_table5_from_finetuned": drop_from_finetuned,
    "duplicate_table1_models": duplicate_models,
    "duplicate_tables3_4_single_models": duplicate_scores,
    "duplicate_tables5_6_ensembles": duplicate_ensembles,
    "reinit_table1_permutation_correlation": reinit_correlations,
    "reinit_table2_tasks": reinit_tasks,
}
"""The reader of each table."""


@cache
def _read(table: str) -> tuple[str, tuple[Record, ...]]:
    first, _, rest = (files(__name__) / f"{table}.csv").read_text("utf-8").partition("\n")
    return first.removeprefix("# "), tuple(csv.DictReader(rest.splitlines()))


def _by_task(table: str) -> Iterator[Score]:
    for row in records(table):
        for task in _others(row, "model"):
            note = row["note"] if row["note"].startswith(task) else ""
            yield Score(row["model"], 0, task, "", _fraction(row[task]), note)


def _others(row: Record, *names: str) -> list[str]:
    return [name for name in row if name not in (*names, "note")]


def _task(column: str) -> tuple[str, str]:
    """SQuAD2 EM -> task and metric."""
    task, _, metric = column.partition(" ")
    return task, {"EM": "exact", "F1": "f1", "acc": "accuracy"}[metric]


def _fraction(percent: str) -> float:
    return round(float(percent) / 100, 6)  # 92.43 / 100 is a hair off
