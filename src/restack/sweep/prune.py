"""Early pruning: which values a run must have come to by when, lest it is stopped as hopeless.

The bars are taken from runs that ended before a run begins, and travel with it as plain data. So
nothing has to be asked while it runs, wherever that is, and equal bars stop equal runs equally.
"""

from __future__ import annotations

import bisect
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from restack.errors import RestackError

Curve = Sequence[tuple[float, float]]
"""Epoch and value of each evaluation of one run."""
PRUNED = "pruned"
"""The split under which a pruned run has its numbers, so that nobody takes them for scores."""
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Bars:
    """What a run must have reached with its best value, by epoch."""

    metric: str
    """Split and name, such as `validation/accuracy`."""
    lower: bool
    """Whether lower is better."""
    points: tuple[tuple[float, float], ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Bars:
        return cls(
            values["metric"], values["lower"], tuple((e, bar) for e, bar in values["points"])
        )

    def missed(self, curve: Curve) -> float | None:
        """The bar that the last evaluation of a curve should have reached, if it did not.

        >>> bars = Bars("validation/accuracy", False, ((1.0, 0.6), (2.0, 0.7)))
        >>> bars.missed([(1.0, 0.65)]), bars.missed([(1.0, 0.65), (2.5, 0.6)])
        (None, 0.7)
        """
        if not curve:
            return None
        place = bisect.bisect_right([epoch for epoch, _ in self.points], curve[-1][0] + _SAME)
        if not place:
            return None
        bar = self.points[place - 1][1]
        best = best_by(curve, math.inf, lower=self.lower)
        if best is None:  # there were evaluations, but none gave a number
            return bar
        return bar if (best > bar if self.lower else best < bar) else None


def curve_of(points: Sequence[Mapping[str, Any]], metric: str) -> list[tuple[float, float]]:
    """The evaluations among the points of a run's curve."""
    split, _, name = metric.partition("/")
    return [
        (float(point["epoch"]), float(point["metrics"][split][name]))
        for point in points
        if split in point.get("metrics", {}) and name in point["metrics"][split]
    ]


def best_by(curve: Curve, epoch: float, *, lower: bool) -> float | None:
    """The best value that a run had come to by an epoch; None if it had none."""
    found = [v for e, v in curve if e <= epoch + _SAME and not math.isnan(v)]
    return (min if lower else max)(found) if found else None


def median(
    curves: Sequence[Curve], *, lower: bool, startup: int = 4, after: float = 0.0
) -> list[tuple[float, float]]:
    """Bars at the median of what earlier runs had come to at each epoch behind `after`.

    Only where at least `startup` runs came so far.

    >>> runs = [[(1, 0.5), (2, 0.8)], [(1, 0.6), (2, 0.7)], [(1, 0.9)]]
    >>> median(runs, lower=False, startup=2)
    [(1, 0.6), (2, 0.75)]
    """
    return _bars(
        curves,
        [e for e in _epochs(curves) if e >= after],
        lambda found: statistics.median(found) if len(found) >= startup else None,
        lower=lower,
    )


def halving(
    curves: Sequence[Curve], *, lower: bool, first: float = 1.0, factor: int = 3
) -> list[tuple[float, float]]:
    """Bars at `first`, `first * factor`... epochs: the best of each `factor` earlier runs go on.

    >>> runs = [[(1, 0.5)], [(1, 0.6)], [(1, 0.7), (3, 0.8)], [(1, 0.4)]]
    >>> halving(runs, lower=False)
    [(1.0, 0.7)]
    """
    rungs, rung = [], float(first)
    while rung <= max(_epochs(curves), default=0.0):
        rungs.append(rung)
        rung *= factor

    def bar(found: list[float]) -> float | None:
        ranked = sorted(found, reverse=not lower)
        return ranked[len(found) // factor - 1] if len(found) >= factor else None

    return _bars(curves, rungs, bar, lower=lower)


PRUNERS: dict[str, Callable[..., list[tuple[float, float]]]] = {
    "median": median,
    "halving": halving,
}


def _epochs(curves: Sequence[Curve]) -> list[float]:
    return sorted({epoch for curve in curves for epoch, _ in curve})


def _bars(
    curves: Sequence[Curve],
    epochs: Sequence[float],
    bar: Callable[[list[float]], float | None],
    *,
    lower: bool,
) -> list[tuple[float, float]]:
    """A bar for each epoch from the runs that were not over before it."""
    found = []
    for epoch in epochs:
        there = [curve for curve in curves if curve and curve[-1][0] >= epoch - _SAME]
        values = [best_by(curve, epoch, lower=lower) for curve in there]
        height = bar([value for value in values if value is not None])
        if height is not None:
            found.append((epoch, height))
    return found


class Pruned(Exception):
    """A run that was stopped since it had not come far enough."""

    def __init__(self, points: Sequence[Mapping[str, Any]], numbers: Mapping[str, float]) -> None:
        super().__init__(str(numbers))
        self.points, self.numbers = points, numbers


def watch(bars: Bars, journal: Path, step: int, total: int) -> None:
    """Look at what a run has written down; raises `Pruned` where it is hopeless."""
    if step >= total:
        return
    try:
        points = [json.loads(line) for line in journal.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise RestackError(f"{journal} cannot be read: {error}") from error
    curve = curve_of(points, bars.metric)
    bar = bars.missed(curve)
    if bar is not None:
        epoch, value = curve[-1]
        numbers = {"step": step, "of": total, "epoch": epoch, "value": value, "bar": bar}
        raise Pruned(points, numbers)
