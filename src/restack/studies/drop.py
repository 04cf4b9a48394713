"""Sajjad et al.: six ways to leave layers out before fine-tuning, and what that costs and saves."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from restack.errors import PlanError
from restack.plan import Plan, drop, drop_by_score
from restack.studies.laying import Layout, drawn, examples_for, recipe_for
from restack.studies.scale import DROP, Drop, Examples, scale_of
from restack.studies.subjects import Subject
from restack.sweep.rows import Row
from restack.sweep.trial import Data, Model, Trial

STUDY = "drop"
STRATEGIES = ("top", "even", "odd", "symmetric", "bottom")
"""Those that need no measurement; the sixth is `contribution`."""


def definition(
    subjects: Sequence[Subject],
    scale: str,
    data: Mapping[str, Data] | None = None,
    *,
    tasks: Sequence[str] | None = None,
    precision: str | None = None,
    rows: Sequence[Row] = (),
) -> list[Trial]:
    """All trials that can be laid out so far.

    Which layers contribute least is measured first, so the trials of that strategy are there only
    when `rows` hold the measurements.
    """
    size = scale_of(DROP, scale)
    chosen = tuple(tasks or size.tasks)
    layout = Layout(STUDY, scale, data or {}, precision=precision)
    return [
        trial for subject in subjects for trial in _of_subject(layout, size, subject, chosen, rows)
    ]


def counts(depth: int) -> tuple[int, ...]:
    """How many layers are dropped: a sixth, a third and a half.

    >>> counts(12), counts(6), counts(24)
    ((2, 4, 6), (1, 2, 3), (4, 8, 12))
    """
    return tuple(sorted({max(1, round(depth * part / 6)) for part in (1, 2, 3)} - {depth}))


def strategies(depth: int, count: int) -> dict[str, Plan]:
    """The plans that drop so many layers; those that do not exist for this depth are not there.

    >>> {name: str(plan) for name, plan in strategies(6, 1).items()}
    {'top': '0-4', 'even': '0-4', 'odd': '0-3,5', 'bottom': '1-5'}
    """
    plans = {}
    for name in STRATEGIES:
        try:
            plans[name] = Plan.parse(f"drop:{name}={count}", depth)
        except PlanError:  # 2X + K = L has no solution, or there are fewer even layers
            continue
    return plans


def contributions(rows: Sequence[Row], measured: Sequence[Trial]) -> list[float] | None:
    """How alike the class token is before and after each layer, over all tasks of the study.

    None until all of the measurements are done.
    """
    wanted = {trial.key for trial in measured}
    found = {row.key: row for row in rows if row.key in wanted and row.status == "done"}
    if len(found) < len(wanted):
        return None
    # the same for every task: the paper drops the same layers on all of them
    columns = [[layer["cls_cosine"] for layer in row.payload["layers"]] for row in found.values()]
    return [statistics.fmean(values) for values in zip(*columns, strict=True)]


def by_contribution(scores: Sequence[float], thresholds: Sequence[float]) -> dict[float, Plan]:
    """The plan of each threshold; none for those that would leave out no layer or over half.

    >>> found = by_contribution([0.5, 0.96, 0.7, 0.93], (0.95, 0.925, 0.4))
    >>> {threshold: str(plan) for threshold, plan in found.items()}
    {0.95: '0,2-3', 0.925: '0,2'}
    """
    found = {}
    for threshold in thresholds:
        above = sum(score > threshold for score in scores)
        if 0 < above <= len(scores) / 2:
            found[threshold] = drop_by_score(len(scores), scores, above=threshold)
    return found


def _of_subject(
    layout: Layout, size: Drop, subject: Subject, tasks: Sequence[str], rows: Sequence[Row]
) -> Iterator[Trial]:
    depth = subject.depth
    half = counts(depth)[-1]
    plans = [("none", 0, "", Plan.identity(depth))]
    plans += [
        (name, count, "", plan)
        for count in counts(depth)
        for name, plan in strategies(depth, count).items()
    ]
    runs = [_Runs(layout, size, subject, task) for task in tasks]
    scores = contributions(rows, [run.contribution() for run in runs])
    if scores is not None:
        plans += [
            ("contribution", len(plan.gone), f"{threshold}", plan)
            for threshold, plan in by_contribution(scores, size.thresholds).items()
        ]
    for run in runs:
        task = run.task
        yield run.contribution()
        for name, count, threshold, plan in plans:
            labels = {"strategy": name, "k": count, "threshold": threshold}
            looked_at = name == "none" and task in size.looked
            yield from run.seeds("strategies", plan, labels, keep_first=looked_at)
        if task in size.every:
            for count in sorted({0, *counts(depth), *range(size.steps, depth, size.steps)}):
                plan = drop(depth, top=count) if count else Plan.identity(depth)
                yield from run.seeds("needed", plan, {"strategy": "top", "k": count})
        if task in size.looked:
            yield from run.looks(next(iter(run.seeds("strategies", plans[0][3], {}))))
        if task in size.again:
            yield from run.again(half)
        if task in size.iterative:
            yield from run.iterative(half)
    yield _cost(layout, size, subject)


def _cost(layout: Layout, size: Drop, subject: Subject) -> Trial:
    """Parameters, and the time of a training step and of inference (table 3)."""
    plans = [drop(subject.depth, top=count) for count in counts(subject.depth)]
    examples = Examples(validation=size.cost_rows)
    return layout.look(
        "cost",
        subject,
        {
            "plans": [str(Plan.identity(subject.depth)), *map(str, plans)],
            "batch_size": 32,
            "max_length": 128,
        },
        layout.labels(subject, "cost"),
        task=size.cost_task,
        data=layout.of_task(size.cost_task, examples),
    )


class _Runs:
    """The trials of one model on one task."""

    def __init__(self, layout: Layout, size: Drop, subject: Subject, task: str) -> None:
        self.layout, self.size, self.subject, self.task = layout, size, subject, task
        self.examples = examples_for(size.tasks, task)
        self.data = layout.of_task(task, self.examples)
        self.recipe = recipe_for(size.recipes, task)

    def contribution(self) -> Trial:
        return self.layout.look(
            "score",
            self.subject,
            {"measures": ["cls_cosine"]},
            self.layout.labels(self.subject, "contribution"),
            task=self.task,
            data=self.data,
        )

    def one(
        self,
        part: str,
        plan: Plan,
        labels: Mapping[str, object],
        seed: int,
        *,
        keep: bool = False,
        model: Model | None = None,
        **recipe: object,
    ) -> Trial:
        return self.layout.tune(
            self.subject,
            self.task,
            drawn(self.examples, self.data, seed),
            {**self.recipe, **recipe},
            self.layout.labels(self.subject, part, **labels),
            plan=plan,
            seed=seed,
            keep=("model",) if keep else (),
            model=model,
        )

    def seeds(
        self, part: str, plan: Plan, labels: Mapping[str, object], *, keep_first: bool = False
    ) -> Iterator[Trial]:
        for seed in range(self.size.seeds):
            yield self.one(part, plan, labels, seed, keep=keep_first and seed == 0)

    def looks(self, tuned: Trial) -> Iterator[Trial]:
        """A classifier on each layer of the fine-tuned model, and how far each layer has moved."""
        stack = self.subject.model.stack
        yield self.layout.look(
            "probe",
            self.subject,
            {"trials": 3, "pooling": "cls", "size": self.examples.train},
            self.layout.labels(self.subject, "classifiers"),
            task=self.task,
            data=self.data,
            model=Model.of_trial(tuned.key, stack=stack),
        )
        yield self.layout.look(
            "compare",
            self.subject,
            {},
            self.layout.labels(self.subject, "moved"),
            task=self.task,
            data=self.data,
            inputs=[tuned.key],
        )

    def again(self, count: int) -> Iterator[Trial]:
        """Fine-tune with the layers to drop frozen, drop them, fine-tune again (table 5)."""
        depth = self.subject.depth
        for seed in range(self.size.seeds):
            first = self.one(
                "again first",
                Plan.identity(depth),
                {"k": count},
                seed,
                keep=True,
                freeze=list(range(depth - count, depth)),
            )
            yield first
            made = Model.of_trial(first.key, stack=self.subject.model.stack)
            plan = drop(depth, top=count)
            yield self.one("again", plan, {"k": count}, seed, model=made)

    def iterative(self, count: int) -> Iterator[Trial]:
        """Two epochs, then one top layer less, until all are gone; two epochs at the end."""
        depth = self.subject.depth
        for seed in range(self.size.seeds):
            model: Model | None = None
            for gone in range(count + 1):
                before = depth - max(0, gone - 1)
                plan = drop(before, top=1) if gone else Plan.identity(depth)
                step = self.one(
                    "iterative" if gone == count else "iterative step",
                    plan,
                    {"k": gone},
                    seed,
                    keep=gone < count,
                    model=model,
                    epochs=2,
                )
                yield step
                model = Model.of_trial(step.key, stack=self.subject.model.stack)
