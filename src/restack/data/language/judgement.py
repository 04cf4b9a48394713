"""Sentences that are well formed, and sentences with exactly one thing wrong."""

from __future__ import annotations

from dataclasses import replace

from restack.data.language import words as w
from restack.data.language.dice import Dice
from restack.data.language.facts import Words
from restack.data.language.grammar import (
    LIVING,
    Clause,
    Number,
    Tense,
    clause,
    nobody,
    noun,
    phrase,
    things,
    verb_group,
    when,
)


def sentence(dice: Dice, right: bool) -> Words:
    """A sentence without its stop. Every kind of fault is as frequent as its sound twin."""
    kinds = (_agreement, _reflexive, _polarity, _counting, _timing, _missing, _order)
    return dice.pick(kinds)(dice, right)


def _other(number: Number) -> Number:
    return "many" if number == "one" else "one"


def _agreement(dice: Dice, right: bool) -> Words:
    """The verb agrees with its subject, whatever stands in between."""
    while True:
        made = clause(dice)
        wrong = replace(made, subject=replace(made.subject, number=_other(made.subject.number)))
        if wrong.words() != made.words():  # in the past and future most verbs have one form
            return made.words() if right else wrong.words()


def _reflexive(dice: Dice, right: bool) -> Words:
    subject = phrase(dice, LIVING, names=0.5)
    while subject.reflexive is None:
        subject = phrase(dice, LIVING, names=0.5)
    own = subject.reflexive
    used = own if right else dice.pick([form for form in _REFLEXIVES if form != own])
    verb = dice.often([verb for verb in w.TRANSITIVE if "person" in verb.takes])
    tense: Tense = dice.pick(("past", "present"))
    group = verb_group(verb, subject.number, tense, negated=dice.chance(0.2))
    return (*subject.words, *group, used)


_REFLEXIVES = ("herself", "himself", "itself", "themselves")


def _polarity(dice: Dice, right: bool) -> Words:
    """`any` and `ever` need a negation."""
    subject, verb = phrase(dice), dice.often(w.TRANSITIVE)
    any_thing = ("any", noun(dice, verb.takes).many)
    if dice.chance(0.3):
        words = nobody(dice)
        if right:
            return words
        # what is said of nobody, said of somebody
        return ("somebody", *words[1 if words[0] == "nobody" else 2 :])
    tense: Tense = dice.pick(("past", "present"))
    never = dice.chance(0.4)
    if right:
        return (*subject.words, *verb_group(verb, subject.number, tense, True, never), *any_thing)
    # a negation inside of a relative clause does not reach `any`
    return (*subject.words, *verb_group(verb, subject.number, tense), *any_thing)


def _counting(dice: Dice, right: bool) -> Words:
    """Determiner and noun agree in number."""
    made, number = clause(dice, depth=0), dice.pick(w.NUMBERS)
    head = noun(dice, LIVING)
    one = ("this", "that", "every", "a")
    many = ("these", "those", "many", "few", *w.NUMERALS[2:9])
    determiner = dice.pick(one if number == "one" else many)
    form = head.form(number if right else _other(number))
    if determiner == "a":
        determiner = w.article(form)
    group = verb_group(made.verb, number, made.tense, made.negated, made.never)
    rest = tuple(number_free(dice, made))
    return (determiner, form, *group, *rest, *made.when)


def number_free(dice: Dice, made: Clause) -> Words:
    """The rest of a clause without a reflexive, which would have to agree with the subject."""
    if made.verb is None or not made.verb.takes:
        return made.rest
    return phrase(dice, made.verb.takes, depth=0, names=0.15).words


def _timing(dice: Dice, right: bool) -> Words:
    """Words for a time agree with the tense."""
    made = clause(dice)
    tenses: tuple[Tense, ...] = ("past", "present", "future")
    said = made.tense if right else dice.pick([t for t in tenses if t != made.tense])
    return replace(made, when=when(dice, said)).words()


def _missing(dice: Dice, right: bool) -> Words:
    """A verb that takes an object has one, and one that takes none has none."""
    subject = phrase(dice)
    tense: Tense = dice.pick(("past", "present"))
    if dice.chance(0.5):
        verb = dice.often(w.TRANSITIVE)
        what = things(dice, verb, subject, False)
    else:
        verb, what = dice.often(w.INTRANSITIVE), ()
    if not right:
        what = () if what else phrase(dice, ("fruit", "tool", "container")).words
    return (*subject.words, *verb_group(verb, subject.number, tense), *what)


def _order(dice: Dice, right: bool) -> Words:
    """A determiner stands in front of its noun."""
    subject = phrase(dice, names=0.0)
    made = clause(dice, subject)
    if not right:
        first, second, *others = subject.words
        made = replace(made, subject=replace(subject, words=(second, first, *others)))
    return made.words()
