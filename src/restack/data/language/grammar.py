"""Sentences: noun phrases and clauses whose parts agree, however far they stand apart.

A verb agrees with the head of its subject, not with the noun that stands nearest; tense agrees
with adverbs of time, reflexives with the subject, `any` and `ever` stand under a negation only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from restack.data.language import words as w
from restack.data.language.dice import Dice
from restack.data.language.words import Name, Noun, Number, Verb

Tense = Literal["past", "present", "future"]
THINGS = ("fruit", "tool", "container", "garment")
LIVING = ("animal", "person")


@dataclass(frozen=True, slots=True)
class Phrase:
    """A noun phrase: its words, and what others must know of it to agree with it."""

    words: tuple[str, ...]
    number: Number
    head: Noun | Name

    @property
    def reflexive(self) -> str | None:
        """None where the language has none: it does not say whether a baker is a he or a she."""
        if isinstance(self.head, Name):
            return self.head.reflexive
        if self.number == "many":
            return "themselves"
        return None if self.head.kind == "person" else "itself"


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause before it is put into words."""

    subject: Phrase
    verb: Verb | None
    """None for `to be`."""
    rest: tuple[str, ...]
    """What follows the verb: an object, or what the subject is."""
    tense: Tense
    when: tuple[str, ...] = ()
    negated: bool = False
    never: bool = False

    def words(self) -> tuple[str, ...]:
        group = verb_group(self.verb, self.subject.number, self.tense, self.negated, self.never)
        return (*self.subject.words, *group, *self.rest, *self.when)


def verb_group(
    verb: Verb | None, number: Number, tense: Tense, negated: bool = False, never: bool = False
) -> tuple[str, ...]:
    """The words of a verb in agreement with its subject."""
    one = number == "one"
    no = ("never",) if never else ("not",) if negated else ()
    if tense == "future":
        return ("will", *no, verb.base if verb else "be")
    if verb is None:
        form = ("is" if one else "are") if tense == "present" else ("was" if one else "were")
        return (form, *no)
    if negated and not never:
        helper = ("does" if one else "do") if tense == "present" else "did"
        return (helper, "not", verb.base)
    if tense == "past":
        return (*no, verb.past)
    return (*no, verb.third if one else verb.base)


def when(dice: Dice, tense: Tense) -> tuple[str, ...]:
    """Words for a time that agrees with the tense."""
    times = {"past": w.PAST, "present": w.PRESENT, "future": w.FUTURE}[tense]
    return tuple(dice.pick(times).split())


def tense_of(dice: Dice) -> Tense:
    return dice.weighed((("past", 4.0), ("present", 5.0), ("future", 1.5)))


def noun(dice: Dice, kinds: Sequence[str]) -> Noun:
    """A noun of one of these classes, common ones most often."""
    return dice.often(w.NOUNS[dice.pick(kinds)])


def adjectives(dice: Dice, kind: str) -> tuple[str, ...]:
    """None, one or two, in the order that they have."""
    if kind == "person":
        return (dice.pick((*w.MOODS, *w.TALL)),) if dice.chance(0.3) else ()
    found: tuple[str, ...] = (dice.pick(w.SIZES),) if dice.chance(0.25) else ()
    if dice.chance(0.3):
        found += (dice.pick(w.MOODS if kind == "animal" else w.COLOURS),)
    return found


def determined(dice: Dice, number: Number, rest: Sequence[str]) -> tuple[str, ...]:
    """A determiner that agrees in number, in front of the rest."""
    if number == "one":
        found = dice.pick(("the", "the", "the", "a", "a", "this", "that", "every"))
        return (w.article(rest[0]) if found == "a" else found, *rest)
    found = dice.pick(("the", "the", "the", "these", "those", "some", "many", "few", "all", "#"))
    return (dice.pick(w.NUMERALS[2:13]) if found == "#" else found, *rest)


def phrase(
    dice: Dice,
    kinds: Sequence[str] = LIVING,
    wanted: Number | None = None,
    *,
    depth: int = 1,
    names: float = 0.3,
) -> Phrase:
    """A noun phrase; `depth` is how deep others may be nested in it."""
    if wanted != "many" and "person" in kinds and dice.chance(names):
        person = dice.often(w.NAMES)
        return Phrase((person.name,), "one", person)
    number = dice.pick(w.NUMBERS) if wanted is None else wanted
    head = noun(dice, kinds)
    bare = determined(dice, number, (*adjectives(dice, head.kind), head.form(number)))
    made = Phrase(bare, number, head)
    if depth and dice.chance(0.25):
        near = phrase(dice, ("place", "person", "animal"), depth=0, names=0.1)
        made = replace(made, words=(*made.words, dice.pick(w.PREPOSITIONS), *near.words))
    if depth and dice.chance(0.2):
        made = replace(made, words=(*made.words, *relative(dice, made)))
    return made


def relative(dice: Dice, of: Phrase) -> tuple[str, ...]:
    """A relative clause: `who watch the owl`, `that the owls watch`."""
    living = isinstance(of.head, Name) or of.head.kind in LIVING
    person = isinstance(of.head, Name) or of.head.kind == "person"
    tense: Tense = dice.pick(("past", "present", "present"))
    pronoun = "who" if person else "that"
    if living and dice.chance(0.65):
        if dice.chance(0.4):
            return (pronoun, *verb_group(dice.often(w.INTRANSITIVE), of.number, tense))
        verb = dice.often(w.TRANSITIVE)
        thing = phrase(dice, verb.takes, depth=0, names=0.1)
        return (pronoun, *verb_group(verb, of.number, tense), *thing.words)
    kind = "person" if person else of.head.kind  # type: ignore[union-attr]
    fitting = [verb for verb in w.TRANSITIVE if kind in verb.takes]
    who = phrase(dice, LIVING, depth=0)
    return (pronoun, *who.words, *verb_group(dice.often(fitting), who.number, tense))


def clause(dice: Dice, subject: Phrase | None = None, *, depth: int = 1) -> Clause:
    """A clause of any of the kinds that there are."""
    subject = subject or phrase(dice, depth=depth)
    tense = tense_of(dice)
    time = when(dice, tense) if dice.chance(0.35) else ()
    negated = dice.chance(0.2)
    never = negated and dice.chance(0.3)
    made = Clause(subject, None, (), tense, time, negated, never)
    if dice.chance(0.25):
        return replace(made, rest=(dice.pick((*w.MOODS, *w.TALL)),))
    if dice.chance(0.25):
        return replace(made, verb=dice.often(w.INTRANSITIVE))
    verb = dice.often(w.TRANSITIVE)
    return replace(made, verb=verb, rest=things(dice, verb, subject, negated, depth))


def things(
    dice: Dice, verb: Verb, subject: Phrase, negated: bool, depth: int = 1
) -> tuple[str, ...]:
    """An object: a reflexive, `any` under negation, or a phrase of a class that the verb takes."""
    if "person" in verb.takes and subject.reflexive and dice.chance(0.2):
        return (subject.reflexive,)
    if negated and dice.chance(0.5):
        return ("any", noun(dice, verb.takes).many)
    return phrase(dice, verb.takes, depth=depth, names=0.15).words


def nobody(dice: Dice) -> tuple[str, ...]:
    """A clause with a negative subject, under which `ever` and `any` may stand."""
    head = noun(dice, LIVING)
    tense: Tense = dice.pick(("past", "present"))
    verb = dice.often(w.TRANSITIVE)
    subject = dice.pick((("nobody",), ("no", head.one)))
    group = verb_group(verb, "one", tense)
    ever = ("ever",) if dice.chance(0.5) else ()
    return (*subject, *ever, *group, "any", noun(dice, verb.takes).many)
