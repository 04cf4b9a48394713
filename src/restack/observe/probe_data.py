"""The data of probes: what may be probed, the examples of each trial, and what reads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from restack.data.metrics import METRICS, label_array, score
from restack.data.splits import Split, check_classes
from restack.data.tasks import Task
from restack.errors import DataError
from restack.observe.linear import Draw, Kind

_ROWS = 2  # keeps the random numbers for rows apart from those of the readers


def draw_trials(split: Split, trials: int, size: int, held_out: float, seed: int) -> list[Draw]:
    """Each trial's own examples: `size` of the split, of which the last part is held out."""
    if trials < 1:
        raise DataError(f"there are {trials} trials", hint="Give 1 or more.")
    held = max(1, round(size * held_out))
    if not 0 < held_out < 1 or not 2 <= size - held < size <= len(split):
        raise DataError(
            f"{split} has {len(split):,} examples; trials of {size:,}, of which the part "
            f"{held_out:g} is held out, cannot be drawn from it",
            hint="At least two examples must be left to train on, and no more than there are.",
        )
    labels = label_array(split.task, split.labels)
    draws = []
    for number in range(trials):
        raw = np.random.PCG64([seed, number, _ROWS]).random_raw(len(split))
        rows = np.argsort(raw, kind="stable")[:size]
        draws.append(Draw(number, rows[:-held], rows[-held:]))
        first, *others = labels[draws[-1].train]
        if all(np.array_equal(first, other) for other in others):
            raise DataError(
                f"{split}: the {size - held:,} examples of trial {number} all have one label",
                hint="Draw more of them, or take another seed.",
            )
    return draws


def baseline(train: Split, validation: Split) -> dict[str, float]:
    """The metrics of an answer that reads nothing: the most frequent label of `train`, the mean."""
    task, known = train.task, label_array(train.task, train.labels)
    if task.kind == "regression":
        answer = known.mean()
    elif task.kind == "multilabel":
        answer = known.mean(0) > 0.5
    else:
        answer = np.bincount(known).argmax()
    return score(task, np.array([answer] * len(validation)), validation.labels)


def targets(task: Task, labels: Sequence[Any]) -> Tensor:
    """Labels as the readers are to meet them: rows x outputs."""
    values = torch.from_numpy(label_array(task, labels))
    if task.kind == "classification":
        return one_hot(values, len(task.labels)).float()
    return values.float().view(len(values), -1)


def linear_kind(task: Task) -> Kind:
    """The kind of a task that has a label for each text."""
    for kind in get_args(Kind):
        if task.kind == kind:
            return cast(Kind, kind)
    raise DataError(
        f"{task.name} ({task.kind}) has no label for a whole text, and no linear reader of pooled "
        "features can do it",
        hint="Probe squad_answerable." if task.kind == "span" else "Name a column with labels.",
    )


def chosen_layers(layers: Sequence[int] | None, depth: int) -> list[int]:
    """These layers in their order, or all; 0 is the embeddings."""
    chosen = list(range(depth + 1)) if layers is None else sorted(set(layers))
    if not chosen or not 0 <= chosen[0] <= chosen[-1] <= depth:
        raise DataError(
            f"layers {', '.join(map(str, chosen)) or '(none)'} cannot be probed",
            hint=f"This stack has 0 (the embeddings) to {depth} (what leaves the last layer).",
        )
    return chosen


def checked_metric(train: Split, validation: Split, metric: str | None) -> str:
    """The metric to sum up; refuses what cannot be probed before anything is run."""
    task = train.task
    linear_kind(task)
    if (validation.task.name, validation.task.labels) != (task.name, task.labels):
        raise DataError(f"{train} and {validation} are not of one task")
    if train.fingerprint == validation.fingerprint:
        raise DataError(
            f"{train} and {validation} are the same examples",
            hint="Score the readers on examples that they were not trained on.",
        )
    for split in (train, validation):
        if not len(split) or any(label is None for label in split.labels):
            raise DataError(f"{split} has examples without a label", hint="Leave them out.")
    check_classes(train)
    known = {*METRICS, "combined"}
    wanted = metric or task.metrics[0]
    unknown = [name for name in (*task.metrics, wanted) if name not in known]
    if unknown or wanted not in task.metrics:
        raise DataError(
            f"{(unknown or [wanted])[0]!r} is no metric of {task.name}",
            hint=f"Its metrics: {', '.join(name for name in task.metrics if name in known)}.",
        )
    return wanted
