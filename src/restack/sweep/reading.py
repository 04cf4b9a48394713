"""Values of a sweep file as they are asked for; what is wrong is said with its line."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from restack.errors import RestackError
from restack.sweep.lines import Path as Place
from restack.sweep.lines import line_of


class DefinitionError(RestackError):
    """A sweep that is not what it should be; the message names file and line."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where things stand in a file."""

    where: str
    lines: Mapping[Place, int]
    folder: Path
    places: Mapping[str, Place] = field(default_factory=dict)
    """Where a key was written, if not at the top."""

    @contextmanager
    def at(self, key: str, *inner: str | int) -> Iterator[None]:
        """Errors inside are of this place."""
        try:
            yield
        except DefinitionError:
            raise
        except RestackError as error:
            line = line_of(self.lines, (*self.places.get(key, (key,)), *inner))
            place = f"{self.where}, line {line}" if line else f"{self.where}, {key}"
            raise DefinitionError(f"{place}: {error.message}", hint=error.hint) from error

    def known(self, given: Mapping[str, Any], known: Sequence[str], *above: str | int) -> None:
        """Refuse keys that mean nothing; `above` is where the table stands."""
        for key in given:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                line = line_of(self.lines, (*above, key))
                raise DefinitionError(
                    f"{self.where}{f', line {line}' if line else ''}: unknown key {key!r}",
                    hint=f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}.",
                )


@dataclass(frozen=True, slots=True)
class Values:
    """A table of the file, each value by its key as what it should be."""

    given: Mapping[str, Any]
    source: Source

    def __contains__(self, key: str) -> bool:
        return key in self.given

    def at(self, key: str, *inner: str | int) -> Any:
        return self.source.at(key, *inner)

    def text(self, key: str, default: str) -> str:
        value = self.given.get(key, default)
        with self.at(key):
            if not isinstance(value, str):
                raise RestackError(f"{key} is {value!r}", hint="Give text.")
        return value

    def texts(self, key: str, default: list[str]) -> list[str]:
        value = self.given.get(key, default)
        with self.at(key):
            value = [value] if isinstance(value, str) else value
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise RestackError(f"{key} is {value!r}", hint="Give a list of texts.")
        return value

    def whole(self, key: str, default: int | None, *, least: int) -> int | None:
        value = self.given.get(key, default)
        with self.at(key):
            if value is not None and not is_whole(value, least):
                raise RestackError(f"{key} is {value!r}", hint=f"Give a whole number from {least}.")
        return value

    def table(self, key: str) -> dict[Any, Any]:
        value = self.given.get(key, {})
        with self.at(key):
            if not isinstance(value, Mapping):
                raise RestackError(f"{key} is {value!r}", hint=f"Write it as a table [{key}].")
        return dict(value)

    def members(self, key: str, default: list[Any]) -> list[tuple[int, Any]]:
        """The members of a list with their places; one text or table is a list of it."""
        value = self.given.get(key, default)
        value = [value] if isinstance(value, str | Mapping) else value
        with self.at(key):
            if not isinstance(value, list) or not value:
                raise RestackError(f"{key} is {value!r}", hint="Give a list with something in it.")
        return list(enumerate(value))

    def path(self, text: str) -> str:
        """A place beside the file if there is one; else what it was (a Hub name)."""
        beside = self.source.folder / Path(text).expanduser()
        return str(beside.resolve()) if beside.exists() else text


def is_whole(value: Any, least: int) -> bool:
    """Whether this is a whole number, and large enough."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
