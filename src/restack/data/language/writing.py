"""Words as text: spaces, stops and capitals; and where in the text a run of words stands."""

from __future__ import annotations

from collections.abc import Sequence

from restack.data.language.words import PROPER

_NO_SPACE = frozenset(".,?")
_ENDS = frozenset(".?")


def write(words: Sequence[str]) -> str:
    """The text of some words.

    >>> write(["the", "fox", "sleeps", ",", "but", "mira", "does", "not", "."])
    'The fox sleeps, but Mira does not.'
    """
    return "".join(_pieces(words))


def place(words: Sequence[str], first: int, count: int) -> tuple[int, str]:
    """Where the words from `first` begin in the text of all, and their text."""
    pieces = _pieces(words)
    before = len("".join(pieces[:first]))
    found = "".join(pieces[first : first + count])
    return before + len(found) - len(found.lstrip()), found.strip()


def _pieces(words: Sequence[str]) -> list[str]:
    pieces: list[str] = []
    begins = True
    for word in words:
        space = "" if word in _NO_SPACE or not pieces else " "
        shown = word.capitalize() if begins or word in PROPER else word
        pieces.append(space + shown)
        begins = word in _ENDS
    return pieces
