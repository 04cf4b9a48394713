"""Small splits made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from restack.data.cache import fingerprint
from restack.data.glue import TASKS
from restack.data.splits import Split
from restack.data.tasks import Task
from restack.tune.predictions import Predictions

SHORT = "in 1066 was the battle of hastings"
LONG = "the cat sat on the mat . " * 4 + SHORT
QUESTIONS = (
    ("when was it", SHORT, "1066"),
    ("when was it", LONG, "1066"),
    ("who did it", SHORT, None),
)


def split_of(task: str | Task, labels: Sequence[Any], partial: str | None = None) -> Split:
    """A split with these labels and texts that tell their row."""
    task = TASKS[task] if isinstance(task, str) else task
    texts = [f"text {row}" for row in range(len(labels))]
    rows = list(range(len(labels)))
    key = fingerprint(texts, labels)
    return Split(task, "validation", texts, list(labels), rows, key, partial)


def rows_of(task: str, labels: Sequence[Any], outputs: Any, partial: str | None = None) -> Any:
    """Predictions for such a split."""
    return Predictions.of_rows(split_of(task, labels, partial), np.asarray(outputs))


def span_split(questions: Sequence[tuple[str, str, str | None]] = QUESTIONS) -> Split:
    """Questions with and without an answer, one of them with a context of several windows."""
    labels = [
        {"text": [a] if a else [], "answer_start": [c.index(a)] if a else []}
        for _, c, a in questions
    ]
    texts = [(q, c) for q, c, _ in questions]
    ids = [f"q{row}" for row in range(len(questions))]
    key = fingerprint(texts, labels)
    return Split(TASKS["squad_v2"], "validation", texts, labels, ids, key)
