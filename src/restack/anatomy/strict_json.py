"""JSON that is read only when it means one thing.

Python's own reader takes the last of two equal keys, accepts lone surrogates that cannot be
printed later, and answers deep nesting with a RecursionError: here each is a `CheckpointError`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from restack.errors import CheckpointError

LIMIT = 32 << 20  # the index of a 91,000-tensor model has 9 MB
_DEPTH = 100
_CONTAINERS = 200_000  # an empty list of 2 bytes takes 64 in memory: no small file may explode

_T = TypeVar("_T")
_SPACE = re.compile(r"[ \t\n\r]*")
_STRINGS = json.JSONDecoder()

DAMAGED = "The file is damaged or incomplete: download it or save it again."


def parse(raw: bytes, where: str, *, constants: bool = False) -> Any:
    """The value that `raw` holds; `where` names the file in errors.

    `constants` allows NaN and Infinity, which transformers writes into configs (Mamba-2's
    `time_step_limit` ends with Infinity).
    """
    if raw.count(b"[") + raw.count(b"{") > _CONTAINERS:
        raise CheckpointError(
            f"{where} holds more than {_CONTAINERS} lists and objects", hint=DAMAGED
        )
    try:
        text = raw.decode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=unique,
            parse_constant=None if constants else refuse_constant,
        )
        if "\\u" in text:
            check_printable(value)
        _check_depth(value)
    except RecursionError:
        raise CheckpointError(f"{where} is nested too deeply", hint=DAMAGED) from None
    except ValueError as error:  # also UnicodeError and JSONDecodeError
        raise CheckpointError(f"{where} is not sound JSON: {error}", hint=DAMAGED) from None
    return value


def parse_object(raw: bytes, where: str, *, constants: bool = False) -> dict[str, Any]:
    """As `parse`, for a file that must hold an object."""
    value = parse(raw, where, constants=constants)
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{where} holds a {type(value).__name__}, not a JSON object", hint=DAMAGED
        )
    return value


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of `pairs`, whose keys must differ (an `object_pairs_hook`)."""
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return members


def refuse_constant(name: str) -> Any:
    """Raise for NaN, Infinity and -Infinity, which JSON does not have (a `parse_constant`)."""
    raise ValueError(f"{name} is not JSON")


def check_printable(value: Any) -> None:
    """Raise for lone surrogates, which JSON can escape but nothing can print or write."""
    json.dumps(value, ensure_ascii=False).encode("utf-8")


def members_of_all(text: str, read: Callable[[int, str], tuple[_T, int]]) -> dict[str, _T]:
    """As `members`, where the object is all that `text` holds."""
    found, at = members(text, skip(text, 0), read)
    if (at := skip(text, at)) < len(text):
        raise ValueError(f"unexpected {text[at]!r} behind its end, at character {at}")
    return found


def members(
    text: str, at: int, read: Callable[[int, str], tuple[_T, int]]
) -> tuple[dict[str, _T], int]:
    """The members of the object at `at`, and where it ends; ValueError if it is not sound.

    `read` takes the place of a value and its key, and returns the value and where it ends. Large
    objects are read so because as one value they would take many times the size of their text.
    """
    found: dict[str, _T] = {}
    at = skip(text, _expect(text, at, "{"))
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        key, at = string(text, at, "a key")
        if key in found:
            raise ValueError(f"the key {key!r} stands twice in one object")
        at = skip(text, _expect(text, skip(text, at), ":"))
        found[key], at = read(at, key)
        at = skip(text, at)
        if text[at : at + 1] == "}":
            return found, at + 1
        at = skip(text, _expect(text, at, ","))


def string(text: str, at: int, what: str) -> tuple[str, int]:
    """The string at `at`, which is `what`, and where it ends."""
    if text[at : at + 1] != '"':
        raise ValueError(f"expected a string for {what} at character {at}")
    value, end = _STRINGS.raw_decode(text, at)
    return value, end


def skip(text: str, at: int) -> int:
    """Where the white space at `at` ends."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too


def _expect(text: str, at: int, mark: str) -> int:
    if text[at : at + 1] != mark:
        found = repr(text[at : at + 1]) if at < len(text) else "its end"
        raise ValueError(f"expected {mark!r} at character {at}, found {found}")
    return at + 1


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_DEPTH):
        level = [child for parent in level for child in _containers_in(parent)]
        if not level:
            return
    raise RecursionError


def _containers_in(value: Any) -> list[Any]:
    children = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list):
        return []
    return [child for child in children if isinstance(child, dict | list)]
