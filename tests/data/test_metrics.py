from __future__ import annotations

import math

import numpy as np
import pytest

from restack.data.glue import TASKS
from restack.data.metrics import (
    accuracy,
    f1,
    is_better,
    label_array,
    matthews,
    pearson,
    perplexity,
    predict,
    score,
    spearman,
)
from restack.data.tasks import Task
from restack.errors import DataError

# 3 right positives, 1 missed, 2 false, 4 right negatives
LABELS = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
PREDICTIONS = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])


def test_counts_by_hand() -> None:
    assert accuracy(LABELS, PREDICTIONS) == pytest.approx(0.7)
    assert f1(LABELS, PREDICTIONS) == pytest.approx(6 / 9)
    assert f1(LABELS, PREDICTIONS, "macro") == pytest.approx((6 / 9 + 8 / 11) / 2)
    assert matthews(LABELS, PREDICTIONS) == pytest.approx(
        (3 * 4 - 2 * 1) / math.sqrt(5 * 4 * 6 * 5)
    )


def test_correlations_by_hand() -> None:
    x, y = np.array([1.0, 2, 3, 4]), np.array([1.0, 4, 9, 16])
    assert spearman(x, y) == pytest.approx(1)
    assert pearson(x, y) == pytest.approx(25 / math.sqrt(5 * 129))


def test_what_does_not_vary_has_no_correlation_and_no_warning() -> None:
    flat, x = np.ones(4), np.arange(4.0)
    assert pearson(x, flat) == spearman(flat, x) == 0
    assert matthews(LABELS, np.zeros(10, dtype=int)) == 0
    assert f1(LABELS, np.zeros(10, dtype=int)) == 0


def test_glue_reports_two_metrics_and_their_mean() -> None:
    scores = score(TASKS["mrpc"], PREDICTIONS, LABELS.tolist())
    assert list(scores) == ["accuracy", "f1", "combined"]
    assert scores["combined"] == pytest.approx((0.7 + 6 / 9) / 2)
    assert score(TASKS["sst2"], PREDICTIONS, LABELS.tolist()) == {"accuracy": pytest.approx(0.7)}
    assert list(score(TASKS["cola"], PREDICTIONS, LABELS.tolist())) == ["matthews", "accuracy"]
    similar = score(TASKS["stsb"], np.array([1.0, 2, 3]), [1.0, 2, 3])
    assert similar == pytest.approx({"pearson": 1, "spearman": 1, "combined": 1})


def test_multilabel_by_hand() -> None:
    task = Task("m", "multilabel", ("t",), "y", ("a", "b"), ("f1_micro", "f1_macro", "accuracy"))
    labels = [(0,), (0, 1), ()]
    assert label_array(task, labels).tolist() == [[True, False], [True, True], [False, False]]
    predictions = predict("multilabel", np.array([[2.0, -1], [0.5, -3], [-1, 4]]))
    # a: 2 right; b: 1 missed, 1 false
    scores = score(task, predictions, labels)
    assert scores == pytest.approx({"f1_micro": 4 / 6, "f1_macro": 0.5, "accuracy": 1 / 3})


def test_predictions_from_logits() -> None:
    assert predict("classification", np.array([[0.1, 0.2], [3, 1]])).tolist() == [1, 0]
    assert predict("regression", np.array([[0.1], [3]])).tolist() == [0.1, 3]
    with pytest.raises(DataError, match="'span'"):
        predict("span", np.zeros((1, 2)))


def test_what_cannot_be_scored() -> None:
    with pytest.raises(DataError, match="2 predictions for 3 labels"):
        score(TASKS["sst2"], np.array([0, 1]), [0, 1, 1])
    with pytest.raises(DataError, match="not finite"):
        score(TASKS["stsb"], np.array([1.0, np.nan]), [0.0, 1.0])
    with pytest.raises(DataError, match=r"squad \(span\)"):
        score(TASKS["squad"], np.zeros(1), [0])


def test_perplexity() -> None:
    assert perplexity(math.log(8) * 5, 5) == pytest.approx(8)
    assert perplexity(1e6, 1) == math.inf
    with pytest.raises(DataError, match="no token"):
        perplexity(0.0, 0)


def test_better_is_higher_but_for_perplexity() -> None:
    assert is_better("accuracy", 0.9, 0.8)
    assert not is_better("accuracy", 0.8, 0.8)
    assert is_better("perplexity", 8, 9)
    assert is_better("f1", 0.1, None)
    assert not is_better("f1", math.nan, None)
    assert is_better("f1", 0.1, math.nan)
