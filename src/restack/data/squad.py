"""SQuAD's evaluation: exact match and F1 of answers, with and without a no-answer threshold.

Written from the definition of the official evaluation of SQuAD 2.0, which for questions that all
have an answer is that of 1.1. All scores are fractions, where the official ones are percentages.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from restack.errors import DataError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Lower case, without punctuation, articles and surplus spaces.

    >>> normalize("The  U.S. Army, an 'army'")
    'us army army'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(answer: str, gold: str) -> float:
    """1 if both normalise to the same text, else 0."""
    return float(normalize(answer) == normalize(gold))


def f1(answer: str, gold: str) -> float:
    """F1 of the words of both; with no words on one side, 1 only if there are none on both.

    >>> f1("the green house", "a house")  # one of two words, one of one
    0.6666666666666666
    """
    ours, theirs = normalize(answer).split(), normalize(gold).split()
    if not ours or not theirs:
        return float(ours == theirs)
    common = (Counter(ours) & Counter(theirs)).total()
    return 2 * common / (len(ours) + len(theirs))


def evaluate(
    gold: Mapping[str, Sequence[str]],
    answers: Mapping[str, str],
    no_answer: Mapping[str, float] | None = None,
    *,
    threshold: float = 0.0,
) -> dict[str, float]:
    """Score answers by id; `gold` has all right answers to a question, none if there is none.

    `answers` are the best texts, "" for none. `no_answer` says how much speaks for none: above
    `threshold` an answer counts as none. With it come `best_exact` and `best_f1`: the scores at
    the thresholds that would have been best, and those thresholds. Questions with and without
    an answer are also scored apart where both occur.
    """
    if not gold:
        raise DataError("there are no questions to score")
    _check(gold, answers, "answer")
    has_answer = np.array([bool(texts) for texts in gold.values()])
    raw = {
        name: np.array([_best(measure, answers[key], gold[key]) for key in gold])
        for name, measure in (("exact", exact), ("f1", f1))
    }
    scores = dict(raw)
    odds = None
    if no_answer is not None:
        _check(gold, no_answer, "no-answer score")
        odds = np.array([no_answer[key] for key in gold], dtype=np.float64)
        scores = {n: np.where(odds > threshold, ~has_answer, raw[n]) for n in raw}
    result = {name: float(values.mean()) for name, values in scores.items()}
    result["total"] = len(gold)
    if has_answer.any() and not has_answer.all():
        for part, chosen in (("has_answer", has_answer), ("no_answer", ~has_answer)):
            result |= {f"{part}_{n}": float(v[chosen].mean()) for n, v in scores.items()}
            result[f"{part}_total"] = int(chosen.sum())
    if odds is not None:
        answered = np.array([bool(answers[key]) for key in gold])
        for name, values in raw.items():
            best, at = best_threshold(values, odds, has_answer, answered)
            result |= {f"best_{name}": best, f"best_{name}_threshold": at}
    return result


def _check(gold: Mapping[str, object], given: Mapping[str, object], what: str) -> None:
    missing = [key for key in gold if key not in given]
    if missing:
        raise DataError(
            f"{len(missing):,} of {len(gold):,} questions have no {what}, the first: {missing[0]!r}"
        )


def _best(measure: Callable[[str, str], float], answer: str, gold: Sequence[str]) -> float:
    """Against the gold answer that fits best; those that normalise to nothing do not count."""
    real = [text for text in gold if normalize(text)] or [""]
    return max(measure(answer, text) for text in real)


def best_threshold(
    scores: np.ndarray, odds: np.ndarray, has_answer: np.ndarray, given: np.ndarray
) -> tuple[float, float]:
    """The best mean score over all thresholds, and its threshold.

    Begins with no question answered, and answers one more at a time, from the one where least
    speaks for no answer: that adds its score where an answer exists, and costs a point where
    none exists but one is `given`. Threshold 0 stands for answering none.
    """
    order = np.argsort(odds, kind="stable")
    change = np.where(has_answer, scores, -given.astype(np.float64))[order]
    reached = (~has_answer).sum() + np.cumsum(change)
    best = int(reached.argmax())
    if reached[best] <= (~has_answer).sum():
        return float((~has_answer).mean()), 0.0
    return float(reached[best] / len(scores)), float(odds[order[best]])
