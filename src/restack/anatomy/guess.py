"""A stack that the user names in a checkpoint of a type that nothing is known of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from restack.anatomy.anatomy import Shape, Stack, locate, no_stack, numbered_prefixes
from restack.anatomy.config import Config, walk
from restack.anatomy.facts import Facts
from restack.errors import StackError

_DEPTH = re.compile(r"layer|depth|block|stage", re.IGNORECASE)
_OTHER = re.compile(r"head|size|dim|every|freq|period|offset|start|first|last|dense|drop|idx|index")
# Words that tell apart the stacks of one model, in paths and in config fields alike.
_PARTS = ("encoder", "decoder", "vision", "text", "audio", "language")


def stack_at(path: str, config: Config, tensors: Mapping[str, Shape], location: str) -> Stack:
    """The stack at `path`: numbered tensors, as many as one field of the config says."""
    prefix = path.rstrip(".") + "."
    numbers = numbered_prefixes(tensors).get(prefix, set())
    if not numbers:
        raise no_stack(location, config, tensors)
    if numbers != set(range(len(numbers))):
        raise StackError(
            f"{location}: the modules below `{path}` are numbered {_some(numbers)}, not from 0 up"
        )
    fields = list(_fields(config, len(numbers), path))
    if len(fields) != 1:
        seen = f"{', '.join(f'`{field}`' for field in fields)} all are" if fields else "none is"
        raise StackError(
            f"{location}: `{path}` has {len(numbers)} layers, and one field of the config should "
            f"say so; {seen}",
            hint="model types that transformers knows need no such guess",
        )
    facts = Facts(path=path.rstrip("."), prefixes=(prefix,), counts=tuple(fields))
    found = locate(facts, config, tensors, location)
    assert found is not None  # its prefix was just seen
    return found


def _fields(config: Config, depth: int, path: str) -> Iterator[str]:
    """The config fields that may hold the depth of the stack at `path`."""
    named = [
        name
        for name, value in walk(config)
        if type(value) is int
        and value == depth
        and _DEPTH.search(name.rpartition(".")[2])
        and not _OTHER.search(name.rpartition(".")[2])
    ]
    ours = {part for part in _PARTS if part in path}
    closer = [n for n in named if ours & {part for part in _PARTS if part in n}]
    yield from closer or named


def _some(numbers: set[int]) -> str:
    shown = sorted(numbers)
    return ", ".join(map(str, shown[:6])) + (", ..." if len(shown) > 6 else "")
