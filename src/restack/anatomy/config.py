"""Model configs as JSON, and what they must say after a re-stacking."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from restack.anatomy import rules
from restack.anatomy.facts import Facts
from restack.errors import StackError
from restack.plan import Plan

Config = dict[str, Any]

# Lists with an entry a layer, permuted by name. Others may have the length of the stack by
# accident: `depths` and `hidden_sizes` speak of stages, `conv_dim` of convolutions.
PER_LAYER = frozenset(
    (
        "activation_sparsity_pattern",
        "attention_layers",
        "attention_window",
        "attn_type_list",
        "hybrid_layer_pattern",
        "indexer_types",
        "intermediate_size",
        "kv_sharing_modes",
        "layer_rope_theta",
        "layer_types",
        "layers_block_type",
        "mixer_types",
        "mlp_layer_types",
        "moe_layer_freq",
        "moe_topk",
        "no_rope_layers",
        "num_attention_heads",
        "num_attention_heads_per_layer",
        "num_experts",
        "num_key_value_heads",
        "sliding_windows",
    )
)
# Objects with layer numbers as keys.
BY_NUMBER = ("pruned_heads", "per_layer_config")


def get(config: Mapping[str, Any], dotted: str) -> Any:
    """The value at a dotted path, None where there is none."""
    value: Any = config
    for part in dotted.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def put(config: Config, dotted: str, value: Any) -> None:
    """Set the value at a dotted path in place, making sections where they are missing."""
    *sections, name = dotted.split(".")
    for part in sections:
        config = config.setdefault(part, {})
    config[name] = value


def walk(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """All fields of a config and of its sections, as dotted paths."""
    for name, value in config.items():
        yield before + name, value
        if isinstance(value, Mapping):
            yield from walk(value, f"{before}{name}.")


def section_path(facts: Facts) -> str:
    """The section that describes the stack: `text_config.` or nothing."""
    return facts.counts[0].rpartition(".")[0] if facts.counts else ""


def spelled_out(config: Mapping[str, Any], facts: Iterable[Facts]) -> Config:
    """The config with the fields of its stacks under their own names.

    The released configs of BART and Whisper also give the encoder's depth as `num_hidden_layers`,
    which wins when they are loaded; those of the first T5 leave the decoder's depth to the
    encoder's. Changed by their own names alone, the models would come out of another depth.
    """
    new = copy.deepcopy(dict(config))
    for known in facts:
        where = section_path(known)
        section = get(new, where) if where else new
        if not isinstance(section, dict):
            continue
        for other, name in known.aliases:
            if section.get(other) is not None:
                section[name] = section.pop(other)
        count = known.counts[0].rpartition(".")[2]
        if known.follows and section.get(count) is None and known.follows in section:
            section[count] = section[known.follows]
    return new


def lists_of(config: Mapping[str, Any], facts: Facts, depth: int) -> list[str]:
    """The lists of this config that have one entry a layer, as dotted paths."""
    where = section_path(facts)
    section = get(config, where) if where else config
    before = f"{where}." if where else ""
    known = [name for name in facts.lists if isinstance(get(config, name), list)]
    return known + [
        before + name
        for name, value in (section or {}).items()
        if name in PER_LAYER
        and before + name not in known
        and isinstance(value, list)
        and len(value) == depth
    ]


def missing_lists(config: Mapping[str, Any], facts: Facts) -> list[str]:
    """Lists that the class derives by layer number because the config omits them."""
    where = section_path(facts)
    derived = (f"{where}.{name}".lstrip(".") for name in facts.derived)
    return [name for name in (*facts.lists, *derived) if get(config, name) is None]


def rules_applying(config: Mapping[str, Any], facts: Facts) -> list[str]:
    """The config fields by which rules decide what the layers of this stack are."""
    section = _section(config, facts)
    return [field for rule in rules.RULES if rule.applies(section) for field in rule.fields]


def _section(config: Mapping[str, Any], facts: Facts) -> Config:
    """The part of the config that describes the stack, with the defaults it may omit."""
    where = section_path(facts)
    return dict(facts.defaults) | dict((get(config, where) if where else config) or {})


def rewrite_config(config: Mapping[str, Any], facts: Facts, plan: Plan) -> Config:
    """The config of the new stack: depth, per-layer lists and index rules follow the plan."""
    new = copy.deepcopy(dict(config))
    sources = plan.sources
    for name in lists_of(config, facts, plan.depth):
        values = get(config, name)
        if len(values) != plan.depth:
            raise StackError(
                f"config field `{name}` has {len(values)} entries for {plan.depth} layers",
                hint="mend the config: the list needs one entry a layer",
            )
        put(new, name, [copy.deepcopy(values[source]) for source in sources])

    where = section_path(facts)
    before = f"{where}." if where else ""
    section = _section(config, facts)
    for name, value in rules.rewrite(section, sources, plan.depth).items():
        if value != section[name]:
            put(new, before + name, value)

    for name in BY_NUMBER:
        by_layer = section.get(name)
        if by_layer and not isinstance(by_layer, Mapping):
            raise _malformed(before + name, by_layer, "an object with layer numbers as keys")
        if by_layer and all(str(key).isdecimal() for key in by_layer):
            entries = {int(key): value for key, value in by_layer.items()}
            kept = {str(i): entries[s] for i, s in enumerate(sources) if s in entries}
            put(new, before + name, kept)
    if isinstance(section.get("attention_types"), list):  # GPT-Neo spells its list as a product
        layers = get(new, f"{before}attention_layers") or _expand(
            section["attention_types"], plan.depth, sources
        )
        put(new, f"{before}attention_types", [[layers, 1]])
    stages = section.get("stage_names")
    if isinstance(stages, list) and len(stages) == plan.depth + 1:
        for name, value in _taps(section, plan).items():
            put(new, before + name, value)
    if facts.shared:
        put(new, facts.shared, _groups(config, facts.shared, plan))
    for name in facts.counts:
        put(new, name, len(plan))
    return new


def _expand(types: list[Any], depth: int, sources: tuple[int, ...]) -> list[str]:
    try:
        flat = [kind for kinds, times in types for _ in range(min(times, depth)) for kind in kinds]
    except (TypeError, ValueError):
        flat = []
    if len(flat) != depth:
        expected = f"pairs of kinds and times for {depth} layers"
        raise _malformed("attention_types", types, expected)
    return [flat[source] for source in sources]


def _malformed(field: str, value: Any, expected: str) -> StackError:
    return StackError(
        f"config field `{field}` is {value!r}, not {expected}", hint="mend config.json"
    )


def _groups(config: Mapping[str, Any], field: str, plan: Plan) -> int:
    """ALBERT: the layer at position i uses group int(i / (depth / groups)); it must stay so."""
    groups = get(config, field) or 1

    def layout(depth: int) -> list[int]:
        return [int(i / (depth / groups)) for i in range(depth)]

    wanted = [layout(plan.depth)[source] for source in plan.sources]
    if layout(len(plan)) != wanted:
        raise StackError(
            f"the layers share {groups} groups of weights (`{field}`), laid out evenly over the "
            f"depth; the plan would need the order {wanted}",
            hint="choose a plan that repeats or drops each group alike",
        )
    return int(groups)


def _taps(section: Mapping[str, Any], plan: Plan) -> Config:
    """Backbones name the output of each layer, and list which of them they return."""
    names = ["stem", *(f"stage{i + 1}" for i in range(len(plan)))]
    taps = []
    indices = section.get("out_indices") or []
    if not isinstance(indices, list) or any(type(tap) is not int for tap in indices):
        raise _malformed("out_indices", indices, "a list of layer numbers")
    for tap in indices:
        tap = tap + plan.depth + 1 if tap < 0 else tap
        places = [i + 1 for i, source in enumerate(plan.sources) if source == tap - 1]
        if tap in (0, plan.depth):
            places = [len(plan) if tap else 0]
        if len(places) != 1:
            raise StackError(
                f"the config returns the output of layer {tap - 1} (`out_indices`), which stands "
                f"{len(places)} times in the plan",
                hint="keep that layer exactly once, or change `out_indices` first",
            )
        taps += places
    features = {"out_indices": taps, "out_features": [names[tap] for tap in taps]}
    return {"stage_names": names} | {k: v for k, v in features.items() if section.get(k)}
