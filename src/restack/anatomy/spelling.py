"""What a config class accepts instead of a field: another name for it, or nothing at all.

Found by asking the class, for the atlas; `config.spelled_out` undoes it without the class.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from transformers import PreTrainedConfig

from restack.anatomy import live
from restack.anatomy.config import get, put, section_path
from restack.anatomy.facts import Facts


def spell(facts: Facts, config: PreTrainedConfig, shorter: PreTrainedConfig) -> Facts:
    """The facts with what their fields may be called, and what the class derives if they are left
    out. `shorter` is the config with another depth.
    """
    derived, unread = _derived(facts, config, shorter)
    return replace(
        facts,
        aliases=tuple(sorted(_aliases(facts, config))),
        follows=next(_followed(facts, config), None),
        derived=derived,
        defaults=tuple(pair for pair in facts.defaults if pair[0] not in (*derived, *unread)),
    )


def _aliases(facts: Facts, config: PreTrainedConfig) -> Iterator[tuple[str, str]]:
    """BART: `num_hidden_layers` is another name for `encoder_layers`, and wins over it."""
    section: Any = config
    for part in filter(None, section_path(facts).split(".")):
        section = getattr(section, part, None)
    fields = {name.rpartition(".")[2] for name in (*facts.counts, *facts.lists)}
    fields |= dict(facts.defaults).keys()
    for other, name in (getattr(section, "attribute_map", None) or {}).items():
        if name in fields and other != name:
            yield other, name


def _followed(facts: Facts, config: PreTrainedConfig) -> Iterator[str]:
    """T5: where `num_decoder_layers` is not given, it is `num_layers`."""
    values = live.config_json(config)
    where = section_path(facts)
    before = f"{where}." if where else ""
    count = facts.counts[0]
    for name, value in (get(values, where) if where else values).items():
        if type(value) is not int or "layer" not in name or before + name in facts.counts:
            continue
        probes = (value + 1, value + 2)
        if all(_without(config, count, {before + name: n}) == n for n in probes):
            yield name


def _derived(
    facts: Facts, config: PreTrainedConfig, shorter: PreTrainedConfig
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Lists of layer numbers that the class makes for the depth at hand (Llama 4's `moe_layers`),
    and those that it does not read where the per-layer lists are given (LFM2's `full_attn_idxs`).
    """
    derived, unread = [], []
    where = section_path(facts)
    for name, value in facts.defaults:
        if isinstance(value, list):
            made = _without(shorter, f"{where}.{name}".lstrip("."), {})
            if made is None:
                unread.append(name)
            elif made != value:
                derived.append(name)
    return tuple(derived), tuple(unread)


def _without(config: PreTrainedConfig, field: str, changed: dict[str, int]) -> Any:
    """What the class makes of a field that is left out, with other fields changed."""
    values = copy.deepcopy(live.config_json(config))
    section, _, leaf = field.rpartition(".")
    (get(values, section) if section else values).pop(leaf, None)
    for name, value in changed.items():
        put(values, name, value)
    try:
        with live.quiet():
            return get(live.config_json(live.config_from(values, type(config))), field)
    except Exception:  # the class needs the field, or refuses the change: nothing follows
        return config
