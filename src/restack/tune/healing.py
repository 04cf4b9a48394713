"""Healing: a teacher tells a re-stacked model what was lost; how much of it comes back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel

from restack.anatomy.shipped import local
from restack.errors import CheckpointError
from restack.tune.distil import Distil, distillation, plan_from
from restack.tune.heads import Loaded, Location, load_for_task
from restack.tune.losses import Loss
from restack.tune.setup import Setup, load_tokenizer
from restack.tune.weights import digest

if TYPE_CHECKING:
    from rich.table import Table

    from restack.tune.recipe import Recipe
    from restack.tune.tuned import Tuned

_BAR = 30  # characters for all that was lost


@dataclass(frozen=True, slots=True)
class Teacher:
    """A model to learn from, and what of it."""

    model: Location | PreTrainedModel
    distil: Distil = field(default_factory=Distil)


@dataclass(frozen=True, slots=True)
class Lesson:
    """A teacher that is loaded, and the loss that it gives."""

    loaded: Loaded
    loss: Loss
    note: dict[str, Any]
    """Who teaches what, as plain data by which the run is known again."""

    @property
    def speaks(self) -> bool:
        """Whether it has a head whose answers can be scored."""
        return not self.loaded.fresh

    @property
    def states_alone(self) -> bool:
        """Whether nothing is learnt from but states, which reaches no head."""
        return self.note["source"] == "states" and not self.note["labels"]


def lesson(
    teacher: Teacher, student: Location | None, setup: Setup, recipe: Recipe, stack: str | None
) -> Lesson:
    """Load a teacher for a student, which lies at `student` if it was not given as an object."""
    task, given = setup.train.split.task, teacher.model
    if isinstance(given, PreTrainedModel):
        name = str(given.config.name_or_path or type(given).__name__)
    else:
        name = os.fspath(given)
        _check_tokenizer(name, setup)
    pad = setup.train.pad_id
    loaded = load_for_task(given, task, head=recipe.head, stack=stack, pad_id=pad)
    plan = setup.loaded.plan
    if student is not None and loaded.depth is not None:
        plan = plan_from(local(os.fspath(student)), plan, loaded.depth)
    loss = distillation(loaded, plan, task.kind, teacher.distil, smoothing=recipe.label_smoothing)
    note = {
        "model": name,
        "weights": digest(loaded.model),
        "plan": None if plan is None else str(plan),
        **teacher.distil.to_json(),
    }
    return Lesson(loaded, loss, note)


def _check_tokenizer(teacher: str, setup: Setup) -> None:
    """Refuse a teacher to whom the student's tokens mean something else."""
    try:
        theirs = load_tokenizer(teacher)
    except CheckpointError:  # none beside it: a bare checkpoint of the same family
        return
    if theirs.get_vocab() != setup.tokenizer.get_vocab():
        raise CheckpointError(
            f"the teacher {teacher} reads other tokens than {setup.source}: their vocabularies "
            "differ",
            hint="Give the model that the student was made from, or one with its tokenizer.",
        )


def told(note: Mapping[str, Any]) -> str:
    """A sentence about who taught what."""
    what = {"logits": "its logits", "states": "its states", "both": "its logits and states"}
    parts = [f"learnt from {note['model']}: {what[note['source']]}"]
    if note["temperature"] != 1:
        parts.append(f"temperature {note['temperature']:g}")
    if note["source"] == "both" and note["states"] != 1:
        parts.append(f"states weigh {note['states']:g}")
    if note["labels"]:
        parts.append(f"the labels weigh {note['labels']:g}")
    return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Point:
    """Where a student stood after so many updates."""

    step: int
    score: float
    regained: float | None
    """What part of the way from before the training to the teacher; of a loss for a perplexity."""


def recovery(tuned: Tuned, metric: str) -> tuple[Point, ...]:
    """The curve of what came back, by a metric on the split that picks the weights."""
    split = next(iter(tuned.metrics), None)
    found = [line for line in tuned.curve if "metrics" in line]
    if split is None or not found:
        return ()
    # a perplexity is a loss on another scale, on which halfway would look like nearly all
    by = "loss" if metric == "perplexity" else metric
    goal = (tuned.teacher or {}).get("metrics", {}).get(split, {}).get(by)
    values = [line["metrics"][split] for line in found]
    way = None if goal is None else goal - values[0][by]
    return tuple(
        Point(
            line["step"],
            value[metric],
            (value[by] - values[0][by]) / way + 0.0 if way else None,  # no -0.0
        )
        for line, value in zip(found, values, strict=True)
    )


def recovery_table(points: Sequence[Point], metric: str, teacher: float | None) -> Table:
    """The curve with a bar for each point."""
    from rich.table import Table

    table = Table("step", box=None, pad_edge=False)
    table.columns[0].justify = "right"
    for name in (metric, "regained"):
        table.add_column(name, justify="right")
    table.add_column("")
    for point in points:
        part = point.regained
        bar = "" if part is None else "█" * round(_BAR * min(1.0, max(0.0, part)))
        table.add_row(str(point.step), f"{point.score:.4f}", _share(part), bar)
    if teacher is not None:
        table.add_row("teacher", f"{teacher:.4f}", "", "█" * _BAR)
    return table


def recovery_lines(tuned: Tuned) -> list[str]:
    """The curve as a table of a model card; empty without a teacher."""
    metric = tuned.metric
    points = recovery(tuned, metric) if tuned.teacher and metric else ()
    if not points:
        return []
    rows = [f"| {p.step} | {p.score:.4f} | {_share(p.regained)} |" for p in points]
    return [f"| step | {metric} | regained |", "|---:|---:|---:|", *rows]


def _share(part: float | None) -> str:
    return "-" if part is None else f"{part:.1%}"
