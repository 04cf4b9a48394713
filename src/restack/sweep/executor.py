"""What the driver asks of an executor, and what it hears from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from restack.sweep.work import Job, Outcome


@dataclass(frozen=True, slots=True)
class Told:
    """How far a running trial is."""

    key: str
    part: float


@dataclass(frozen=True, slots=True)
class Ended:
    """A job ended by itself, well or not."""

    outcomes: Sequence[Outcome]
    place: str = ""


@dataclass(frozen=True, slots=True)
class Died:
    """A worker or its machine was lost in the midst of a job."""

    keys: Sequence[str]
    reason: str
    blamed: bool = True
    """Whether the job may have been the cause; a worker that never started says nothing of it."""


Event = Told | Ended | Died

ALL = 1 << 62
"""The size of a job beside which nothing else runs."""


class Executor(Protocol):
    """Somewhere jobs can run."""

    workers: int
    kind: str

    def has_room(self, size: int) -> bool:
        """Whether a job that takes so many bytes can start now."""

    def submit(self, job: Job, size: int) -> None:
        """Start a job."""

    def events(self, seconds: float) -> list[Event]:
        """What has happened; waits so long for something to happen."""

    def stop(self) -> None:
        """Ask all trials to save where they are and to end."""

    def close(self) -> None:
        """End everything that was started."""
