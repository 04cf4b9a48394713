"""Reading a line of text from left to right, with errors that point at the place."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable
from typing import NoReturn

from restack.errors import PlanError

_BLANK = re.compile(r"[ \t\r\n]*")
_WHOLE = re.compile(r"[0-9]+")  # not \d, which takes the digits of every script
_MOST_DIGITS = 18
_WINDOW = 72


class Reader:
    """A text and how far it has been read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    @property
    def at_end(self) -> bool:
        return self.at >= len(self.text)

    @property
    def next(self) -> str:
        """The character that comes next; empty at the end."""
        return self.text[self.at : self.at + 1]

    def blank(self) -> None:
        self.match(_BLANK)

    def take(self, character: str) -> bool:
        """Step over this character if it comes next."""
        found = self.next == character
        self.at += found
        return found

    def match(self, pattern: re.Pattern[str]) -> str:
        """Step over what the pattern matches here and return it; empty if it does not match."""
        found = pattern.match(self.text, self.at)
        if not found:
            return ""
        self.at = found.end()
        return found.group()

    def whole(self, expected: str) -> int:
        """Read a whole number."""
        start = self.at
        digits = self.match(_WHOLE).lstrip("0")
        if self.at == start:
            self.fail(f"expected {expected}")
        if len(digits) > _MOST_DIGITS:
            self.fail("this number is too large", start)
        return int(digits or "0")

    def span(self) -> tuple[int, int]:
        """Read one layer number, or two joined by '-'."""
        first = self.whole("a layer number")
        return first, self.whole("a layer number") if self.take("-") else first

    def fail(self, reason: str, at: int | None = None, hint: str | None = None) -> NoReturn:
        """Raise the error that shows the text with a caret under the place."""
        shown = _pointed_at(self.text, self.at if at is None else at)
        raise PlanError(f"cannot read the plan: {reason}\n{shown}", hint=hint)


def suggestion(word: str, known: Iterable[str], otherwise: str) -> str:
    """A hint that names the known word nearest to an unknown one."""
    # Long words are no slips of the finger, and comparing them takes time.
    near = difflib.get_close_matches(word, list(known), n=1) if len(word) < 40 else []
    return f"did you mean {near[0]!r}?" if near else otherwise


def _pointed_at(text: str, at: int) -> str:
    """The text, or the stretch of it around `at`, over a line with a caret."""
    start = max(0, at - _WINDOW // 2) if len(text) > _WINDOW else 0
    end = start + _WINDOW
    before = ("..." if start else "") + _printable(text[start:at])
    after = _printable(text[at:end]) + ("..." if end < len(text) else "")
    return f"  {before}{after}\n  {' ' * _width(before)}^"


def _printable(text: str) -> str:
    # A tab, a line break or a combining mark would move the caret away from its place.
    return "".join(
        c if c.isprintable() and not unicodedata.combining(c) else " " if c.isspace() else "?"
        for c in text
    )


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
