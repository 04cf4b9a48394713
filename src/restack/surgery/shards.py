"""Splitting tensors into weight files, as plain lists of sizes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from restack.errors import CheckpointError

_UNITS = {"B": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def split(sizes: Sequence[int], limit: int | None) -> list[range]:
    """The places of `sizes` that go together, each group at most `limit` in sum.

    Order is kept. What is larger than the limit alone gets a group of its own.

    >>> split([4, 4, 9, 1, 1], 8)
    [range(0, 2), range(2, 3), range(3, 5)]
    >>> split([4, 4, 9], None)
    [range(0, 3)]
    """
    if limit is None:
        return [range(len(sizes))]
    groups, start, total = [], 0, 0
    for place, size in enumerate(sizes):
        if total + size > limit and place > start:
            groups.append(range(start, place))
            start, total = place, 0
        total += size
    return [*groups, range(start, len(sizes))]


def names(count: int) -> list[str]:
    """The names that transformers gives to `count` weight files.

    >>> names(1), names(2)[-1]
    (['model.safetensors'], 'model-00002-of-00002.safetensors')
    """
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def parse_size(text: str) -> int:
    """Bytes of a size such as `5GB` (powers of 1000, as on the Hub), `5GiB` (of 1024) or `100`.

    >>> parse_size("5GB"), parse_size("1.5 KiB")
    (5000000000, 1536)
    """
    found = re.fullmatch(
        r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE | re.ASCII
    )
    if not found or (found[3] and not found[2]):
        raise CheckpointError(f"{text!r} is not a size", hint="Write 500MB, 5GB or 2GiB.")
    unit = 1024 if found[3] else 1000
    size = int(float(found[1]) * unit ** _UNITS[(found[2] or "B").upper()])
    if not size:
        raise CheckpointError(f"{text!r} is a size of nothing", hint="Write 500MB, 5GB or 2GiB.")
    return size
