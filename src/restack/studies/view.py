"""The rows of one model in one study, as claims and figures ask for them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from restack.data.glue import TASKS
from restack.plan import Plan
from restack.stats import Difference, Mean, mean_interval, paired_difference
from restack.sweep.rows import Row, matches

UNLEARNED = "unlearned"
"""The status, in `View.learned`, of trials of a task that the untouched model has not learned."""


class Unmeasured(Exception):
    """What a claim needs has not been measured; says what."""


class Unfit(Exception):
    """The claim does not apply to this model; says why."""


@dataclass(frozen=True, slots=True)
class View:
    """All trials of one model, finished or not."""

    subject: str
    rows: tuple[Row, ...]
    others: tuple[View, ...] = ()
    """The other models of the study."""

    @property
    def labels(self) -> dict[str, Any]:
        """What all trials of the model say of it: `layers`, `shared`, `head`, `published`."""
        return dict(self.rows[0].labels)

    @property
    def depth(self) -> int:
        return int(self.labels["layers"])

    @property
    def published(self) -> str | None:
        """Its name in the tables of the paper."""
        return self.labels.get("published")

    def where(self, part: str, **labels: Any) -> list[Row]:
        """The finished trials of a part that have these values."""
        return [r for r in self.rows if matches(r, {"part": part, "status": "done", **labels})]

    def need(self, part: str, what: str, **labels: Any) -> list[Row]:
        """The same, or `Unmeasured` if there are none."""
        found = self.where(part, **labels)
        if not found:
            planned = [r for r in self.rows if matches(r, {"part": part, **labels})]
            if any(r.status == UNLEARNED for r in planned):
                raise Unmeasured(f"{what}: the untouched model learned nothing")
            failed = [r.error for r in planned if r.status == "failed"]
            if failed:
                raise Unmeasured(f"{what}: all trials failed ({failed[0]})")
            if planned:
                raise Unmeasured(f"{what}: none of {len(planned)} trials is finished")
            raise Unmeasured(f"{what}: not measured at this scale")
        return found

    def unlearned(self) -> list[str]:
        """The tasks of which no untouched model learned anything: each answers all alike."""
        whole = str(Plan.identity(self.depth))
        by_task: dict[str, list[bool]] = {}
        for row in self.rows:
            if row.status == "done" and row.trial.plan == whole and row.trial.kind == "tune":
                by_task.setdefault(str(row.trial.task), []).append(_constant(row))
        return [task for task, found in by_task.items() if all(found)]

    def learned(self) -> View:
        """The same without what comes of those tasks: to compare is to compare nothing there."""
        tasks = self.unlearned()
        rows = (
            replace(row, status=UNLEARNED)
            if row.trial.kind in ("tune", "ensemble") and row.trial.task in tasks
            else row
            for row in self.rows
        )
        return replace(self, rows=tuple(rows)) if tasks else self

    def values_of(self, part: str, label: str, **labels: Any) -> list[Any]:
        """The different values of a label or field among finished trials, in order."""
        from restack.sweep.rows import value_of

        found = {value_of(row, label) for row in self.where(part, **labels)} - {None}
        return sorted(found)

    def tasks(self, part: str, **labels: Any) -> list[str]:
        """The tasks of a part, in the order in which they were laid out."""
        return list(
            dict.fromkeys(str(r.trial.task) for r in self.where(part, **labels) if r.trial.task)
        )


def _constant(row: Row) -> bool:
    """Whether a model gives one answer to all examples, where its metrics tell."""
    values = {name: value for split in row.metrics.values() for name, value in split.items()}
    nothing = values.get("no_answer_exact") == 1.0 and values.get("has_answer_exact") == 0.0
    return nothing or values.get("matthews") == 0.0


def views(rows: Iterable[Row]) -> tuple[View, ...]:
    """A view of each model, in the order of the trials."""
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(str(row.labels.get("subject")), []).append(row)
    alone = [View(name, tuple(found)) for name, found in by_name.items()]
    return tuple(
        View(one.subject, one.rows, tuple(other for other in alone if other is not one))
        for one in alone
    )


def metric_of(task: str | None) -> str:
    """The name of the metric that sums a task up."""
    known = TASKS.get(task or "")
    return known.metrics[0] if known else "accuracy"


def score(row: Row) -> float:
    """The score of a trial: the first metric of its task, as a fraction."""
    return row.metric(metric_of(row.trial.task))


def scores(rows: Iterable[Row]) -> list[float]:
    """The scores of some trials."""
    return [score(row) for row in rows]


def mean_of(rows: Sequence[Row]) -> Mean:
    """Their mean and its interval."""
    return mean_interval(scores(rows))


def runs(rows: Iterable[Row]) -> dict[tuple[str, int], float]:
    """Scores by task and seed: trials of one place have the same data and the same order."""
    found: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        found.setdefault((str(row.trial.task), row.trial.seed), []).append(score(row))
    return {place: statistics.fmean(values) for place, values in found.items()}


def difference(first: Iterable[Row], second: Iterable[Row], what: str = "") -> Difference:
    """How much the first trials score above the second ones, pair by pair of task and seed."""
    one, two = runs(first), runs(second)
    places = sorted(set(one) & set(two))
    if not places:
        raise Unmeasured(f"{what or 'a comparison'}: no two trials share a task and a seed")
    return paired_difference([one[p] for p in places], [two[p] for p in places])


def task_means(rows: Iterable[Row]) -> dict[str, Mean]:
    """The mean score of each task."""
    by_task: dict[str, list[float]] = {}
    for row in rows:
        by_task.setdefault(str(row.trial.task), []).append(score(row))
    return {task: mean_interval(values) for task, values in by_task.items()}


def average(rows: Iterable[Row]) -> Mean | None:
    """The average over tasks, its interval from the averages of each seed over all tasks."""
    found = runs(rows)
    tasks = {task for task, _ in found}
    seeds = {seed for _, seed in found}
    full = [
        statistics.fmean(found[task, seed] for task in tasks)
        for seed in sorted(seeds)
        if all((task, seed) in found for task in tasks)
    ]
    return mean_interval(full) if full else None


def in_order(rows: Iterable[Row], label: str) -> Iterator[tuple[Any, list[Row]]]:
    """The rows by a label, its values in order."""
    by_value: dict[Any, list[Row]] = {}
    for row in rows:
        by_value.setdefault(row.labels.get(label), []).append(row)
    for value in sorted(by_value):
        yield value, by_value[value]
