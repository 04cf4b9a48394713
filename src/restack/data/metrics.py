"""The metrics of a task, as fractions between 0 and 1 (correlations between -1 and 1).

SQuAD's are in `restack.data.squad`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from restack.data.tasks import Kind, Task
from restack.errors import DataError

LOWER_IS_BETTER = frozenset({"perplexity", "loss"})


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """The part of the rows that is right; for multi-label, right in every label."""
    right = labels == predictions
    return float((right.all(axis=1) if right.ndim == 2 else right).mean())


def f1(labels: np.ndarray, predictions: np.ndarray, average: str = "binary") -> float:
    """F1 of label 1 (`binary`), the mean over labels (`macro`) or over all cells (`micro`)."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, average=average, zero_division=0))


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews' correlation; 0 where labels or predictions are all of one kind."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Pearson's correlation; 0 where one side does not vary, as for Matthews'."""
    from scipy.stats import pearsonr

    return float(pearsonr(labels, predictions)[0]) if _vary(labels, predictions) else 0.0


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Spearman's correlation of ranks; 0 where one side does not vary."""
    from scipy.stats import spearmanr

    return float(spearmanr(labels, predictions)[0]) if _vary(labels, predictions) else 0.0


def _vary(*sides: np.ndarray) -> bool:
    return all(len(side) > 1 and np.ptp(side) > 0 for side in sides)


def perplexity(loss_sum: float, tokens: int) -> float:
    """exp of the mean loss a token; infinite where that is beyond a float."""
    if tokens < 1:
        raise DataError("no token was predicted, so there is no perplexity")
    try:
        return math.exp(loss_sum / tokens)
    except OverflowError:
        return math.inf


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "f1_macro": lambda labels, predictions: f1(labels, predictions, "macro"),
    "f1_micro": lambda labels, predictions: f1(labels, predictions, "micro"),
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def predict(kind: Kind, logits: np.ndarray) -> np.ndarray:
    """Predictions from a head's outputs (rows x outputs) before any softmax or sigmoid."""
    if kind == "classification":
        return np.asarray(logits.argmax(axis=1))
    if kind == "multilabel":
        return np.asarray(logits > 0)
    if kind == "regression":
        return np.asarray(logits.reshape(len(logits)))
    raise DataError(f"a task of the kind {kind!r} has no predictions of one a row")


def label_array(task: Task, labels: Sequence[Any]) -> np.ndarray:
    """The labels of a split as an array; for multi-label, rows x labels of bool."""
    if task.kind == "multilabel":
        table = np.zeros((len(labels), len(task.labels)), dtype=bool)
        for row, codes in enumerate(labels):
            table[row, list(codes)] = True
        return table
    return np.asarray(labels, dtype=np.float64 if task.kind == "regression" else np.int64)


def score(task: Task, predictions: np.ndarray, labels: Sequence[Any]) -> dict[str, float]:
    """All metrics of a task, in its order; `combined` is the mean of the others, as in GLUE."""
    if task.kind not in ("classification", "regression", "multilabel"):
        raise DataError(f"the metrics of {task.name} ({task.kind}) are not counted a row")
    predictions = np.asarray(predictions)
    if len(predictions) != len(labels) or not len(labels):
        raise DataError(f"{len(predictions):,} predictions for {len(labels):,} labels")
    if not np.isfinite(predictions).all():
        raise DataError(f"{task.name}: there are predictions that are not finite numbers")
    wanted = label_array(task, labels)
    scores = {
        name: METRICS[name](wanted, predictions) for name in task.metrics if name != "combined"
    }
    if "combined" in task.metrics:
        scores["combined"] = sum(scores.values()) / len(scores)
    return scores


def is_better(metric: str, new: float, old: float | None) -> bool:
    """Whether a value of a metric beats an older one; a NaN never does."""
    if math.isnan(new):
        return False
    if old is None or math.isnan(old):
        return True
    return new < old if metric in LOWER_IS_BETTER else new > old
