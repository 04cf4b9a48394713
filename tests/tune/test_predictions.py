"""Predictions: probabilities and scores by hand, files that are whole or refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from restack.data.spans import Windows, windows
from restack.data.splits import Split
from restack.data.tasks import Task
from restack.errors import DataError
from restack.tune.predictions import Predictions, log_probabilities
from tests.tune.splits import QUESTIONS, rows_of, span_split, split_of


@pytest.fixture
def questions() -> Split:
    return span_split()


@pytest.fixture
def cut(tokenizer: Any, questions: Split) -> Windows:
    return windows(tokenizer, questions, max_length=20, stride=4)


def scores_for(cut: Windows, chosen: dict[int, tuple[int, int]]) -> list[list[np.ndarray]]:
    """Scores that point at the given tokens in the given windows, and at the null elsewhere."""
    found = []
    for which in (0, 1):
        rows = []
        for place, length in enumerate(cut.tokens.lengths):
            row = np.zeros(length + 3)  # three of padding, which must not count
            row[length:] = 99
            row[chosen[place][which] if place in chosen else cut.null[place]] = 5
            rows.append(row)
        found.append(rows)
    return found


def gold(cut: Windows) -> dict[int, tuple[int, int]]:
    asked = np.flatnonzero(cut.start != cut.null)
    return {int(p): (int(cut.start[p]), int(cut.end[p])) for p in asked}


def test_probabilities_by_kind() -> None:
    two = rows_of("sst2", [0, 1], [[0, np.log(3)], [0, 0]])
    assert np.allclose(two.probabilities(), [[0.25, 0.75], [0.5, 0.5]])
    values = rows_of("stsb", [2.0, 3.0], [[2.5], [3.5]])
    assert np.allclose(values.probabilities(), [[2.5], [3.5]])
    many = Task("own", "multilabel", ("text",), "label", ("a", "b"))
    split = split_of(many, [(0,), ()])
    each = Predictions.of_rows(split, np.log([[3, 1], [1, 3]]))
    assert np.allclose(each.probabilities(), [[0.75, 0.5], [0.5, 0.75]])


def test_scores_are_those_of_the_task() -> None:
    split = split_of("cola", [0, 1, 1, 1])
    made = Predictions.of_rows(split, np.array([[1, 0], [0, 1], [0, 1], [1, 0]]))
    found = made.scores(split)
    assert list(found) == ["matthews", "accuracy"]
    assert found["accuracy"] == 0.75
    assert found["matthews"] == pytest.approx(1 / np.sqrt(3))
    assert made.read(split).scores([0, 1])["accuracy"] == 1


def test_span_probabilities_sum_to_one_in_each_window(questions: Split, cut: Windows) -> None:
    made = Predictions.of_windows(questions, cut, *scores_for(cut, gold(cut)))
    assert made.spans is not None
    sums = np.add.reduceat(made.probabilities(), made.spans.offsets[:-1], axis=1)
    assert sums.shape == (2, len(cut))
    assert np.allclose(sums, 1)
    first = made.spans.rows(made.spans.starts)[0].astype(float)
    shown = log_probabilities(made.spans)[0][: len(first)]
    assert np.allclose(np.exp(shown), np.exp(first) / np.exp(first).sum())


def test_right_spans_score_one_and_thresholds_move_them(questions: Split, cut: Windows) -> None:
    right = gold(cut)
    made = Predictions.of_windows(questions, cut, *scores_for(cut, right))
    found = made.scores(questions)
    assert list(found)[:2] == ["f1", "exact"]
    assert found["f1"] == found["exact"] == found["best_f1"] == 1
    assert found["has_answer_total"] == 2
    # nothing speaks for an answer strongly enough: all is answered with none
    none = made.scores(questions, threshold=-1000)
    assert none["exact"] == pytest.approx(1 / 3)
    assert none["best_exact"] == 1


def test_questions_that_all_have_an_answer_are_always_answered(tokenizer: Any) -> None:
    split = span_split(QUESTIONS[:1])
    cut = windows(tokenizer, split, max_length=20, stride=4)
    starts, ends = scores_for(cut, {})  # the null leads, and must not be chosen
    found = Predictions.of_windows(split, cut, starts, ends).scores(split)
    assert "best_f1" not in found
    assert "has_answer_f1" not in found


@pytest.mark.parametrize("kind", ["rows", "spans"])
def test_what_is_loaded_is_what_was_saved(
    kind: str, tmp_path: Path, questions: Split, cut: Windows
) -> None:
    if kind == "rows":
        made = rows_of("sst2", [0, 1], [[0.1, 3], [2, 1]], partial="2 rows, official 872")
    else:
        made = Predictions.of_windows(questions, cut, *scores_for(cut, gold(cut)))
    path = tmp_path / "predictions" / "validation.npz"
    made.save(path)
    again = Predictions.load(path)
    again.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == path.read_bytes()
    assert np.array_equal(again.probabilities(), made.probabilities())
    assert again.ids == made.ids
    assert again.partial == made.partial
    assert [p.name for p in path.parent.iterdir()] == ["validation.npz"]


def test_files_that_are_no_predictions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        Predictions.load(tmp_path / "none.npz")
    path = tmp_path / "x.npz"
    rows_of("sst2", [0, 1], [[0, 1], [1, 0]]).save(path)
    whole = path.read_bytes()
    for size in range(0, len(whole) - 1, 37):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match="damaged"):
            Predictions.load(path)
    np.savez(path, about=np.zeros(3, np.uint8))
    with pytest.raises(DataError, match="holds no predictions"):
        Predictions.load(path)
    np.savez(path, about=np.array([object()]))
    with pytest.raises(DataError, match="holds no predictions"):
        Predictions.load(path)


def test_parts_that_do_not_belong_together_are_refused(
    tmp_path: Path, questions: Split, cut: Windows
) -> None:
    made = Predictions.of_windows(questions, cut, *scores_for(cut, {}))
    assert made.spans is not None
    short = dataclasses.replace(made.spans, starts=made.spans.starts[1:])
    far = dataclasses.replace(made.spans, example=made.spans.example + 1)
    for spans in (short, far):
        dataclasses.replace(made, spans=spans).save(tmp_path / "x.npz")
        with pytest.raises(DataError, match="do not belong together"):
            Predictions.load(tmp_path / "x.npz")


def test_other_data_and_numbers_that_are_none_are_refused(questions: Split) -> None:
    split = split_of("sst2", [0, 1])
    made = Predictions.of_rows(split, np.zeros((2, 2)))
    with pytest.raises(DataError, match="other examples"):
        made.scores(split_of("sst2", [1, 1]))
    with pytest.raises(DataError, match="given the data of cola"):
        made.scores(split_of("cola", [0, 1]))
    with pytest.raises(DataError, match="not numbers"):
        Predictions.of_rows(split, np.array([[0, np.nan], [1, 1]])).scores(split)
    for shape in ((2, 3), (3, 2)):
        with pytest.raises(DataError, match=f"{shape[0]} x {shape[1]}"):
            Predictions.of_rows(split, np.zeros(shape))
    with pytest.raises(DataError, match="span"):
        Predictions.of_rows(questions, np.zeros((3, 2)))


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        rows_of("sst2", [0, 1], [[0, 1], [1, 0]]).save(tmp_path / "file" / "x.npz")
