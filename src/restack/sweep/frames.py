"""Rows of a store as a frame of pandas or polars; neither is needed for anything else."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from restack.errors import RestackError
from restack.sweep.rows import Row

FRAMES = ("metrics", "trials", "curve")


def frame(rows: Sequence[Row], of: str = "metrics", library: str = "pandas") -> Any:
    """A frame with one line a trial and metric, a trial, or a trial and step."""
    if of not in FRAMES:
        raise RestackError(f"there is no frame of {of!r}", hint=f"Known: {', '.join(FRAMES)}.")
    if library not in ("pandas", "polars"):
        raise RestackError(f"{library!r} makes no frames", hint="Known: pandas, polars.")
    try:
        module = importlib.import_module(library)
    except ImportError as error:
        raise RestackError(
            f"{library} is not installed", hint=f"pip install {library}, or take the other one."
        ) from error
    return module.DataFrame(columns(list(records(rows, of))))


def records(rows: Sequence[Row], of: str) -> Iterator[dict[str, Any]]:
    """The lines of a frame as mappings."""
    for row in rows:
        common = flat(row)
        if of == "trials":
            numbers = {
                f"{s}/{n}": v for s, values in row.metrics.items() for n, v in values.items()
            }
            yield common | numbers
        elif of == "metrics":
            for split, values in row.metrics.items():
                for name, value in values.items():
                    yield common | {"split": split, "metric": name, "value": value}
        else:
            for point in row.curve:
                yield common | _flat_point(point)


def flat(row: Row) -> dict[str, Any]:
    """A row without its numbers, as one mapping; labels under their own names."""
    trial, data = row.trial, row.trial.data
    own = {
        "key": row.key,
        "status": row.status,
        "kind": trial.kind,
        "model": None if trial.model is None else trial.model.location,
        "plan": trial.plan,
        "task": trial.task,
        "size": None if data is None else data.size,
        "seed": trial.seed,
        "seconds": row.seconds,
        "attempts": row.attempts,
        "error": row.error,
    }
    return own | {(f"label_{k}" if k in own else k): v for k, v in trial.labels.items()}


def columns(lines: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Lines as columns; what a line does not have is None."""
    names = dict.fromkeys(name for line in lines for name in line)
    return {name: [line.get(name) for line in lines] for name in names}


def _flat_point(point: dict[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in point.items():
        if isinstance(value, dict):
            found |= _flat_point(value, f"{before}{name}/")
        else:
            found[f"{before}{name}"] = value
    return found
