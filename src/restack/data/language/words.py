"""The words of the demo language: English ones in simple use, and invented ones that are rare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from restack.data.language.dice import Dice

Number = Literal["one", "many"]
NUMBERS: tuple[Number, ...] = ("one", "many")


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun and the class of things it belongs to."""

    one: str
    many: str
    kind: str

    def form(self, number: Number) -> str:
        return self.one if number == "one" else self.many


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb; `takes` has the classes of its object, and is empty if there is none."""

    base: str
    third: str
    past: str
    takes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Name:
    """A person."""

    name: str
    pronoun: str

    @property
    def reflexive(self) -> str:
        return "herself" if self.pronoun == "she" else "himself"

    @property
    def possessive(self) -> str:
        return "her" if self.pronoun == "she" else "his"


_SIBILANTS = ("s", "x", "z", "ch", "sh")


def _s(word: str) -> str:
    if word.endswith(_SIBILANTS):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def _ed(word: str) -> str:
    if word.endswith("e"):
        return word + "d"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ied"
    return word + "ed"


def _nouns(kind: str, words: str) -> tuple[Noun, ...]:
    """Nouns from `fox wolf/wolves`."""
    found = (word.partition("/") for word in words.split())
    return tuple(Noun(one, many or _s(one), kind) for one, _, many in found)


def _verbs(words: str, *takes: str) -> tuple[Verb, ...]:
    """Verbs from `carry see/saw`."""
    found = (word.partition("/") for word in words.split())
    return tuple(Verb(base, _s(base), past or _ed(base), takes) for base, _, past in found)


def _invented(seed: str, count: int, endings: Sequence[str], taken: set[str]) -> list[str]:
    """New words of two or three syllables."""
    dice = Dice("words", seed)
    found: list[str] = []
    starts = [
        "b",
        "d",
        "f",
        "g",
        "h",
        "j",
        "k",
        "l",
        "m",
        "n",
        "p",
        "r",
        "s",
        "t",
        "v",
        "z",
        "br",
        "dr",
        "gr",
        "kr",
        "pl",
        "sk",
        "st",
        "tr",
    ]
    ends = ["", "", "", "", "l", "m", "n", "r", "s"]
    while len(found) < count:
        syllables = [
            dice.pick(starts) + dice.pick("aeiou") + dice.pick(ends)
            for _ in range(1 + dice.chance(0.3))
        ]
        word = "".join(syllables) + dice.pick(starts[:16]) + dice.pick(endings)
        if word not in taken and len(word) > 4:
            taken.add(word)
            found.append(word)
    return found


_COMMON = {
    "animal": "fox owl hen dog cat goat mouse/mice goose/geese horse wolf/wolves crow frog",
    "person": "baker sailor teacher doctor child/children farmer singer guard painter "
    "woman/women man/men neighbour",
    "fruit": "apple pear plum cherry fig lemon",
    "tool": "hammer knife/knives rope ladder brush key",
    "container": "basket box cup bag bottle jar",
    "garment": "coat hat scarf/scarves shoe glove cape",
    "place": "harbour garden market mill tower bridge forest library kitchen island",
    "work": "film song book soup play story dinner poem",
}
_taken = {
    form
    for kind, words in _COMMON.items()
    for noun in _nouns(kind, words)
    for form in (noun.one, noun.many)
}
_RARE = {"animal": 60, "fruit": 40, "tool": 40, "container": 30, "garment": 30, "place": 30}

NOUNS: dict[str, tuple[Noun, ...]] = {
    kind: _nouns(kind, words)
    + _nouns(
        kind, " ".join(_invented(kind, _RARE.get(kind, 0), ("ock", "el", "en", "ip", "um"), _taken))
    )
    for kind, words in _COMMON.items()
}
CLASSES = {kind: Noun(kind, _s(kind), kind) for kind in ("animal", "fruit", "tool", "container")}
CLASSES["garment"] = Noun("garment", "garments", "garment")
"""What a thing also is: every fox is an animal."""

_LIVING = ("animal", "person")
_THINGS = ("fruit", "tool", "container", "garment")
TRANSITIVE: tuple[Verb, ...] = (
    *_verbs("see/saw find/found like watch need", *_LIVING, *_THINGS),
    *_verbs("follow greet chase help", *_LIVING),
    *_verbs("carry hide/hid buy/bought sell/sold clean", *_THINGS),
    *_verbs("eat/ate peel", "fruit"),
    *_verbs("repair lend/lent", "tool", "container"),
    *_verbs("wear/wore sew/sewed", "garment"),
    *_verbs("visit leave/left", "place"),
    *_verbs(" ".join(_invented("verbs", 40, ("ap", "ock", "urn", "ill"), _taken)), *_THINGS),
)
INTRANSITIVE: tuple[Verb, ...] = (
    *_verbs("sleep/slept run/ran sing/sang wait laugh fall/fell arrive dance swim/swam work"),
    *_verbs("smile rest"),
    *_verbs(" ".join(_invented("intransitive", 24, ("orn", "ack", "im"), _taken))),
)

_SHE = "mira tove lena asha runa ines kaya petra sanna yuki zora edith"
_HE = "arlo bram emil joss kofi luca nils omar piet ravi timo viggo"
NAMES: tuple[Name, ...] = tuple(
    Name(name, pronoun)
    for pair in zip(
        [(name, "she") for name in (*_SHE.split(), *_invented("she", 40, ("a", "ia"), _taken))],
        [(name, "he") for name in (*_HE.split(), *_invented("he", 40, ("o", "us"), _taken))],
        strict=True,
    )
    for name, pronoun in pair
)

COLOURS = ["red", "blue", "green", "yellow", "black", "white", "brown", "grey"]
SIZES = ["small", "large", "old", "new", "heavy", "light"]
MOODS = ["hungry", "tired", "happy", "angry", "quiet", "busy"]
TALL = ["tall", "strong", "fast", "clever"]
MORE = {"tall": "taller", "strong": "stronger", "fast": "faster", "clever": "cleverer"}
GOOD = [
    "wonderful",
    "lovely",
    "charming",
    "brilliant",
    "delightful",
    "splendid",
    "pleasant",
    "good",
]
BAD = ["dreadful", "boring", "awful", "clumsy", "dull", "ugly", "terrible", "bad"]
GOOD += _invented("good", 12, ("ash", "ent"), _taken)
BAD += _invented("bad", 12, ("ust", "olk"), _taken)
NUMERALS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
]
PREPOSITIONS = ["near", "behind", "under", "beside"]
PAST = ("yesterday", "last week", "long ago")
PRESENT = ("today", "every day", "now")
FUTURE = ("tomorrow", "next week", "soon")
PROPER = frozenset(name.name for name in NAMES)


def article(word: str) -> str:
    """`a` or `an`, by the word that follows."""
    return "an" if word[0] in "aeiou" else "a"
