"""Opinions of works, whose sentiment follows from words, negation and what outweighs what."""

from __future__ import annotations

from restack.data.language import words as w
from restack.data.language.dice import Dice
from restack.data.language.facts import Words
from restack.data.language.grammar import noun


def review(dice: Dice) -> tuple[Words, bool]:
    """Words without the stop, and whether they speak well of the work.

    After `but`, and after the comma of `although`, stands what counts.
    """
    work = noun(dice, ("work",)).one
    words, good = _opinion(dice, work)
    kind = dice.weighed((("plain", 3.0), ("and", 1.5), ("but", 2.0), ("although", 2.0)))
    if kind == "plain":
        return words, good
    other, good_too = _opinion(dice, work)
    while (good == good_too) != (kind == "and"):
        other, good_too = _opinion(dice, work)
    if kind == "and":
        return (*words, "and", *other), good
    if kind == "but":
        return (*words, ",", "but", *other), good_too
    return ("although", *words, ",", *other), good_too


def _opinion(dice: Dice, work: str) -> tuple[Words, bool]:
    """One clause about a work; the denial in front of it turns all that follows."""
    words, good = _plain(dice, work)
    if dice.chance(0.12):
        return ("it", "is", "not", "true", "that", *words), not good
    return words, good


def _plain(dice: Dice, work: str) -> tuple[Words, bool]:
    good = dice.chance(0.5)
    feeling = dice.often(w.GOOD if good else w.BAD)
    what: Words = ("the", work)
    if dice.chance(0.3):
        other = dice.often(w.GOOD if good else w.BAD)
        feelings: Words = (feeling,) if other == feeling else (feeling, "and", other)
    else:
        feelings = ("very", feeling) if dice.chance(0.3) else (feeling,)
    if dice.chance(0.45):
        who = dice.often(w.NAMES).name
        form = dice.below(4)
        if form == 0:
            return ("nobody", "found", *what, *feelings), not good
        if form == 1:
            return (who, "did", "not", "find", *what, *feelings), not good
        if form == 2:
            return (who, "liked" if good else "hated", *what), good
        return (who, "found", *what, *feelings), good
    if dice.chance(0.25):
        seen = dice.pick(("saw", "found", "liked", "bought", "needed"))
        what = (*what, "that", "the", noun(dice, ("person",)).one, seen)
    being = dice.pick(("is", "was"))
    no = dice.weighed((((), 3.0), (("not",), 1.0), (("never",), 0.4)))
    return (*what, being, *no, *feelings), good == (not no)
