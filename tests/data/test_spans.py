from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from restack.data.glue import TASKS
from restack.data.spans import Windows, _best_spans, find_answers, windows
from restack.data.splits import Split, load_split
from restack.errors import DataError

SHORT = "in 1066 was the battle of hastings"
LONG = "the cat sat on the mat . " * 4 + SHORT
EXAMPLES = [
    ("when was it", SHORT, "1066"),
    ("when was it", LONG, "1066"),
    ("who did it", SHORT, None),
]


@pytest.fixture
def split() -> Split:
    labels = [
        {"text": [a] if a else [], "answer_start": [c.index(a)] if a else []}
        for _, c, a in EXAMPLES
    ]
    texts = [(q, c) for q, c, _ in EXAMPLES]
    return Split(TASKS["squad_v2"], "train", texts, labels, ["a", "b", "c"], "f")


@pytest.fixture
def cut(tokenizer: Any, split: Split) -> Windows:
    return windows(tokenizer, split, max_length=20, stride=4)


def text_of(cut: Windows, place: int, first: int, last: int) -> str:
    chars = cut.chars[cut.tokens.offsets[place] :]
    return EXAMPLES[cut.example[place]][1][chars[first, 0] : chars[last, 1]]


def test_windows_cover_the_context_and_overlap(cut: Windows) -> None:
    assert set(cut.example.tolist()) == {0, 1, 2}
    assert cut.tokens.lengths.max() <= 20
    of_long = np.flatnonzero(cut.example == 1)
    assert len(of_long) > 2
    parts = []
    for place in of_long:
        low, high = cut.context[place]
        parts.append(cut.chars[cut.tokens.offsets[place] :][low:high].tolist())
    assert all(before[-4:] == after[:4] for before, after in pairwise(parts))
    assert parts[0][0][0] == 0
    assert parts[-1][-1][1] == len(LONG)


def test_windows_are_what_the_tokenizer_gives_for_a_short_pair(
    cut: Windows, tokenizer: Any
) -> None:
    theirs = tokenizer(*EXAMPLES[0][:2])
    assert cut.tokens.row(0).tolist() == theirs["input_ids"]
    assert cut.tokens.types is not None
    assert cut.tokens.types[: len(theirs["input_ids"])].tolist() == theirs["token_type_ids"]


def test_gold_answers_are_found_where_they_are_and_null_elsewhere(cut: Windows) -> None:
    for place in range(len(cut)):
        start, end = int(cut.start[place]), int(cut.end[place])
        low, high = cut.context[place]
        answer = EXAMPLES[cut.example[place]][2]
        here = answer is not None and answer in text_of(cut, place, low, high - 1)
        if here:
            assert text_of(cut, place, start, end) == answer
        else:
            assert start == end == cut.null[place] == 0
    assert (cut.start > 0).sum() >= 2


def test_windows_are_cached(
    tokenizer: Any, split: Split, cut: Windows, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    assert len(list((cache / "windows").iterdir())) == 1
    monkeypatch.setattr("restack.data.spans._encode", None)
    again = windows(tokenizer, split, max_length=20, stride=4)
    assert np.array_equal(again.tokens.ids, cut.tokens.ids)
    assert np.array_equal(again.start, cut.start)


def test_no_room_for_the_context(tokenizer: Any, split: Split) -> None:
    with pytest.raises(DataError, match="max_length=10 leaves 4 tokens for the context"):
        windows(tokenizer, split, max_length=10, stride=4)


def test_a_long_question_loses_its_end(tokenizer: Any) -> None:
    text = (" " + "who " * 100, SHORT)
    label = {"text": ["1066"], "answer_start": [3]}
    one = Split(TASKS["squad"], "train", [text], [label], ["a"], "f")
    cut = windows(tokenizer, one, max_length=80, stride=2)
    assert int((cut.tokens.row(0) == tokenizer.convert_tokens_to_ids("who")).sum()) == 64
    assert cut.start[0] > 64


def test_ids_beyond_the_vocabulary(tokenizer: Any, split: Split) -> None:
    with pytest.raises(DataError, match="does not belong"):
        windows(tokenizer, split, max_length=20, stride=4, vocab_size=5)


def scores(cut: Windows, chosen: list[tuple[int, int, float]]) -> list[np.ndarray]:
    """Zero everywhere but for `chosen`: (window, token, score); padded as in a batch."""
    rows = [np.zeros(25) for _ in range(len(cut))]
    for place, token, value in chosen:
        rows[place][token] = value
    return rows


def test_perfect_scores_give_the_gold_answers(cut: Windows) -> None:
    starts = scores(cut, [(i, int(t), 10) for i, t in enumerate(cut.start)])
    ends = scores(cut, [(i, int(t), 10) for i, t in enumerate(cut.end)])
    found = find_answers(cut, starts, ends, [c for _, c, _ in EXAMPLES])
    assert [a.text for a in found[:2]] == ["1066", "1066"]
    # the windows of "b" without the answer say null with 20, the one with it 0: it is not missing
    assert [a.no_answer for a in found] == [-20, -20, 20]
    assert found[0].score == 20
    assert found[0].best[0] == ("1066", 20)
    assert len(found[0].best) <= 20


def test_answers_never_leave_the_context_or_run_backwards(cut: Windows) -> None:
    low, high = cut.context[0]
    # best start behind best end; the question and [SEP] score highest of all
    starts = scores(cut, [(0, 1, 99), (0, low + 3, 5), (0, low, 1)])
    ends = scores(cut, [(0, 2, 99), (0, int(high), 99), (0, low + 1, 5)])
    found = find_answers(cut, starts, ends, [c for _, c, _ in EXAMPLES])
    assert found[0].text == "in 1066"
    assert found[0].score == 6


def test_answers_are_no_longer_than_allowed(cut: Windows) -> None:
    low, high = cut.context[0]
    starts, ends = scores(cut, [(0, low, 5)]), scores(cut, [(0, high - 1, 5)])
    contexts = [c for _, c, _ in EXAMPLES]
    assert find_answers(cut, starts, ends, contexts)[0].text == SHORT
    short = find_answers(cut, starts, ends, contexts, max_answer_tokens=2, n_best=3)[0]
    assert short.score == 5
    assert len(short.best) == 3


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 20), st.integers(1, 15), st.integers(0, 10**6))
def test_the_best_spans_are_those_of_all_pairs(size: int, n: int, longest: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    start, end = random.normal(size=(2, size))
    found = sorted(_best_spans(start, end, n, longest), key=lambda s: -s[2])
    pairs = [
        (i, j, float(start[i] + end[j]))
        for i in range(size)
        for j in range(i, min(size, i + longest))
    ]
    assert found == sorted(pairs, key=lambda s: -s[2])[:n]


@pytest.mark.real
def test_real_answers_survive_the_way_through_windows(shared: Path) -> None:
    from transformers import AutoTokenizer

    from restack.data.squad import evaluate

    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "bge-small-en-12L-384")
    for name, stem in (("squad", "validation"), ("squad_v2", "train_19articles")):
        split = load_split(TASKS[name], stem, shared / "data", limit=200, seed=0)
        cut = windows(tokenizer, split, vocab_size=30522)
        rows = [np.zeros((2, int(n))) for n in cut.tokens.lengths]
        for place, row in enumerate(rows):
            row[0, cut.start[place]] = row[1, cut.end[place]] = 10
        found = find_answers(
            cut, [row[0] for row in rows], [row[1] for row in rows], [t[1] for t in split.texts]
        )
        gold = {str(i): answer["text"] for i, answer in zip(split.ids, split.labels, strict=True)}
        result = evaluate(
            gold,
            {str(i): a.text for i, a in zip(split.ids, found, strict=True)},
            {str(i): a.no_answer for i, a in zip(split.ids, found, strict=True)},
        )
        assert result["f1"] > 0.99
        assert result["best_f1"] >= result["f1"] - 1e-9
