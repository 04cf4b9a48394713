"""What lies in a store and belongs to no trial that needs it."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from restack.sweep.store import TRIALS, WORK, Store
from restack.sweep.work import files_in


@dataclass(frozen=True, slots=True)
class Garbage:
    """What was removed, or would be."""

    directories: tuple[Path, ...]
    trials: tuple[str, ...]
    """Keys of trials that no sweep defines any more."""
    nbytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "directories": [str(path) for path in self.directories],
            "trials": list(self.trials),
            "bytes": self.nbytes,
        }


def collect(
    store: Store, *, wanted: Collection[str] | None = None, dry_run: bool = False
) -> Garbage:
    """Remove files of trials that are not there, and work of trials that are done or failed.

    With `wanted`, also all trials with other keys, unless a wanted one needs them.
    """
    rows = {row.key: row for row in store.rows(once=True)}
    gone: set[str] = set()
    if wanted is not None:
        needed, more = set[str](), set(wanted) & set(rows)
        while more:
            needed |= more
            more = {need for key in more for need in rows[key].trial.needs} & set(rows) - needed
        gone = set(rows) - needed
    found = []
    for folder, keep in (
        (TRIALS, {key for key, row in rows.items() if row.status == "done"} - gone),
        (WORK, {key for key, row in rows.items() if row.status in ("pending", "running")} - gone),
    ):
        place = store.directory / folder
        found += [path for path in sorted(place.iterdir()) if path.name not in keep]
    size = sum(_size(path) for path in found)
    if not dry_run:
        store.remove(gone)
        for path in found:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    return Garbage(tuple(found), tuple(sorted(gone)), size)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else files_in(path)
    return sum(file.stat().st_size for file in files)
