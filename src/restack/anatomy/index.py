"""The index of a sharded checkpoint: which file each tensor lies in."""

from __future__ import annotations

import json
from typing import Any

from restack.anatomy.files import is_plain
from restack.anatomy.strict_json import (
    DAMAGED,
    check_printable,
    members,
    members_of_all,
    refuse_constant,
    string,
    unique,
)
from restack.errors import CheckpointError

_ANY = json.JSONDecoder(object_pairs_hook=unique, parse_constant=refuse_constant)


def parse_index(raw: bytes, where: str) -> dict[str, str]:
    """The `weight_map` of an index: tensor name to file name, none of which leads elsewhere."""
    try:
        text = raw.decode("utf-8")
        places = _weight_map(text)
        if "\\u" in text:
            check_printable(places)
    except RecursionError:
        raise CheckpointError(f"{where} is nested too deeply", hint=DAMAGED) from None
    except ValueError as error:
        raise CheckpointError(f"{where} is not a sound index: {error}", hint=DAMAGED) from None
    if not places:
        raise CheckpointError(f"{where} has no weight_map with tensors", hint=DAMAGED)
    for tensor, shard in places.items():
        if not is_plain(shard):
            raise CheckpointError(
                f"{where} places {tensor!r} in {shard!r}, which is not a file in the checkpoint",
                hint="Use no index whose author you do not trust.",
            )
    return places


def _weight_map(text: str) -> dict[str, str]:
    places: dict[str, str] = {}
    shards: dict[str, str] = {}  # one string object for each file, however many tensors

    def place(at: int, key: str) -> tuple[str, int]:
        shard, at = string(text, at, f"the file of {key!r}")
        return shards.setdefault(shard, shard), at

    def member(at: int, key: str) -> tuple[Any, int]:
        if key != "weight_map":
            return _ANY.raw_decode(text, at)
        found, at = members(text, at, place)
        places.update(found)
        return None, at

    members_of_all(text, member)
    return places
