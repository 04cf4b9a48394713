"""Which trials can be trained together: seeds of one configuration, where that changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from restack.sweep.trial import Trial


def groups_of(
    keys: Iterable[str], together: int, configuration: Callable[[str], str | None]
) -> list[tuple[str, ...]]:
    """The keys in their order, those of one configuration in groups of at most `together`.

    >>> groups_of("aAbBc", 2, lambda key: key.lower() if key in "aAbB" else None)
    [('a', 'A'), ('b', 'B'), ('c',)]
    """
    found: list[list[str]] = []
    open_groups: dict[str, list[str]] = {}
    for key in keys:
        name = configuration(key) if together > 1 else None
        group = open_groups.get(name) if name is not None else None
        if group is None or len(group) >= together:
            group = []
            found.append(group)
            if name is not None:
                open_groups[name] = group
        group.append(key)
    return [tuple(group) for group in found]


def configuration(trial: Trial) -> str | None:
    """What seeds of one configuration have in common; None if the trial must run alone."""
    settings = trial.settings
    if trial.kind != "tune" or trial.needs or trial.keep or trial.model is None:
        return None
    usual: dict[str, Any] = {
        "lora": None,
        "compile": False,
        "checkpointing": False,
        "precision": "fp32",
        "accumulate": 1,
        "batch_tokens": None,
        "patience": None,
        "freeze": [],
        "packing": False,
        "prune": None,
    }
    if any(settings.get(name, value) != value for name, value in usual.items()):
        return None
    values = trial.to_json()
    for name in ("seed", "labels", "keep"):
        del values[name]
    if values["data"] is not None:
        del values["data"]["subsample"]  # seeds have subsamples of their own, all of one size
    return json.dumps(values, sort_keys=True)
