"""Kao et al.: the own head reads all layers, and repeating layers before fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from restack.plan import Plan, duplicate, repeat
from restack.studies.laying import Layout, drawn, examples_for, recipe_for
from restack.studies.scale import DUPLICATE, Duplicate, scale_of
from restack.studies.subjects import Subject
from restack.sweep.trial import Data, Trial

STUDY = "duplicate"
RULES = ("first", "last", "one")
ONE = 0
"""The layer that the rule `one` repeats; the paper does not say which it tried."""


def definition(
    subjects: Sequence[Subject],
    scale: str,
    data: Mapping[str, Data] | None = None,
    *,
    tasks: Sequence[str] | None = None,
    texts: Data | None = None,
    precision: str | None = None,
) -> list[Trial]:
    """All trials of the study. With `texts` and no task named, nothing is fine-tuned."""
    size = scale_of(DUPLICATE, scale)
    chosen = tuple(size.tasks) if tasks is None and texts is None else tuple(tasks or ())
    layout = Layout(STUDY, scale, data or {}, texts, precision)
    return [trial for subject in subjects for trial in _of_subject(layout, size, subject, chosen)]


def _of_subject(
    layout: Layout, size: Duplicate, subject: Subject, tasks: Sequence[str]
) -> Iterator[Trial]:
    if subject.head:
        yield from _untrained(layout, size, subject, tasks)
    for task in tasks:
        yield from _tuned(layout, size, subject, task)


def _untrained(
    layout: Layout, size: Duplicate, subject: Subject, tasks: Sequence[str]
) -> Iterator[Trial]:
    """The lens over all layers, and accuracy behind the last one as layers are repeated."""
    sources: list[tuple[str | None, Data]] = [(t, _texts_of(layout, size, t)) for t in tasks]
    if layout.texts is not None:
        sources = [(None, replace(layout.texts, limit=size.texts))]
    for task, data in sources:
        labels = layout.labels(subject, "lens", when="pretrained")
        yield layout.look("lens", subject, {"decode": 1}, labels, task=task, data=data)
        curves = {rule: curve(subject, rule, size.longest) for rule in rules_of(subject)}
        plans = list(dict.fromkeys(str(plan) for plans in curves.values() for plan in plans))
        labels = layout.labels(subject, "untrained")
        settings = {"plans": plans, "read": "tokens"}
        yield layout.look("plans", subject, settings, labels, task=task, data=data)


def rules_of(subject: Subject) -> tuple[str, ...]:
    """A shared layer is the same wherever it is repeated, so there is one rule for it."""
    return ("repeat",) if subject.shared else RULES


def curve(subject: Subject, rule: str, longest: int) -> list[Plan]:
    """The plans of a rule, from the untouched model on."""
    depth = subject.depth
    if rule == "repeat":
        return [repeat(depth, n) for n in range(depth, max(depth, longest) + 1)]
    return [deeper(subject, rule, added) for added in range(depth + 1)]


def deeper(subject: Subject, rule: str, added: int) -> Plan:
    """The plan that adds so many layers by a rule."""
    depth = subject.depth
    if added == 0:
        return Plan.identity(depth)
    if subject.shared:
        return repeat(depth, depth + added)
    if rule == "one":
        return duplicate(depth, {ONE: added + 1})
    return duplicate(depth, first=added) if rule == "first" else duplicate(depth, last=added)


def _texts_of(layout: Layout, size: Duplicate, task: str) -> Data:
    examples = replace(examples_for(size.tasks, task), validation=size.texts)
    return layout.of_task(task, examples)


def _added(size: Duplicate, subject: Subject) -> tuple[int, ...]:
    if isinstance(size.added, Mapping):
        return size.added.get(subject.named(STUDY) or "*", size.added["*"])
    return size.added


def _tuned(layout: Layout, size: Duplicate, subject: Subject, task: str) -> Iterator[Trial]:
    """Fine-tuning at several depths, what it does to the lens, and ensembles."""
    examples = examples_for(size.tasks, task)
    data = layout.of_task(task, examples)
    recipe = recipe_for(size.recipes, task)

    def trial(part: str, rule: str, added: int, seed: int, keep: tuple[str, ...] = ()) -> Trial:
        return layout.tune(
            subject,
            task,
            drawn(examples, data, seed),
            recipe,
            layout.labels(subject, part, rule=rule, added=added),
            plan=deeper(subject, rule, added),
            seed=seed,
            keep=keep,
        )

    keep = ("model",) if subject.head else ()
    whole = [trial("depths", "first", 0, s, () if s else keep) for s in range(size.baselines)]
    fits = [added for added in _added(size, subject) if subject.shared or added <= subject.depth]
    more = [trial("depths", "first", added, s) for added in fits for s in range(size.seeds)]
    yield from (*whole, *more)
    if size.compared is not None and not subject.shared and size.compared <= subject.depth:
        yield from (
            trial("rules", rule, size.compared, seed)
            for rule in RULES
            for seed in range(size.seeds)
        )
    if subject.head:
        yield layout.look(
            "lens",
            subject,
            {},
            layout.labels(subject, "lens", when="fine-tuned"),
            task=task,
            data=_texts_of(layout, size, task),
            inputs=[whole[0].key],
        )
    yield from _ensembles(layout, subject, task, data, whole, more)


def _ensembles(
    layout: Layout,
    subject: Subject,
    task: str,
    data: Data,
    whole: Sequence[Trial],
    more: Sequence[Trial],
) -> Iterator[Trial]:
    """The three untouched models together, and the deeper ones: the best three, and all."""
    once = [trial for trial in more if trial.seed == 0]
    groups: list[tuple[str, Sequence[Trial], int | None]] = [("baseline", whole, None)]
    groups.append(("deeper", once, None))
    if len(once) > 3:
        groups[1:1] = [("best deeper", once, 3)]
    for name, members, best in groups:
        if len(members) > 1:
            yield layout.look(
                "ensemble",
                subject,
                {"best": best, "against": [] if name == "baseline" else [t.key for t in whole]},
                layout.labels(subject, "ensemble", members=name),
                task=task,
                data=data,
                inputs=[t.key for t in (*members, *(() if name == "baseline" else whole))],
            )
