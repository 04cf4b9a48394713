"""Predictions as lines: labels by name, probabilities by hand, spans as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from restack.data.spans import windows
from restack.data.tasks import Task
from restack.tune.answers import answer_lines
from restack.tune.predictions import Predictions
from tests.tune import tiny
from tests.tune.splits import rows_of, span_split, split_of
from tests.tune.test_output import write


def test_labels_have_their_names_and_probabilities() -> None:
    split = split_of("sst2", [0, 1])
    assert list(answer_lines(rows_of("sst2", [0, 1], [[0, np.log(3)], [1, 0]]), split)) == [
        {"id": 0, "prediction": "positive", "probabilities": {"negative": 0.25, "positive": 0.75}},
        {
            "id": 1,
            "prediction": "negative",
            "probabilities": {"negative": 0.731059, "positive": 0.268941},
        },
    ]
    assert list(answer_lines(rows_of("stsb", [2.0], [[2.5]]), split_of("stsb", [2.0]))) == [
        {"id": 0, "prediction": 2.5}
    ]
    many = split_of(Task("own", "multilabel", ("text",), "label", ("a", "b")), [(0,)])
    (line,) = answer_lines(Predictions.of_rows(many, np.log([[3, 1 / 3]])), many)
    assert line == {"id": 0, "prediction": ["a"], "probabilities": {"a": 0.75, "b": 0.25}}


def test_spans_are_texts_and_none_is_empty(tokenizer: Any) -> None:
    split = span_split()
    cut = windows(tokenizer, split, max_length=20, stride=4)
    starts, ends = ([np.zeros(n) for n in cut.tokens.lengths] for _ in range(2))
    for place in range(len(cut)):
        starts[place][cut.start[place]] = ends[place][cut.end[place]] = 5
    lines = list(answer_lines(Predictions.of_windows(split, cut, starts, ends), split))
    assert [line["prediction"] for line in lines] == ["1066", "1066", ""]
    assert [line["id"] for line in lines] == ["q0", "q1", "q2"]
    assert lines[0]["score"] == pytest.approx(10)
    assert [line["no_answer"] > 0 for line in lines] == [False, False, True]


def test_they_lie_beside_the_outputs(tmp_path: Path) -> None:
    out, tuned = write(tmp_path)
    lines = (out / "predictions" / "validation.jsonl").read_text().splitlines()
    said = [json.loads(line)["prediction"] for line in lines]
    split = tiny.sentiment(16, 1, "validation")
    right = [split.task.labels[code] for code in split.labels]
    assert np.mean([a == b for a, b in zip(said, right, strict=True)]) == pytest.approx(
        tuned.metrics["validation"]["accuracy"]
    )
