"""How a sweep stands, from its store alone: what runs, what is done, how long it will take."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from restack.sweep.rows import Row
from restack.sweep.store import Store


@dataclass(frozen=True, slots=True)
class Status:
    """A look at a store."""

    counts: Mapping[str, int]
    driver: Mapping[str, Any] | None
    """The driver at work, if there is one."""
    running: Sequence[Mapping[str, Any]]
    """Key, what it is, part done, seconds since its start."""
    seconds_left: float | None
    """None if no driver is at work, or nothing is done yet by which to judge."""
    failures: Mapping[str, int]
    """First lines of reasons, and how many trials failed so."""

    def to_json(self) -> dict[str, Any]:
        return {
            "counts": dict(self.counts),
            "driver": self.driver,
            "running": list(self.running),
            "seconds_left": self.seconds_left,
            "failures": dict(self.failures),
        }


def status(store: Store) -> Status:
    """How the trials of a store stand."""
    rows = {row.key: row for row in store.rows(once=True)}
    driver = store.driver()
    running = [
        {**one, "what": in_words(rows[one["key"]])}
        for one in store.running()
        if one["key"] in rows and driver is not None
    ]
    failures: dict[str, int] = defaultdict(int)
    for row in rows.values():
        if row.status == "failed":
            failures[(row.error or "").partition("\n")[0]] += 1
    counts = store.counts()
    if driver is None:  # what one that was killed left running waits for the next
        counts |= {"pending": counts["pending"] + counts["running"], "running": 0}
    return Status(
        counts,
        driver,
        running,
        None if driver is None else _left(list(rows.values()), running, driver["workers"]),
        dict(sorted(failures.items(), key=lambda item: -item[1])),
    )


def _left(rows: Sequence[Row], running: Sequence[Mapping[str, Any]], workers: int) -> float | None:
    """Seconds until all is done: each trial as long as those like it, or of its kind, or all."""
    known: dict[Any, list[float]] = defaultdict(list)
    for row in rows:
        if row.seconds is not None:
            for name in _alike(row):
                known[name].append(row.seconds)
    if not known:
        return None
    means = {name: statistics.mean(seconds) for name, seconds in known.items()}
    parts = {one["key"]: one["part"] or 0.0 for one in running}
    total = 0.0
    for row in rows:
        if row.status in ("pending", "running"):
            each = next(means[name] for name in _alike(row) if name in means)
            total += each * (1 - parts.get(row.key, 0.0))
    return total / max(1, workers)


def _alike(row: Row) -> tuple[Any, ...]:
    trial = row.trial
    size = None if trial.data is None else trial.data.size
    return ((trial.kind, trial.task, trial.plan, size), (trial.kind, trial.task), trial.kind, None)


def in_words(row: Row) -> str:
    """A trial in a few words.

    >>> from restack.sweep.trial import Model, Trial
    >>> trial = Trial("tune", Model("models/bert"), "0-5", "sst2", seed=2)
    >>> in_words(Row(trial, "done", {}, 1.0, 1, None, print))
    'tune bert 0-5 sst2 seed 2'
    """
    trial = row.trial
    model = None if trial.model is None else trial.model.location.rstrip("/").rpartition("/")[2]
    size = None if trial.data is None or trial.data.size is None else f"of {trial.data.size}"
    words = (trial.kind, model, trial.plan, trial.task, size, f"seed {trial.seed}")
    return " ".join(word for word in words if word)
