"""The demo language: the same everywhere, with labels that follow from the words alone."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import pytest

from restack.data import get_task, load_split, load_texts, subsample
from restack.data.language import MADE, SIZES, columns, text
from restack.data.language.grammar import verb_group
from restack.data.language.words import BAD, GOOD, INTRANSITIVE, NOUNS, TRANSITIVE
from restack.data.language.writing import place, write

LABELLED = ("sentiment", "acceptability", "entailment", "questions")

# What rows are must never change: models were trained on them, and scores are compared.
FIXED = {
    "text": "021aea159da7363e",
    "sentiment": "040b2ab45d784eaf",
    "acceptability": "259c7b4794f603bc",
    "entailment": "adccf0c6bef6dbeb",
    "questions": "a7f36cb4b8ed66e4",
}


def rows(name: str, split: str = "train", count: int = 2000) -> list[dict[str, object]]:
    return [dict(MADE[name](split, number)) for number in range(count)]


@pytest.mark.parametrize("name", MADE)
def test_rows_are_the_same_for_ever(name: str) -> None:
    said = json.dumps([rows(name, split, 40) for split in SIZES], sort_keys=True)
    assert hashlib.sha256(said.encode()).hexdigest()[:16] == FIXED[name]


@pytest.mark.parametrize("name", MADE)
def test_splits_are_made_of_different_rows(name: str) -> None:
    train, test = (json.dumps(rows(name, split, 20)) for split in ("train", "test"))
    assert train != test


@pytest.mark.parametrize("name", LABELLED)
def test_no_text_has_two_labels(name: str) -> None:
    seen: dict[str, str] = {}
    for row in rows(name):
        label = json.dumps(row.pop("answers", None) or row.pop("label"))
        row.pop("id", None)
        assert seen.setdefault(json.dumps(row), label) == label


@pytest.mark.parametrize("name", ["sentiment", "acceptability", "entailment"])
def test_labels_are_about_even(name: str) -> None:
    counts = Counter(row["label"] for row in rows(name))
    assert max(counts.values()) < 1.2 * min(counts.values())


def speaks_well(sentence: str) -> bool:
    """The sentiment, read from the words by the rules that the docs state."""
    said = sentence.lower().rstrip(".")
    if said.startswith("although "):
        said = said.partition(", ")[2]
    said = said.rpartition(", but ")[2]
    words = said.partition(" and ")[0].split()
    turned = sum(word in ("not", "never", "nobody") for word in words)
    feelings = [word for word in words if word in GOOD or word in BAD]
    good = feelings[0] in GOOD if feelings else "liked" in words
    return good == (turned % 2 == 0)


def test_sentiment_follows_from_the_words() -> None:
    # so the best score that there can be is 1
    wrong = [row for row in rows("sentiment") if speaks_well(str(row["sentence"])) != row["label"]]
    assert not wrong


def test_the_reader_of_sentiment_can_be_wrong() -> None:
    assert speaks_well("Although the film was bad, it is not true that the film is not lovely.")
    assert not speaks_well("Nobody found the soup good.")
    assert all(speaks_well(str(row["sentence"])) == bool(row["label"]) for row in rows("sentiment"))


def test_answers_stand_where_they_are_said_to_stand() -> None:
    found = rows("questions")
    for row in found:
        answers, context = row["answers"], str(row["context"])
        assert isinstance(answers, dict)
        for said, start in zip(answers["text"], answers["answer_start"], strict=True):
            assert context[start : start + len(said)] == said
    without = sum(not row["answers"]["text"] for row in found)  # type: ignore[index]
    assert 0.28 < without / len(found) < 0.39


def test_agreement() -> None:
    see = next(verb for verb in TRANSITIVE if verb.base == "see")
    assert verb_group(see, "one", "present") == ("sees",)
    assert verb_group(see, "many", "present", negated=True) == ("do", "not", "see")
    assert verb_group(see, "one", "past", negated=True, never=True) == ("never", "saw")
    assert verb_group(None, "many", "future") == ("will", "be")


def test_words_are_told_apart() -> None:
    forms = [form for nouns in NOUNS.values() for noun in nouns for form in (noun.one, noun.many)]
    verbs = [f for verb in (*TRANSITIVE, *INTRANSITIVE) for f in (verb.base, verb.third, verb.past)]
    assert len(forms) == len(set(forms))
    assert len(verbs) == len(set(verbs))
    assert not set(GOOD) & set(BAD)
    assert not set(forms) & {*verbs, *GOOD, *BAD}


def test_a_place_in_a_text() -> None:
    words = ["mira", "has", "two", "figs", ".", "she", "sleeps", "."]
    assert write(words) == "Mira has two figs. She sleeps."
    assert place(words, 2, 2) == (9, "two figs")
    assert place(words, 5, 1) == (19, "She")


@pytest.mark.parametrize("name", LABELLED)
def test_tasks_load_without_a_file(name: str) -> None:
    split = load_split(get_task(f"demo/{name}"), "validation")
    assert len(split) == SIZES["validation"]
    assert split.partial is None
    assert len(subsample(split, 10, 0)) == 10


def test_texts_load_without_a_file() -> None:
    found = load_texts("demo/text", limit=5)
    assert list(found.texts) == [text("validation", number) for number in range(5)]
    assert load_texts("demo/text", split="test", limit=5).fingerprint != found.fingerprint
    assert list(columns("text", "validation")) == ["text"]
