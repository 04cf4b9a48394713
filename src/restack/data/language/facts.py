"""Facts about people that a text can state and ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from restack.data.language import words as w
from restack.data.language.dice import Dice
from restack.data.language.grammar import THINGS, noun
from restack.data.language.words import Name

Words = tuple[str, ...]


# `found` also says what somebody thinks of a work, so that it would not tell who found what
_COMMON = [verb for verb in w.TRANSITIVE[:21] if verb.base != "find"]


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence about a person, and questions whose answers are words of it."""

    person: Name
    words: Words
    """Without the stop; the first is the name."""
    questions: tuple[tuple[Words, int, int], ...]
    """A question, and the answer as its first word in `words` and its length."""
    relation: str
    follows: Words = ()
    """What else is then true, without the stop."""


def carries(dice: Dice, person: Name, others: list[Name]) -> Fact:
    thing, colour = noun(dice, THINGS), dice.pick(w.COLOURS)
    verb = dice.pick([v for v in _COMMON if thing.kind in v.takes])
    count = dice.below(6) + 1
    form = thing.form("one" if count == 1 else "many")
    what = (w.article(colour) if count == 1 else w.NUMERALS[count], colour, form)
    return Fact(
        person,
        (person.name, verb.third, *what),
        (
            (("what", "does", person.name, verb.base), 2, 3),
            (("who", verb.third, "the", colour, form), 0, 1),
        ),
        f"{verb.base}-{colour}-{form}",
    )


def lives(dice: Dice, person: Name, others: list[Name]) -> Fact:
    where = (dice.pick(w.PREPOSITIONS), "the", noun(dice, ("place",)).one)
    return Fact(
        person,
        (person.name, "lives", *where),
        ((("where", "does", person.name, "live"), 2, 3), (("who", "lives", *where), 0, 1)),
        f"live-{where[0]}-{where[2]}",
    )


def finds(dice: Dice, person: Name, others: list[Name]) -> Fact:
    work, feeling = noun(dice, ("work",)).one, dice.often(dice.pick((w.GOOD, w.BAD)))
    liked = "liked" if feeling in w.GOOD else "hated"
    return Fact(
        person,
        (person.name, "found", "the", work, feeling),
        (
            (("what", "did", person.name, "find", feeling), 2, 2),
            (("who", "found", "the", work, feeling), 0, 1),
        ),
        f"find-{work}",
        (person.pronoun, liked, "it"),
    )


def sees(dice: Dice, person: Name, others: list[Name]) -> Fact:
    animal, mood = noun(dice, ("animal",)).one, dice.pick(w.MOODS)
    verb = dice.pick([v for v in _COMMON if "animal" in v.takes])
    return Fact(
        person,
        (person.name, verb.past, "the", mood, animal),
        (
            (("what", "did", person.name, verb.base), 2, 3),
            (("who", verb.past, "the", mood, animal), 0, 1),
        ),
        f"{verb.base}-{mood}-{animal}",
    )


def taller(dice: Dice, person: Name, others: list[Name]) -> Fact:
    more, other = w.MORE[dice.pick(w.TALL)], dice.pick(others)
    return Fact(
        person,
        (person.name, "is", more, "than", other.name),
        ((("who", "is", more, "than", other.name), 0, 1),),
        f"{more}-{other.name}",
        (other.name, "is", "not", more, "than", person.name),
    )


def has(dice: Dice, person: Name, others: list[Name]) -> Fact:
    kind = dice.pick(THINGS)
    first, second = dice.some(w.NOUNS[kind][:14], 2)
    counts = [dice.below(7) + 2 for _ in range(2)]
    total = w.NUMERALS[sum(counts)]
    words = (w.NUMERALS[counts[0]], first.many, "and", w.NUMERALS[counts[1]], second.many)
    return Fact(
        person,
        (person.name, "has", *words),
        tuple(
            (("how", "many", thing.many, "does", person.name, "have"), 2 + 3 * at, 1)
            for at, thing in enumerate((first, second))
        ),
        f"have-{person.name}-{kind}",
        (person.pronoun, "has", total, w.CLASSES[kind].many),
    )


KINDS: tuple[tuple[Callable[[Dice, Name, list[Name]], Fact], float], ...] = (
    (carries, 3.0),
    (lives, 2.0),
    (finds, 2.0),
    (sees, 2.0),
    (taller, 1.0),
    (has, 2.0),
)


def scene(dice: Dice, count: int) -> list[Fact]:
    """Facts about two or three people; no two are of one relation, so answers are unique."""
    people = _people(dice, 3)
    facts: list[Fact] = []
    while len(facts) < count:
        # mostly the one that was last spoken of, so that a pronoun can follow
        person = facts[-1].person if facts and dice.chance(0.4) else dice.pick(people)
        made = dice.weighed(KINDS)(dice, person, [other for other in people if other != person])
        clash = [
            fact
            for fact in facts
            if fact.relation == made.relation
            or {question for question, *_ in fact.questions}
            & {question for question, *_ in made.questions}
        ]
        if not clash:
            facts.append(made)
    return facts


def _people(dice: Dice, count: int) -> list[Name]:
    found: list[Name] = []
    while len(found) < count:
        person = dice.often(w.NAMES)
        if person not in found:
            found.append(person)
    return found
