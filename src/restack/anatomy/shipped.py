"""The models that ship with restack, by the names under which every command takes them."""

from __future__ import annotations

import os
from pathlib import Path

from restack.errors import CheckpointError

_MODELS = Path(__file__).parents[1] / "demo" / "models"
_PREFIX = "restack/demo-"
NAMES = tuple(f"{_PREFIX}{kind}" for kind in ("mlm", "clm"))


def local(location: str) -> str:
    """Where a model of this name lies in the package; any other location as it is.

    A directory of the same name wins, as it does over the Hub.

    >>> local("some/model")
    'some/model'
    """
    if not location.startswith(_PREFIX) or os.path.isdir(location):
        return location
    if location not in NAMES:
        raise CheckpointError(
            f"restack ships no model {location!r}", hint=f"It ships {' and '.join(NAMES)}."
        )
    return str(_MODELS / location.removeprefix(_PREFIX))
