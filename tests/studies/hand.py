"""Rows made by hand, for tests of claims and findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from restack.studies.view import View
from restack.sweep.rows import Row
from restack.sweep.trial import Trial

SUBJECT = {"subject": "one", "layers": 12, "shared": False, "head": True, "published": None}


def row(
    part: str,
    score: float | None = None,
    *,
    task: str | None = "sst2",
    seed: int = 0,
    plan: str | None = None,
    payload: Any = None,
    curve: Sequence[dict[str, Any]] = (),
    status: str = "done",
    metric: str = "accuracy",
    **labels: Any,
) -> Row:
    """One trial of the smoke scale."""
    about = {**SUBJECT, "study": "made", "scale": "smoke", "part": part, **labels}
    trial = Trial("tune", plan=plan, task=task, seed=seed, labels=about)
    kept = {"payload": payload, "curve": tuple(curve), "environment": None}
    metrics = {} if score is None else {"validation": {metric: score}}
    return Row(
        trial,
        status,
        metrics,
        1.0,
        1,
        "broken" if status == "failed" else None,
        lambda what, key: kept.get(what),
    )


def row_of(trial: Trial, payload: Any) -> Row:
    """A trial as it was laid out, finished."""
    return Row(trial, "done", {}, 1.0, 1, None, lambda what, key: {"payload": payload}.get(what))


def seeds(part: str, values: Sequence[float], **labels: Any) -> list[Row]:
    """A trial for each value, seed by seed."""
    return [row(part, value, seed=seed, **labels) for seed, value in enumerate(values)]


def view(*groups: Row | Sequence[Row], others: tuple[View, ...] = ()) -> View:
    """All of them as the trials of one model."""
    rows = [r for group in groups for r in ([group] if isinstance(group, Row) else group)]
    return View("one", tuple(rows), others)
