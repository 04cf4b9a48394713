"""Running text: short stories, single sentences, reviews and conclusions, to learn a model from."""

from __future__ import annotations

from restack.data.language import words as w
from restack.data.language.dice import Dice
from restack.data.language.facts import Fact, Words, scene
from restack.data.language.grammar import Phrase, clause, nobody
from restack.data.language.inference import pair
from restack.data.language.opinions import review
from restack.data.language.writing import write


def text(split: str, number: int) -> str:
    """The text of this number; the same everywhere and at all times."""
    dice = Dice("text", split, number)
    parts = dice.weighed(((_story, 5.0), (_sentences, 3.0), (_reviews, 1.5), (_conclusions, 1.5)))
    return write(parts(dice))


def _story(dice: Dice) -> Words:
    """Facts in order, some in other words afterwards, and sometimes a question."""
    facts = scene(dice, 2 + dice.below(3))
    words: Words = ()
    before = None
    for fact in facts:
        said = fact.words
        if before == fact.person and dice.chance(0.8):
            said = (fact.person.pronoun, *said[1:])
        words += (*said, ".")
        if fact.follows and dice.chance(0.5):
            words += (*fact.follows, ".")
        elif dice.chance(0.15):
            who = Phrase((fact.person.pronoun,), "one", fact.person)
            words += (*clause(dice, who).words(), ".")
        before = fact.person
    if dice.chance(0.5):
        words += asked(dice, dice.pick(facts))
    return words


def asked(dice: Dice, fact: Fact) -> Words:
    """A question about a fact and its answer."""
    question, first, count = dice.pick(fact.questions)
    return (*question, "?", *fact.words[first : first + count], ".")


def _sentences(dice: Dice) -> Words:
    words: Words = ()
    for _ in range(1 + dice.below(3)):
        said = nobody(dice) if dice.chance(0.1) else clause(dice, depth=2).words()
        if dice.chance(0.2):
            said += (dice.pick(("and", "but", "because")), *clause(dice).words())
        words += (*said, ".")
    return words


def _reviews(dice: Dice) -> Words:
    """What somebody says of a work, and whether he liked it."""
    said, good = review(dice)
    person = dice.often(w.NAMES)
    words: Words = (*said, ".")
    if dice.chance(0.6):
        words += (person.name, "liked" if good else "hated", "it", ".")
    if dice.chance(0.4):
        said, good = review(dice)
        words += (*said, ".")
    return words


def _conclusions(dice: Dice) -> Words:
    """A sentence, and what follows from it or cannot be true."""
    follows = dice.chance(0.5)
    premise, other = pair(dice, "entailment" if follows else "contradiction")
    opening = ("so",) if follows else ("it", "is", "not", "true", "that")
    return (*premise, ".", *opening, *other, ".")
