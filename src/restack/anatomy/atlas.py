"""The atlas: what is known of every model type without building a model.

Reads the generated data file; needs neither torch nor transformers.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

from restack.anatomy.facts import Facts


@functools.cache
def _atlas() -> dict[str, Any]:
    return json.loads(files(__package__).joinpath("atlas.json").read_text())


def transformers_version() -> str:
    """The version of transformers that the atlas was made with."""
    return str(_atlas()["transformers"])


def model_types() -> dict[str, str]:
    """Every model type, with `verified`, `known` or the reason why no stack is known."""
    states = {}
    for name, entry in _atlas()["types"].items():
        stacks = [Facts.from_json(row) for row in entry.get("stacks", ())]
        if not any(facts.counts for facts in stacks):
            states[name] = entry.get("unknown", "the depth is not a field of the config")
        else:
            whole = all(facts.verified for facts in stacks if facts.counts)
            states[name] = "verified" if whole else "known"
    return states


@functools.cache
def known(model_type: str) -> tuple[Facts, ...]:
    """The stacks of a model type whose depth can be set; none for an unknown type."""
    entry = _atlas()["types"].get(model_type, {})
    stacks = (Facts.from_json(row) for row in entry.get("stacks", ()))
    return tuple(facts for facts in stacks if facts.counts)


def tied(config: Mapping[str, Any]) -> dict[str, str]:
    """The tensors that the model of this config shares: each name with that of its twin."""
    entry = _atlas()["types"].get(str(config.get("model_type")), {})
    flag = config.get("tie_word_embeddings")
    if not (entry.get("ties", False) if flag is None else flag):
        return {}
    classes = config.get("architectures")
    names = classes if isinstance(classes, list) else []
    known = entry.get("tied", {})
    return next((known[n] for n in names if isinstance(n, str) and n in known), {})


def for_config(config: Mapping[str, Any]) -> tuple[Facts, ...]:
    """The stacks that a config describes, by its own type and by the types of its sections.

    A composed model may carry another tower than its default one (LLaVA with any language
    model), so the sections' own types are looked up too.
    """
    own = known(str(config.get("model_type")))
    inner = [
        _within(section, facts)
        for section, value in config.items()
        if isinstance(value, Mapping) and value.get("model_type")
        for facts in known(str(value["model_type"]))
    ]
    own = tuple(_with_outputs(facts, inner) for facts in own)
    taken = {facts.counts for facts in own}
    return own + tuple(facts for facts in inner if facts.counts not in taken)


def _with_outputs(facts: Facts, inner: Iterable[Facts]) -> Facts:
    """What to zero for a no-op, from the type of the section where the whole could not be tried.

    The layers of a vision tower do not run on the text that a multimodal model is tried with.
    """
    if facts.outputs:
        return facts
    alike = (
        other
        for other in inner
        if (other.counts, other.renamed) == (facts.counts, facts.renamed)
        and f".{facts.path}".endswith(f".{other.path}")
    )
    twin = next(alike, facts)
    return replace(facts, outputs=twin.outputs, stored_outputs=twin.stored_outputs)


def _within(section: str, facts: Facts) -> Facts:
    return replace(
        facts,
        counts=tuple(f"{section}.{name}" for name in facts.counts),
        lists=tuple(f"{section}.{name}" for name in facts.lists),
        shared=facts.shared and f"{section}.{facts.shared}",
        prefixes=(),  # wherever the composed model has put it: found by the end of the name
    )
