from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restack.data.squad import best_threshold, evaluate, exact, f1, normalize
from restack.errors import DataError


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("The Cat", "cat"),
        ("a  cat,\tan owl", "cat owl"),
        ("theory and anthem", "theory and anthem"),  # articles inside words stay
        ("U.S.A.", "usa"),
        ("cat-dog", "catdog"),  # punctuation leaves no space
        ("1,066", "1066"),
        ("“the” café", "“ ” café"),  # only ASCII punctuation goes
        ("the", ""),
    ],
)
def test_normalisation(text: str, plain: str) -> None:
    assert normalize(text) == plain


def test_scores_of_one_answer() -> None:
    assert exact("The cat!", "cat") == 1
    assert exact("cats", "cat") == 0
    assert f1("the black cat", "cat") == pytest.approx(2 / 3)
    assert f1("cat cat dog", "cat dog dog") == pytest.approx(2 * 2 / 6)
    assert f1("dog", "cat") == 0
    assert (f1("", ""), f1("the", "a"), f1("", "cat"), f1("cat", "")) == (1, 1, 0, 0)


GOLD = {"q1": ["the cat", "a black cat"], "q2": ["1066"], "q3": [], "q4": []}
ANSWERS = {"q1": "black cat", "q2": "in 1066", "q3": "dog", "q4": ""}


def test_evaluation_without_a_threshold() -> None:
    scores = evaluate(GOLD, ANSWERS)
    f1s = {"q1": 1, "q2": 2 / 3, "q3": 0, "q4": 1}
    assert scores == pytest.approx(
        {
            "exact": 2 / 4,
            "f1": sum(f1s.values()) / 4,
            "total": 4,
            "has_answer_exact": 1 / 2,
            "has_answer_f1": (1 + 2 / 3) / 2,
            "has_answer_total": 2,
            "no_answer_exact": 1 / 2,
            "no_answer_f1": 1 / 2,
            "no_answer_total": 2,
        }
    )


def test_evaluation_of_version_one_has_no_parts() -> None:
    assert list(evaluate({"q2": ["1066"]}, {"q2": "1066"})) == ["exact", "f1", "total"]


def test_a_gold_answer_of_nothing_but_an_article_does_not_count() -> None:
    assert evaluate({"q": ["the", "cat"]}, {"q": "cat"})["exact"] == 1
    assert evaluate({"q": ["the"]}, {"q": ""})["exact"] == 1


def test_a_fixed_threshold_and_the_best_one() -> None:
    odds = {"q1": -3.0, "q2": 2.0, "q3": 1.0, "q4": -1.0}
    scores = evaluate(GOLD, ANSWERS, odds, threshold=0.0)
    # q2 is right in part and lost, q3 is saved
    assert scores["f1"] == pytest.approx((1 + 0 + 1 + 1) / 4)
    assert scores["exact"] == pytest.approx(3 / 4)
    # none answered 2; q1 3; q4 (nothing given) 3; q3 2; q2 2 2/3
    assert (scores["best_f1"], scores["best_f1_threshold"]) == (3 / 4, -3.0)
    assert evaluate(GOLD, ANSWERS, odds, threshold=5.0)["f1"] == evaluate(GOLD, ANSWERS)["f1"]


def test_answering_nothing_can_be_best() -> None:
    scores = evaluate({"q1": [], "q2": ["x"]}, {"q1": "y", "q2": "z"}, {"q1": 0.5, "q2": 0.7})
    assert (scores["best_exact"], scores["best_exact_threshold"]) == (0.5, 0.0)


questions = st.tuples(
    st.sampled_from([0.0, 0.5, 1.0]), st.floats(-5, 5), st.booleans(), st.booleans()
)


@given(st.lists(questions, min_size=1, max_size=12, unique_by=lambda q: q[1]))
def test_the_best_threshold_is_the_best_of_all(
    rows: list[tuple[float, float, bool, bool]],
) -> None:
    """Tried out one after the other, for odds that differ."""
    scores, odds, has, given_ = (np.array(column) for column in zip(*rows, strict=True))
    # where there is no answer the plain score is 1 for none given and else 0
    plain = np.where(has, scores, (~given_).astype(float))
    tried = [np.where(odds > at, ~has, plain).mean() for at in [-np.inf, *odds]]
    best, at = best_threshold(plain, odds, has, given_)
    assert best == pytest.approx(max(tried))
    if best > (~has).mean() + 1e-9:
        assert np.where(odds > at, ~has, plain).mean() == pytest.approx(best)


def test_missing_answers_are_named() -> None:
    with pytest.raises(DataError, match="1 of 2 questions have no answer, the first: 'b'"):
        evaluate({"a": [], "b": []}, {"a": ""})
    with pytest.raises(DataError, match="no no-answer score"):
        evaluate({"a": []}, {"a": ""}, {})
    with pytest.raises(DataError, match="no questions"):
        evaluate({}, {})
