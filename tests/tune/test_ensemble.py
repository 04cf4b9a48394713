"""Ensembles: sums of probabilities by hand, choices on one half, members that do not fit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from restack.data.glue import TASKS
from restack.data.splits import load_split, subsample
from restack.data.tasks import Task
from restack.errors import DataError
from restack.tune.ensemble import common_splits, ensemble, judge, predictions_of, split_for
from restack.tune.predictions import Predictions
from tests.tune.splits import rows_of, split_of
from tests.tune.test_predictions import cut, gold, questions, scores_for

__all__ = ["cut", "questions"]


def log(*rows: Any) -> np.ndarray:
    return np.log(np.asarray(rows, dtype=float))


def test_probabilities_are_added_up_and_not_votes_or_logits() -> None:
    labels = [0]
    members = {
        "sure": rows_of("sst2", labels, log([0.9, 0.1])),
        "a": rows_of("sst2", labels, log([0.4, 0.6])),
        "b": rows_of("sst2", labels, log([0.4, 0.6])),
    }
    joined = ensemble(members)
    assert np.allclose(joined.probabilities(), [[1.7 / 3, 1.3 / 3]])
    assert joined.scores(split_of("sst2", labels))["accuracy"] == 1  # two of three votes are wrong


def test_scales_of_logits_do_not_matter() -> None:
    one = rows_of("sst2", [0, 1], [[0, 1], [2, 0]])
    shifted = rows_of("sst2", [0, 1], [[100, 101], [-98, -100]])
    assert np.allclose(ensemble({"a": one, "b": shifted}).probabilities(), one.probabilities())


def test_regressions_give_the_mean() -> None:
    members = {
        "a": rows_of("stsb", [1.0, 2.0, 3.0], [[1.0], [2.0], [3.0]]),
        "b": rows_of("stsb", [1.0, 2.0, 3.0], [[3.0], [2.0], [4.0]]),
    }
    joined = ensemble(members)
    assert np.allclose(joined.probabilities(), [[2.0], [2.0], [3.5]])


@settings(max_examples=30, deadline=None)
@given(arrays.arrays(np.float32, (3, 4, 3), elements=st.floats(-30, 30, width=32)))
def test_multilabel_probabilities_are_added_up(outputs: np.ndarray) -> None:
    task = Task("own", "multilabel", ("text",), "label", ("a", "b", "c"))
    split = split_of(task, [(0,), (), (1, 2), (2,)])
    members = {str(i): Predictions.of_rows(split, o) for i, o in enumerate(outputs)}
    mean = np.mean([m.probabilities() for m in members.values()], axis=0)
    assert np.allclose(ensemble(members).probabilities(), mean, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(arrays.arrays(np.float32, (3, 4, 3), elements=st.floats(-1000, 1000, width=32)))
def test_an_ensemble_gives_mean_probabilities_whatever_the_logits(outputs: np.ndarray) -> None:
    split = split_of("mnli", [0, 1, 2, 1])
    members = {str(i): Predictions.of_rows(split, o) for i, o in enumerate(outputs)}
    mean = np.mean([m.probabilities() for m in members.values()], axis=0)
    assert np.allclose(ensemble(members).probabilities(), mean, atol=1e-6)


def test_spans_are_those_of_the_summed_probabilities(questions: Any, cut: Any) -> None:
    right = Predictions.of_windows(questions, cut, *scores_for(cut, gold(cut)))
    wrong = Predictions.of_windows(questions, cut, *scores_for(cut, {}))
    assert right.spans is not None
    assert wrong.spans is not None
    weak = dataclasses.replace(
        wrong,
        spans=dataclasses.replace(
            wrong.spans, starts=wrong.spans.starts / 5, ends=wrong.spans.ends / 5
        ),
    )
    members = {"right": right, "weak": weak}
    joined = ensemble(members)
    mean = np.mean([right.probabilities(), weak.probabilities()], axis=0)
    assert np.allclose(joined.probabilities(), mean, atol=1e-6)
    assert joined.scores(questions)["exact"] == 1
    assert weak.scores(questions)["exact"] < 1
    result = judge({"weak": weak, **members}, questions)
    assert result.metric == "f1"
    assert result.members["right"]["f1"] == result.all["f1"] == 1


def noisy(seed: int, right: np.ndarray, share: float) -> np.ndarray:
    """Outputs that are right about so often."""
    random = np.random.default_rng(seed)
    told = np.where(random.random(len(right)) < share, right, 1 - right)
    return np.eye(2)[told] * random.uniform(1, 3, (len(right), 1))


def test_the_best_are_chosen_on_one_half_and_scored_on_the_other() -> None:
    labels = np.random.default_rng(0).integers(0, 2, 400)
    split = split_of("sst2", labels.tolist())
    shares = {"bad": 0.5, "good": 0.8, "fair": 0.7, "better": 0.85}
    members = {
        name: Predictions.of_rows(split, noisy(100 + i, labels, share))
        for i, (name, share) in enumerate(shares.items())
    }
    result = judge(members, split, k=2)
    assert [choice.chosen_on for choice in result.choices] == ["first", "second"]
    for choice in result.choices:
        assert choice.members == ("better", "good")
        assert choice.examples == 200
    both = ensemble({"better": members["better"], "good": members["good"]}).scores(split)
    # two halves of equal size: their mean is the score on all
    assert result.mean["accuracy"] == pytest.approx(both["accuracy"])
    assert result.all["accuracy"] == ensemble(members).scores(split)["accuracy"]
    alone = judge(members, split, k=1).choices[0]
    assert alone.scores == alone.single


def test_no_example_has_a_say_in_its_own_score() -> None:
    """Coin tosses: chosen on all, the best of twenty would look better than chance."""
    labels = np.random.default_rng(0).integers(0, 2, 600)
    split = split_of("sst2", labels.tolist())
    members = {str(i): Predictions.of_rows(split, noisy(i + 1, labels, 0.5)) for i in range(20)}
    result = judge(members, split, k=1)
    best = max(scores["accuracy"] for scores in result.members.values())
    assert best > 0.53
    assert result.mean["accuracy"] < 0.53


def test_members_that_do_not_fit_are_refused(tokenizer: Any, questions: Any, cut: Any) -> None:
    from restack.data.spans import windows

    base = rows_of("sst2", [0, 1], [[0, 1], [1, 0]])
    for other, said in (
        (rows_of("cola", [0, 1], [[0, 1], [1, 0]]), "cola, not sst2"),
        (rows_of("sst2", [1, 1], [[0, 1], [1, 0]]), "other examples"),
    ):
        with pytest.raises(DataError, match=said):
            ensemble({"a": base, "b": other})
    with pytest.raises(DataError, match="two members"):
        ensemble({"a": base})
    longer = windows(tokenizer, questions, max_length=24, stride=4)
    members = {
        "a": Predictions.of_windows(questions, cut, *scores_for(cut, {})),
        "b": Predictions.of_windows(questions, longer, *scores_for(longer, {})),
    }
    with pytest.raises(DataError, match="b answered other tokens"):
        ensemble(members)
    with pytest.raises(DataError, match="best 2 of 2"):
        judge({"a": base, "b": base}, split_of("sst2", [0, 1]), k=2)


def test_runs_are_found_by_their_files(tmp_path: Path) -> None:
    made = rows_of("sst2", [0, 1], [[0, 1], [1, 0]])
    for run, names in (("a", "xy"), ("b", "xz"), ("c", "z")):
        for name in names:
            made.save(tmp_path / run / "predictions" / f"{name}.npz")
    a, b, c = (tmp_path / run for run in "abc")
    assert list(predictions_of(a)) == ["x", "y"]
    assert list(common_splits([a, b])) == ["x"]
    assert list(common_splits([b, c], "z")) == ["z"]
    assert common_splits([a / "predictions" / "x.npz", b]) == {
        "x": [a / "predictions" / "x.npz", b / "predictions" / "x.npz"]
    }
    with pytest.raises(DataError, match="no split in common"):
        common_splits([a, c])
    with pytest.raises(DataError, match="no predictions for the split 'y'"):
        common_splits([a, b], "y")
    with pytest.raises(DataError, match="holds no predictions"):
        predictions_of(tmp_path)
    with pytest.raises(DataError, match="no such directory"):
        predictions_of(tmp_path / "none")


def test_a_part_of_a_split_is_found_again_by_its_ids(tmp_path: Path) -> None:
    rows = "\n".join(f"text {i},{i % 2}" for i in range(20))
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2" / "validation.csv").write_text(f"sentence,label\n{rows}\n")
    whole = load_split(TASKS["sst2"], "validation", tmp_path)
    part = subsample(whole, 7, 3)
    found = split_for(Predictions.of_rows(part, np.zeros((7, 2))), tmp_path)
    assert found.fingerprint == part.fingerprint
    assert list(found.ids) == list(part.ids)
    (tmp_path / "sst2" / "validation.csv").write_text(f"sentence,label\nother {rows}\n")
    made = Predictions.of_rows(whole, np.zeros((20, 2)))
    with pytest.raises(DataError, match="not those that the predictions are for"):
        split_for(made, tmp_path)
