"""Many texts as one: `drop:top={2,4,6}`, `reinit:after={k=0..12}`, `permute:seed={seed}`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from restack.errors import RestackError

_BRACES = re.compile(r"\{([^{}]*)\}")
_NAMED = re.compile(r"\s*([A-Za-z_]\w*)\s*=(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:([+-])\s*(\d+))?\s*")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(\d+))?")
_WHOLE = re.compile(r"-?\d+")
_MOST = 100_000


def items(text: str) -> list[Any]:
    """What stands between braces: values with commas, and ranges with both ends included.

    >>> items("0..4..2, 7, top")
    [0, 2, 4, 7, 'top']
    """
    found: list[Any] = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            raise RestackError(f"a value is missing in {{{text}}}")
        if span := _RANGE.fullmatch(part):
            first, last, step = int(span[1]), int(span[2]), int(span[3] or 1)
            if last < first or step < 1:
                raise RestackError(
                    f"the range {part} is empty", hint="Write the lower end first: {0..12}."
                )
            if (last - first) // step >= _MOST:
                raise RestackError(f"the range {part} has more than {_MOST:,} values")
            found += range(first, last + 1, step)
        else:
            found.append(int(part) if _WHOLE.fullmatch(part) else part)
    return found


def expand(text: str) -> list[tuple[str, dict[str, Any]]]:
    """All texts that a text with braces stands for, each with the values that were named.

    What refers to a name that no brace of the text gives stays, for `fill`.

    >>> expand("drop:top={k=2,4}")
    [('drop:top=2', {'k': 2}), ('drop:top=4', {'k': 4})]
    >>> [made for made, _ in expand("reinit:{i=0..2}-{i+2}")]
    ['reinit:0-2', 'reinit:1-3', 'reinit:2-4']
    """
    pieces = _BRACES.split(text)
    if "{" in "".join(pieces[0::2]) or "}" in "".join(pieces[0::2]):
        raise RestackError(f"a brace is open or too many in {text!r}")
    choices: dict[str, list[Any]] = {}
    slots: list[str] = []
    for number, inner in enumerate(pieces[1::2]):
        named = _NAMED.fullmatch(inner)
        if named is None and _REFERENCE.fullmatch(inner):
            slots.append(f"{{{inner.strip()}}}")
            continue
        name = named[1] if named else f"#{number}"
        if name in choices:
            raise RestackError(f"{{{name}=...}} stands twice in {text!r}")
        choices[name] = items(named[2] if named else inner)
        slots.append(f"{{{name}}}")
    found = []
    for values in itertools.product(*choices.values()):
        chosen = dict(zip(choices, values, strict=True))
        filled = [
            str(chosen[slot[1:-1]]) if slot[1:-1] in chosen else _refer(slot, chosen)
            for slot in slots
        ]
        made = "".join(itertools.chain(*itertools.zip_longest(pieces[0::2], filled, fillvalue="")))
        found.append((made, {k: v for k, v in chosen.items() if not k.startswith("#")}))
    return found


def fill(text: str, values: Mapping[str, Any]) -> str:
    """A text in which every `{name}` is replaced by a value.

    >>> fill("permute:seed={seed}", {"seed": 7})
    'permute:seed=7'
    """
    made = _BRACES.sub(lambda match: _refer(match.group(), values), text)
    if left := _BRACES.search(made):
        raise RestackError(
            f"{left.group()} refers to nothing", hint=f"Known here: {', '.join(values)}."
        )
    return made


def _refer(slot: str, values: Mapping[str, Any]) -> str:
    reference = _REFERENCE.fullmatch(slot[1:-1])
    if reference is None or reference[1] not in values:
        return slot
    value = values[reference[1]]
    if reference[2]:
        if not isinstance(value, int):
            raise RestackError(f"{slot}: {value!r} is no number to add to")
        value += int(reference[3]) * (1 if reference[2] == "+" else -1)
    return str(value)
