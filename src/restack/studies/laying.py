"""Laying out trials: what all studies say alike of their models, tasks, data and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from restack.plan import Plan
from restack.studies.scale import Examples
from restack.studies.subjects import Subject
from restack.sweep.trial import Data, Model, Trial


@dataclass(frozen=True, slots=True)
class Layout:
    """What a study is about and where its data are."""

    study: str
    scale: str
    data: Mapping[str, Data] = field(default_factory=dict)
    """The data of each task, with its fingerprint if that is known."""
    texts: Data | None = None
    """Texts for what needs no labels, instead of those of the tasks."""
    precision: str | None = None
    """The arithmetic of training, if it is not that of the recipe."""

    def labels(self, subject: Subject, part: str, **more: Any) -> dict[str, Any]:
        """What every trial is found by."""
        return {
            "study": self.study,
            "scale": self.scale,
            "subject": subject.name,
            "layers": subject.depth,
            "shared": subject.shared,
            "head": subject.head,
            "published": subject.named(self.study),
            "part": part,
            **more,
        }

    def of_task(self, task: str, examples: Examples) -> Data:
        """The data of a task, limited as the scale says."""
        return replace(self.data.get(task, Data()), limit=examples.validation)

    def tune(
        self,
        subject: Subject,
        task: str,
        data: Data,
        recipe: Mapping[str, Any],
        labels: Mapping[str, Any],
        *,
        plan: Plan | None = None,
        seed: int = 0,
        init: str | None = None,
        model: Model | None = None,
        keep: Sequence[str] = (),
    ) -> Trial:
        """Fine-tune a model along a plan; `model` stands in for the subject's own."""
        plan = plan or Plan.identity(subject.depth)
        settings = dict(recipe)
        if self.precision is not None:
            settings["precision"] = self.precision
        if init is not None and plan.has_fresh:
            settings["init"] = init
        return Trial(
            "tune",
            model or subject.model,
            str(plan),
            task,
            data,
            settings,
            seed,
            labels=labels,
            keep=tuple(keep),
        )

    def look(
        self,
        kind: str,
        subject: Subject,
        settings: Mapping[str, Any],
        labels: Mapping[str, Any],
        *,
        task: str | None = None,
        data: Data | None = None,
        model: Model | None = None,
        inputs: Sequence[str] = (),
    ) -> Trial:
        """A measurement without training the model."""
        return Trial(
            kind,
            model or subject.model,
            None,
            task,
            data,
            settings,
            inputs=tuple(inputs),
            labels=labels,
        )


def drawn(examples: Examples, data: Data, seed: int) -> Data:
    """The examples of one trial: a draw of its own, or all of them."""
    if examples.train is None:
        return data
    return replace(data, size=examples.train, subsample=seed)


def examples_for(tasks: Mapping[str, Examples], task: str) -> Examples:
    """How much of a task is used; of one that the scale does not name, as much as of its last."""
    return tasks.get(task) or list(tasks.values())[-1]


def recipe_for(recipes: Mapping[str, Mapping[str, Any]], task: str) -> dict[str, Any]:
    """The settings for a task."""
    return dict(recipes.get(task, recipes.get("*", {})))


def parts_of(depth: int, layers: Sequence[int] | None) -> list[int]:
    """Numbers given for twelve layers, for a stack of another depth.

    >>> parts_of(6, (0, 3, 12)), parts_of(3, None)
    ([0, 2, 6], [0, 1, 2, 3])
    """
    if layers is None:
        return list(range(depth + 1))
    # halves go up, so that the middle of an odd depth is the same everywhere
    return sorted({min(depth, (2 * n * depth + 12) // 24) for n in layers})
