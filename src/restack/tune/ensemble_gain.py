"""How much one ensemble is better than another, example by example, with an interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from restack.data.splits import Split
from restack.errors import DataError
from restack.tune.ensemble import ensemble
from restack.tune.predictions import Predictions, Reading

_Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Gain:
    """The mean difference of a score that each example has, with its 95% interval."""

    metric: str
    mean: float
    low: float
    high: float
    n: int


def gain(
    members: Mapping[str, Predictions],
    against: Mapping[str, Predictions],
    split: Split,
    *,
    best: int | None = None,
    seed: int = 0,
) -> Gain | None:
    """What the members together score above the others together.

    With `best`, so many members are chosen on each half of the examples and scored on the other,
    so that no example has a say in its own score. None for metrics that single examples have not
    (correlations).
    """
    metric = split.task.metrics[0]
    if not (metric == "accuracy" or split.task.kind == "span"):
        return None
    theirs = _scores(_together(against).read(split), metric)
    if best is None:
        mine = _scores(_together(members).read(split), metric)
    else:
        mine = _crosswise(members, split, metric, best, seed)
    change = mine - theirs
    mean, n = float(change.mean()), len(change)
    half = _Z * float(change.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    if not math.isfinite(half):
        raise DataError(f"{split}: one example says nothing of a difference")
    return Gain(metric, mean, mean - half, mean + half, n)


def _together(members: Mapping[str, Predictions]) -> Predictions:
    return ensemble(members) if len(members) > 1 else next(iter(members.values()))


def _crosswise(
    members: Mapping[str, Predictions], split: Split, metric: str, best: int, seed: int
) -> np.ndarray:
    """Each half scored by those that are best on the other one."""
    alone = {name: _scores(found.read(split), metric) for name, found in members.items()}
    order = np.argsort(np.random.PCG64(seed).random_raw(len(split)), kind="stable")
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    scores = np.zeros(len(split))
    for own, other in (halves, halves[::-1]):
        # of equals the one that was named first
        chosen = sorted(alone, key=lambda name: -float(alone[name][own].mean()))[:best]
        some = {name: members[name] for name in members if name in chosen}
        scores[other] = _scores(_together(some).read(split), metric)[other]
    return scores


def _scores(reading: Reading, metric: str) -> np.ndarray:
    """The score of each example."""
    if reading.values is not None:
        return np.asarray(reading.values == np.asarray(reading.split.labels), dtype=np.float64)
    return np.array([reading.scores([row])[metric] for row in range(len(reading.split))])
