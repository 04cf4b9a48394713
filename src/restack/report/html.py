"""HTML out of texts that may hold anything: whatever is not markup of ours is escaped."""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

# What HTML cannot hold, apart from line ends and tabs; a parser would replace or refuse it.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_VOID = frozenset({"input", "meta", "br"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Markup | None


def tag(name: str, /, *children: Child, **attributes: str | bool | None) -> Markup:
    """An element; `cls` is its class, `_` in a name of an attribute becomes `-`.

    >>> print(tag("p", "a < b", tag("b", "!"), cls="note", hidden=True))
    <p class="note" hidden>a &lt; b<b>!</b></p>
    """
    said = "".join(
        f" {_name(key)}" if value is True else f' {_name(key)}="{text(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{said}>")
    return Markup(f"<{name}{said}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """One after the other."""
    return Markup("".join(c if isinstance(c, Markup) else text(c) for c in children if c))


def text(value: str) -> str:
    """Escaped for elements and attributes alike."""
    return escape(_CONTROL.sub("\ufffd", value), quote=True)


def data(value: Any, name: str) -> Markup:
    """A block of JSON that a script of the page reads; it cannot end its element."""
    body = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        body = body.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json" id="{text(name)}">{body}</script>')


def _name(key: str) -> str:
    return {"cls": "class", "for_": "for"}.get(key, key.replace("_", "-"))
