"""On which line of a TOML file each key and each member of a list stands.

tomllib tells no positions. This walks over text that tomllib has accepted, so that it need not find
mistakes: it knows strings, comments, brackets and keys, and counts lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRINGS = (
    re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL),
    re.compile(r"'''.*?'{3,5}", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)
_OTHER = re.compile(r"[^,\]}#\n]+")  # numbers, dates, truth values


def line_numbers(text: str) -> dict[Path, int]:
    """The line, from 1, of each key and list member, by its path such as ("plans", 2).

    >>> lines = line_numbers('name = "x"\\n[[block]]\\nplans = [\\n "0-5",\\n "0-3"]')
    >>> lines["block", 0, "plans", 1]
    5
    """
    return _Walk(text).run()


def line_of(lines: Mapping[Path, int], path: Path) -> int | None:
    """The line of a path, or of the nearest thing around it."""
    for end in range(len(path), -1, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return None


class _Walk:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found: dict[Path, int] = {}
        self.counts: dict[Path, int] = {}

    def run(self) -> dict[Path, int]:
        table: Path = ()
        self.skip(_BLANK)
        while self.at < len(self.text):
            if self.text.startswith("[[", self.at):
                self.at += 2
                name = self.resolved(self.key())
                number = self.counts[name] = self.counts.get(name, -1) + 1
                table = (*name, number)
                self.note(table)
                self.at += 2
            elif self.text[self.at] == "[":
                self.at += 1
                table = self.resolved(self.key())
                self.note(table)
                self.at += 1
            else:
                self.pair(table)
            self.skip(_BLANK)
        return self.found

    def note(self, path: Path) -> None:
        line = self.text.count("\n", 0, self.at) + 1
        for end in range(1, len(path) + 1):
            self.found.setdefault(path[:end], line)

    def skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            return ""
        self.at = match.end()
        return match.group()

    def resolved(self, name: Path) -> Path:
        """A header's name, where parts that are lists of tables mean their last member."""
        path: Path = ()
        for part in name[:-1]:
            path = (*path, part)
            if path in self.counts:
                path = (*path, self.counts[path])
        return (*path, name[-1])

    def key(self) -> Path:
        parts: list[str] = []
        while True:
            self.skip(_BLANK)
            quoted = self.text[self.at] in "\"'"
            word = self.string() if quoted else self.skip(_BARE)
            parts.append(word[1:-1] if quoted else word)
            self.skip(_BLANK)
            if not self.text.startswith(".", self.at):
                return tuple(parts)
            self.at += 1

    def string(self) -> str:
        return next((word for word in map(self.skip, _STRINGS) if word), "")

    def pair(self, table: Path) -> None:
        start = self.at
        path = (*table, *self.key())
        after, self.at = self.at, start
        self.note(path)
        self.at = after + 1  # over the =
        self.skip(_BLANK)
        self.value(path)

    def value(self, path: Path) -> None:
        opening = self.text[self.at]
        if opening in "[{":
            self.at += 1
            number = 0
            while True:
                self.skip(_BLANK)
                if self.text[self.at] in "]}":
                    break
                if self.text[self.at] == ",":
                    self.at += 1
                elif opening == "[":
                    self.note((*path, number))
                    self.value((*path, number))
                    number += 1
                else:
                    self.pair(path)
            self.at += 1
        elif not self.string():
            self.skip(_OTHER)
