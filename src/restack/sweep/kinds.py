"""What a trial runs: functions from a context to a result, by name.

A kind of one's own needs no entry here: `module:function` names it, if workers can import it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from restack.errors import RestackError
from restack.sweep.trial import Trial
from restack.tune.interrupts import Stopped

__all__ = ["KINDS", "Context", "Input", "Kind", "Metrics", "Result", "Stopped", "find_kind"]

Metrics = Mapping[str, Mapping[str, float]]
"""By split, then by name."""


@dataclass(frozen=True, slots=True)
class Input:
    """What a trial that had to come first has left."""

    trial: Trial
    metrics: Metrics
    payload: Any
    directory: Path
    """Its kept files lie in here under their names: `directory / "model"`."""


def _never() -> bool:
    return False


def _silent(part: float) -> None:
    """Says nothing."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a kind is given."""

    trial: Trial
    work: Path
    """A directory for this trial alone. It outlives a killed run: checkpoints belong here."""
    device: str = "cpu"
    inputs: Mapping[str, Input] = field(default_factory=dict)
    """By key: what `trial.needs` names."""
    keep: frozenset[str] = frozenset()
    """Files that are wanted: those of `trial.keep`, and `model` if a later trial needs it."""
    stop: Callable[[], bool] = _never
    """Whether to leave as soon as what was done is saved; then raise `Stopped`."""
    tell: Callable[[float], None] = _silent
    """Say what part is done, from 0 to 1."""
    threads: int | None = None
    """Of a trial that runs alone, for what measures times; else the worker's share holds."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a kind gives. Equal trials must give equal metrics, curves and payloads."""

    metrics: Metrics = field(default_factory=dict)
    curve: Sequence[Mapping[str, Any]] = ()
    """One mapping a step; `step` among its names."""
    payload: Any = None
    """Anything that JSON can hold: the result of a lens, a probe, a comparison."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds by name; the only numbers that may differ from run to run."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Files or directories within the work directory to be kept, by name."""


Kind = Callable[[Context], Result]


KINDS: dict[str, str] = {
    "tune": "restack.sweep.tuning:tune",
    "ensemble": "restack.sweep.tuning:ensemble",
    "lens": "restack.studies.looking:lens",
    "plans": "restack.studies.looking:plans",
    "score": "restack.studies.looking:score",
    "compare": "restack.studies.looking:compare",
    "probe": "restack.studies.looking:probe",
    "cost": "restack.studies.costing:cost",
}
"""The module and function of each kind; imported when first run."""
ALONE = frozenset({"cost"})
"""Kinds that measure times: on this machine they run while nothing else does."""


def find_kind(name: str) -> Kind:
    """The function of a kind."""
    place = KINDS.get(name, name)
    module, colon, function = place.partition(":")
    if not colon:
        raise RestackError(
            f"there is no kind of trial {name!r}",
            hint=f"Known: {', '.join(KINDS)}; or say module:function.",
        )
    try:
        found: Kind = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise RestackError(
            f"the kind {name!r} cannot be imported: {error}",
            hint="The module must lie where Python finds it, also in workers (PYTHONPATH).",
        ) from error
    return found
