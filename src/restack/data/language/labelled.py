"""Labelled examples of the demo language: four tasks in the form of GLUE and SQuAD.

All labels follow from the texts by rule, so that the Bayes-optimal score of every task is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from restack.data.language.dice import Dice
from restack.data.language.facts import scene
from restack.data.language.inference import RELATIONS, pair
from restack.data.language.judgement import sentence
from restack.data.language.opinions import review
from restack.data.language.stories import text
from restack.data.language.writing import place, write

Row = Mapping[str, Any]
SIZES = {"train": 20_000, "validation": 1_000, "test": 1_000}

_DENIALS = frozenset(("not", "never", "nobody"))
_TURNS = frozenset(("but", "although"))


def sentiment(split: str, number: int) -> Row:
    """Do these words speak well of a work?"""
    dice = Dice("sentiment", split, number)
    words, good = review(dice)
    # most opinions are plain: in running text every second one is turned round
    while (_DENIALS.intersection(words) and dice.chance(0.6)) or (
        _TURNS.intersection(words) and dice.chance(0.4)
    ):
        words, good = review(dice)
    return {"sentence": write((*words, ".")), "label": int(good)}


def acceptability(split: str, number: int) -> Row:
    """Is this sentence well formed?"""
    dice = Dice("acceptability", split, number)
    right = dice.chance(0.5)
    return {"sentence": write((*sentence(dice, right), ".")), "label": int(right)}


def entailment(split: str, number: int) -> Row:
    """Does the second sentence follow from the first?"""
    dice = Dice("entailment", split, number)
    label = dice.below(3)
    premise, hypothesis = pair(dice, RELATIONS[label])
    return {
        "premise": write((*premise, ".")),
        "hypothesis": write((*hypothesis, ".")),
        "label": label,
    }


def questions(split: str, number: int) -> Row:
    """Which words of the text answer the question, if any do? One in three has no answer."""
    dice = Dice("questions", split, number)
    facts = scene(dice, 4)
    fact = facts.pop(dice.below(4)) if dice.chance(1 / 3) else dice.pick(facts)
    question, first, count = dice.pick(fact.questions)
    words: list[str] = []
    answers: dict[str, list[Any]] = {"text": [], "answer_start": []}
    spans: list[int] = []
    for told in facts:
        # a pronoun would hide who it is that the question asks for
        if told is fact:
            spans.append(len(words) + first)
        words += [*told.words, "."]
    for span in spans:
        start, found = place(words, span, count)
        answers = {"text": [found], "answer_start": [start]}
    return {
        "id": f"{split}-{number}",
        "question": write((*question, "?")),
        "context": write(words),
        "answers": answers,
    }


def texts(split: str, number: int) -> Row:
    """Running text, for language modelling."""
    return {"text": text(split, number)}


MADE: dict[str, Callable[[str, int], Row]] = {
    "text": texts,
    "sentiment": sentiment,
    "acceptability": acceptability,
    "entailment": entailment,
    "questions": questions,
}


def columns(name: str, split: str) -> dict[str, list[Any]]:
    """All rows of a split, as columns."""
    rows = [MADE[name](split, number) for number in range(SIZES[split])]
    return {column: [row[column] for row in rows] for column in rows[0]}
