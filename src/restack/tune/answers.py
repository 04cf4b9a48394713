"""Predictions as lines that people read: what was answered to each example, and how surely."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from restack.data.splits import Split
from restack.tune.predictions import Predictions


def answer_lines(found: Predictions, split: Split) -> Iterator[dict[str, Any]]:
    """For each example its id, the `prediction` and by kind what it rests on.

    Of labels the probabilities by name. Of a span the text, "" where none leads; its score, a sum
    of two logits; and by how much no answer leads.
    """
    reading, names = found.read(split), found.task.labels
    if reading.answers is not None:
        may_lack = any(not label["text"] for label in split.labels)
        for name, answer in zip(found.ids, reading.answers, strict=True):
            none = may_lack and answer.no_answer > 0
            line = {"id": name, "prediction": "" if none else answer.text}
            yield line | {"score": answer.score, "no_answer": answer.no_answer}
        return
    assert reading.values is not None
    for name, value, row in zip(found.ids, reading.values, found.probabilities(), strict=True):
        if found.kind == "regression":
            yield {"id": name, "prediction": float(value)}
            continue
        said: Any = (
            [label for label, yes in zip(names, value, strict=True) if yes]
            if found.kind == "multilabel"
            else names[int(value)]
        )
        sure = {label: round(float(part), 6) for label, part in zip(names, row, strict=True)}
        yield {"id": name, "prediction": said, "probabilities": sure}
