"""Pairs of sentences: whether the second follows from the first, contradicts it, or neither.

Numbers mean exactly so many, every fox is an animal, and an animal need not be a fox.
"""

from __future__ import annotations

from typing import Literal

from restack.data.language import words as w
from restack.data.language.dice import Dice
from restack.data.language.facts import Words
from restack.data.language.grammar import THINGS, noun, verb_group
from restack.data.language.words import Noun

Relation = Literal["entailment", "neutral", "contradiction"]
RELATIONS: tuple[Relation, ...] = ("entailment", "neutral", "contradiction")


def pair(dice: Dice, relation: Relation) -> tuple[Words, Words]:
    """A premise and a hypothesis that stand in this relation, without their stops."""
    return dice.weighed(((_carrying, 3.0), (_lacking, 2.0), (_all, 2.5), (_comparing, 1.5)))(
        dice, relation
    )


def _carrying(dice: Dice, relation: Relation) -> tuple[Words, Words]:
    """`Mira carries three red baskets near the mill.`"""
    who, other = (name.name for name in dice.some(w.NAMES[:24], 2))
    thing, (colour, colour_2) = noun(dice, THINGS), dice.some(w.COLOURS, 2)
    verb = dice.pick([v for v in w.TRANSITIVE[:20] if thing.kind in v.takes])
    count, count_2 = dice.some(w.NUMERALS[2:8], 2)
    near: Words = (dice.pick(w.PREPOSITIONS), "the", noun(dice, ("place",)).one)
    whole = w.CLASSES[thing.kind]
    does: Words = (who, verb.third)
    what: Words = (count, colour, thing.many)
    premise = (*does, *what, *near)
    if relation == "entailment":
        return premise, dice.pick(
            (
                (*does, *what),
                (*does, colour, thing.many, *near),
                (*does, thing.many),
                (*does, colour, whole.many, *near),
                (*does, whole.many),
                ("somebody", verb.third, *what),
                ("somebody", verb.third, whole.many, *near),
            )
        )
    if relation == "contradiction":
        no = (who, "does", "not", verb.base)
        return premise, dice.pick(
            (
                (*does, count_2, colour, thing.many, *near),
                (*no, "any", thing.many),
                (*no, "any", whole.many),
                (*no, *what, *near),
                ("nobody", verb.third, "any", thing.many),
                ("nobody", verb.third, "any", colour, whole.many),
            )
        )
    plain = (who, verb.third, colour, thing.many)
    return dice.pick(
        (
            (premise, (*does, colour_2, thing.many)),
            (premise, (*does, *what, *near, *dice.pick(w.PRESENT).split())),
            (premise, (other, verb.third, *what)),
            (premise, (*does, dice.pick(w.SIZES), thing.many)),
            ((*does, count, whole.many, *near), (*does, thing.many)),
            (plain, (*plain, *near)),
            (plain, (*does, *what)),
        )
    )


def _lacking(dice: Dice, relation: Relation) -> tuple[Words, Words]:
    """`Mira does not carry any containers.`: under a negation classes entail their members."""
    who, other = (name.name for name in dice.some(w.NAMES[:24], 2))
    kind, kind_2 = dice.some(THINGS, 2)
    thing, whole = noun(dice, (kind,)), w.CLASSES[kind]
    verb = dice.pick([v for v in w.TRANSITIVE[:13] if {kind, kind_2} <= set(v.takes)])
    no = (who, "does", "not", verb.base, "any")
    colour = dice.pick(w.COLOURS)
    if relation == "entailment":
        return (*no, whole.many), dice.pick(((*no, thing.many), (*no, colour, thing.many)))
    if relation == "contradiction":
        count = dice.pick(w.NUMERALS[2:8])
        return (*no, whole.many), dice.pick(
            ((who, verb.third, count, thing.many), (who, verb.third, colour, thing.many))
        )
    return dice.pick(
        (
            ((*no, thing.many), (*no, whole.many)),
            ((*no, colour, thing.many), (*no, thing.many)),
            ((*no, whole.many), (*no, w.CLASSES[kind_2].many)),
            ((*no, whole.many), (other, *no[1:], thing.many)),
            ((*no, whole.many), (other, verb.third, thing.many)),
        )
    )


def _all(dice: Dice, relation: Relation) -> tuple[Words, Words]:
    """`Every fox sleeps near the mill.`, `No animal sleeps near the mill.`"""
    member, other = dice.some(w.NOUNS["animal"][:30], 2)
    verb = dice.often(w.INTRANSITIVE)
    tail: Words = (dice.pick(w.PREPOSITIONS), "the", noun(dice, ("place",)).one)
    does, does_not = (
        (*verb_group(verb, "one", "present", negated=negated), *tail) for negated in (False, True)
    )
    mood, animal = dice.pick(w.MOODS), w.CLASSES["animal"]

    def no(thing: Noun) -> Words:
        return ("no", thing.one, *does)

    def every(thing: Noun) -> Words:
        return ("every", thing.one, *does)

    if relation == "entailment":
        return dice.pick(
            (
                (every(member), ("the", mood, member.one, *does)),
                (every(animal), every(member)),
                (every(animal), ("the", member.one, *does)),
                (no(animal), no(member)),
                (no(animal), ("the", mood, member.one, *does_not)),
                (no(member), ("the", member.one, *does_not)),
            )
        )
    if relation == "contradiction":
        return dice.pick(
            (
                (every(member), ("the", mood, member.one, *does_not)),
                (every(animal), ("the", member.one, *does_not)),
                (every(animal), no(member)),
                (no(animal), every(member)),
                (no(animal), ("the", mood, member.one, *does)),
                (no(member), ("the", member.one, *does)),
            )
        )
    return dice.pick(
        (
            (every(member), every(animal)),
            (every(member), every(other)),
            (every(member), ("the", other.one, *does_not)),
            (no(member), no(animal)),
            (no(member), ("the", other.one, *does)),
            (("the", mood, member.one, *does), every(member)),
        )
    )


def _comparing(dice: Dice, relation: Relation) -> tuple[Words, Words]:
    """`Mira is taller than Arlo and Arlo is taller than Nils.`"""
    a, b, c, d = (name.name for name in dice.some(w.NAMES[:24], 4))
    more, more_2 = (w.MORE[word] for word in dice.some(w.TALL, 2))

    def than(first: str, second: str, word: str = more) -> Words:
        return (first, "is", word, "than", second)

    chain = (*than(a, b), "and", *than(b, c))
    if dice.chance(0.5):
        chain = (*than(b, c), "and", *than(a, b))
    if relation == "entailment":
        return chain, dice.pick((than(a, c), than(a, b), (c, "is", "not", more, "than", a)))
    if relation == "contradiction":
        return chain, dice.pick((than(c, a), than(b, a), (a, "is", "not", more, "than", c)))
    return chain, dice.pick((than(a, d), than(d, b), than(a, c, more_2)))
