"""What a store tells about one trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from restack.errors import RestackError
from restack.sweep.trial import Trial

STATUSES = ("pending", "running", "done", "failed")
FIELDS = ("status", "key", "kind", "model", "plan", "task", "size", "subsample", "seed")
"""What rows are filtered by, beside labels."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """A kept file."""

    name: str
    """Its path below the directory of the trial, such as `model/config.json`."""
    path: Path
    sha256: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """One trial as it stands. `curve`, `payload` and others are read when they are asked for."""

    trial: Trial
    """With the labels that this row is for."""
    status: str
    """`pending`, `running`, `done` or `failed`."""
    metrics: Mapping[str, Mapping[str, float]]
    """By split, then by name; empty unless done."""
    seconds: float | None
    """Of the run that was finished, from loading to the last file."""
    attempts: int
    error: str | None
    """Why it failed."""
    read: Callable[[str, str], Any] = field(repr=False, compare=False)

    @property
    def key(self) -> str:
        return self.trial.key

    @property
    def labels(self) -> Mapping[str, Any]:
        return self.trial.labels

    @property
    def curve(self) -> tuple[dict[str, Any], ...]:
        """One mapping a step."""
        found: tuple[dict[str, Any], ...] = self.read("curve", self.key)
        return found

    @property
    def payload(self) -> Any:
        """What the kind gave beside numbers by split; None if nothing."""
        return self.read("payload", self.key)

    @property
    def timings(self) -> dict[str, float]:
        """Seconds by name."""
        found: dict[str, float] = self.read("timings", self.key)
        return found

    @property
    def environment(self) -> dict[str, Any] | None:
        """Versions, device and code of the run that was finished."""
        found: dict[str, Any] | None = self.read("environment", self.key)
        return found

    @property
    def history(self) -> tuple[dict[str, Any], ...]:
        """Every attempt: outcome (`done`, `failed`, `lost`), reason, place, seconds, peak."""
        found: tuple[dict[str, Any], ...] = self.read("history", self.key)
        return found

    @property
    def artefacts(self) -> tuple[Artefact, ...]:
        """All kept files."""
        found: tuple[Artefact, ...] = self.read("artefacts", self.key)
        return found

    def artefact(self, name: str) -> Path:
        """A kept file or directory by its name: `predictions`, `model`."""
        for kept in self.artefacts:
            if kept.name == name:
                return kept.path
            if kept.name.startswith(f"{name}/"):
                return Path(str(kept.path)[: -len(kept.name)]) / name
        raise RestackError(
            f"trial {self.key[:10]} has kept no {name}",
            hint=f"Kept: {', '.join(sorted({a.name.partition('/')[0] for a in self.artefacts}))}."
            if self.artefacts
            else f"Ask for it with keep=({name!r},).",
        )

    def metric(self, name: str, split: str | None = None) -> float:
        """One number; without a split, that of the first split that has it."""
        for known, values in self.metrics.items():
            if split in (None, known) and name in values:
                return values[name]
        where = f"{split}/{name}" if split else name
        have = ", ".join(f"{s}/{n}" for s, values in self.metrics.items() for n in values)
        raise RestackError(f"trial {self.key[:10]} has no {where}", hint=f"It has: {have or '-'}.")

    def to_json(self) -> dict[str, Any]:
        """Plain data for listings: the trial, its status and its numbers."""
        return {
            "key": self.key,
            "status": self.status,
            "metrics": {split: dict(values) for split, values in self.metrics.items()},
            "seconds": self.seconds,
            "attempts": self.attempts,
            "error": self.error,
            "trial": self.trial.to_json(),
        }


def matches(row: Row, filters: Mapping[str, Any]) -> bool:
    """Whether a row has these values; a list, tuple, set or range of them means any of them."""
    for name, wanted in filters.items():
        found = value_of(row, name)
        if isinstance(wanted, list | tuple | set | frozenset | range):
            if found not in wanted:
                return False
        elif found != wanted:
            return False
    return True


def value_of(row: Row, name: str) -> Any:
    """A field of a row or of its trial, or else a label; None if there is no such label."""
    trial = row.trial
    match name:
        case "status" | "key":
            return getattr(row, name)
        case "kind" | "plan" | "task" | "seed":
            return getattr(trial, name)
        case "model":
            return None if trial.model is None else trial.model.location
        case "size" | "subsample":
            return None if trial.data is None else getattr(trial.data, name)
    return trial.labels.get(name)
