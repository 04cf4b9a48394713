"""The result of one training run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from restack.data.splits import Split
from restack.tune.predictions import Predictions
from restack.tune.recipe import Recipe


@dataclass(frozen=True, slots=True)
class SplitNote:
    """Which examples a number is of."""

    task: str
    split: str
    examples: int
    partial: str | None
    """What part of the official split this is, where it is not all of it."""
    fingerprint: str

    @classmethod
    def of(cls, split: Split) -> SplitNote:
        return cls(split.task.name, split.name, len(split), split.partial, split.fingerprint)

    def __str__(self) -> str:
        note = f" ({self.partial})" if self.partial else ""
        return f"{self.task}/{self.split}: {self.examples:,} examples{note}"

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "split": self.split,
            "examples": self.examples,
            "partial": self.partial,
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True, slots=True)
class Tuned:
    """A tuned model, and all that is to be said about how it came to be."""

    model: nn.Module
    """A transformers model or a `MeanPool`, in evaluation mode."""
    source: str
    task: str
    plan: str | None
    source_depth: int | None
    depth: int | None
    """Layers after the plan; None where the model has no stack or several."""
    parameters: int
    trained: int
    """Parameters that were trained."""
    recipe: Recipe
    train: SplitNote
    validation: Mapping[str, SplitNote]
    metrics: Mapping[str, Mapping[str, float]]
    """By split, then by name. Of the best weights, if the recipe keeps those."""
    curve: tuple[dict[str, Any], ...]
    """For each update its loss, rate and gradient norm; for each evaluation its metrics."""
    steps: int
    best_step: int
    """The step that the model's weights are of."""
    seconds: Mapping[str, float]
    examples_per_second: float
    predictions: Mapping[str, Predictions]
    """By split; none for language modelling."""
    notes: tuple[str, ...] = ()
    teacher: Mapping[str, Any] | None = None
    """Who taught what, and its own `metrics` by split, if it has a head for the task."""

    @property
    def metric(self) -> str | None:
        """The metric that picks the best weights: the first one of the first split."""
        return next((name for found in self.metrics.values() for name in found), None)

    def to_json(self) -> dict[str, Any]:
        """All but the model and the predictions, as plain data."""
        return {
            "source": self.source,
            "task": self.task,
            "plan": self.plan,
            "source_depth": self.source_depth,
            "depth": self.depth,
            "parameters": self.parameters,
            "trained": self.trained,
            "metrics": {name: dict(found) for name, found in self.metrics.items()},
            "steps": self.steps,
            "best_step": self.best_step,
            "seconds": dict(self.seconds),
            "examples_per_second": self.examples_per_second,
            "train": self.train.to_json(),
            "validation": {name: note.to_json() for name, note in self.validation.items()},
            "recipe": self.recipe.to_json(),
            "notes": list(self.notes),
            "teacher": None if self.teacher is None else dict(self.teacher),
            "curve": [dict(line) for line in self.curve],
        }
