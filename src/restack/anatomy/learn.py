"""Find out by building models on the meta device what the atlas says of a stack."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from restack.anatomy import live
from restack.anatomy.config import BY_NUMBER, get, lists_of, put, rewrite_config, section_path, walk
from restack.anatomy.conversion import names_on_disk
from restack.anatomy.facts import Facts, canonical, default_fill
from restack.anatomy.noop import find_outputs
from restack.anatomy.rules import RULES
from restack.anatomy.signature import edges_fit
from restack.anatomy.spelling import spell
from restack.errors import RestackError
from restack.plan import Plan

# T5 and WavLM compute their position bias with a table that the first layer holds for all of them.
BOUND = ("relative_attention_bias", "rel_attn_embed")


Build = Callable[[PreTrainedConfig], PreTrainedModel]


def learn(
    config: PreTrainedConfig,
    heads: tuple[type[PreTrainedModel], ...] = (),
    build: Build = live.build_meta,
) -> dict[str, Facts]:
    """Facts of every stack of the model that `build` makes of this config, by module path."""
    base = build(config)
    shared = "num_hidden_groups" if hasattr(config, "num_hidden_groups") else None
    found = {}
    for path, layers in live.find_stacks(base).items():
        # ALBERT: the list holds the shared groups, the depth is how often they are applied
        counts = ("num_hidden_layers",) if shared else _counts(config, build, path, len(layers))
        facts = Facts(path=path, prefixes=(), counts=tuple(counts), shared=shared)
        facts = replace(facts, prefixes=tuple(sorted(_prefixes(base, path, heads, config))))
        if facts.counts:
            facts = _describe(facts, config, base, build)
            facts = _judge(facts, config, base, build)
            facts = _with_outputs(facts, config, base)
        found[path] = facts
    return found


def resized(config: PreTrainedConfig, fields: tuple[str, ...], depth: int) -> PreTrainedConfig:
    """The config with another depth; per-layer lists are cut or stretched to fit."""
    values = live.config_json(config)
    old = get(values, fields[0])
    where = fields[0].rpartition(".")[0]
    section = get(values, where) if where else values
    for name, value in list(section.items()):
        if isinstance(value, list) and len(value) == old:
            section[name] = (value * depth)[:depth]
        if name in BY_NUMBER and value:
            section[name] = {key: v for key, v in value.items() if int(key) < depth}
    for field in fields:
        put(values, field, depth)
    for name in ("stage_names", "out_indices", "out_features"):  # backbones derive them
        section.pop(name, None)
    with live.quiet():
        return live.config_from(values, type(config))


def _stack_of(
    config: PreTrainedConfig, build: Build, path: str
) -> tuple[PreTrainedModel, nn.ModuleList | None]:
    model = build(config)
    return model, live.find_stacks(model).get(path)


def _counts(config: PreTrainedConfig, build: Build, path: str, depth: int) -> Iterator[str]:
    """The config fields which, changed alone, change the depth of the stack."""
    for name, value in walk(live.config_json(config)):
        if type(value) is not int or value != depth or "head" in name or "size" in name:
            continue
        model = _of_another_depth(config, build, (name,), depth)
        layers = live.find_stacks(model).get(path) if model else None
        if layers is not None and len(layers) != depth:
            yield name


def _of_another_depth(
    config: PreTrainedConfig, build: Build, fields: tuple[str, ...], depth: int
) -> PreTrainedModel | None:
    """A model of another depth; families with a pattern of kinds are built at some depths only."""
    tries = (depth - 1, depth - 6, depth - 5, depth - 4, depth // 2, 2)
    for other in dict.fromkeys(n for n in tries if 0 < n != depth):
        try:
            return build(resized(config, fields, other))
        except Exception:
            if "layer" not in fields[0]:
                return None  # this field is something else
    return None


def _prefixes(
    base: PreTrainedModel,
    path: str,
    heads: tuple[type[PreTrainedModel], ...],
    config: PreTrainedConfig,
) -> set[str]:
    """What stands before the layer number in checkpoints of the base model and of its heads."""
    found = set()
    for cls in (None, *heads):
        try:
            model = live.build_meta(config, cls) if cls else base
            # the stack under this class: `layers` of the base model is `model.layers` here
            at = next(
                p for p in live.find_stacks(model) if live.base_path(model, p) == path or p == path
            )
            found |= {f"{at}.", *_disk_prefixes(model, at)}
        except Exception:  # a head that cannot be built from this config adds nothing
            continue
    return found


def _stored(model: PreTrainedModel, *starts: str) -> set[str]:
    """What checkpoints call the tensors whose names in the model start so."""
    state = model.state_dict()
    rest = {name: tensor for name, tensor in state.items() if not name.startswith(starts)}
    return names_on_disk(model, state) - names_on_disk(model, rest)


def _disk_prefixes(model: PreTrainedModel, path: str) -> set[str]:
    inside = _stored(model, f"{path}.")
    depth = len(model.get_submodule(path))  # type: ignore[arg-type]
    numbers: dict[str, set[int]] = {}
    for name in inside:
        for match in re.finditer(r"\.(\d+)(?=\.)", f".{name}"):
            numbers.setdefault(name[: match.start(1) - 1], set()).add(int(match.group(1)))
    full = [before for before, seen in numbers.items() if seen == set(range(depth))]
    return {
        before for before in full if not any(o != before and before.startswith(o) for o in full)
    }


def _describe(facts: Facts, config: PreTrainedConfig, base: PreTrainedModel, build: Build) -> Facts:
    layers = live.find_stacks(base)[facts.path]
    values = live.config_json(config)
    where = section_path(facts)
    section = get(values, where) if where else values
    ruled = {f: section[f] for rule in RULES for f in rule.fields if section.get(f) is not None}
    ruled |= {name.rpartition(".")[2]: get(values, name) for name in facts.counts}
    other = _of_another_depth(config, build, facts.counts, len(layers)) or base
    own = {
        f"{prefix}{i}.{name}"
        for prefix in facts.prefixes
        for i, layer in enumerate(layers)
        for name in live.shapes(layer)
    }
    facts = replace(
        facts,
        lists=tuple(sorted(lists_of(values, facts, len(layers)))),
        defaults=tuple(sorted(ruled.items())),
    )
    return replace(
        spell(facts, config, other.config),
        bound=tuple(n for n in live.shapes(layers[0]) if any(mark in n for mark in BOUND)),
        by_depth=tuple(sorted(_by_depth(base, other, facts.path, len(layers)).items())),
        fills=tuple(sorted(_fills(base, facts.path).items())),
        renamed=not set(map(canonical, _stored(base, f"{facts.path}."))) <= own,
    )


def _by_depth(
    base: PreTrainedModel, shorter: PreTrainedModel, path: str, depth: int
) -> dict[str, int]:
    """Tensors outside the stack that have, on one axis, a part for each of its layers."""
    ours, theirs = live.shapes(base), live.shapes(shorter)
    found = {}
    for name in _changed_outside(base, shorter, path) & ours.keys() & theirs.keys():
        pairs = enumerate(zip(ours[name], theirs[name], strict=False))
        axes = [axis for axis, (size, other) in pairs if size != other]
        if len(axes) == 1 and ours[name][axes[0]] % depth == 0:
            found[name] = axes[0]
    return found


def _changed_outside(a: PreTrainedModel, b: PreTrainedModel, path: str) -> set[str]:
    """Tensors outside the stack that are there in one depth only or have another shape."""
    ours, theirs = (
        {n: s for n, s in live.shapes(m).items() if not n.startswith(f"{path}.")} for m in (a, b)
    )
    return {n for n in ours.keys() | theirs.keys() if ours.get(n) != theirs.get(n)}


def _fills(base: PreTrainedModel, path: str) -> dict[str, str]:
    """Vectors that start neither as their name tells (weight: ones, bias: zeros) nor at random.

    Only vectors get storage; they are made not-a-number, then initialised by the family's own rule.
    """
    models = {n: m for n, m in base.named_modules() if isinstance(m, PreTrainedModel)}
    owner = models[live.owner_of(path, models)]
    layers = live.find_stacks(base)[path]
    fills: dict[str, str] = {}
    for layer in {type(x): x for x in layers}.values():
        for module in layer.modules():
            for name, tensor in module._parameters.items():
                if tensor is not None and tensor.dim() <= 1:
                    filled = torch.full(tensor.shape, float("nan"), device="cpu")
                    module._parameters[name] = nn.Parameter(filled)
        with torch.no_grad(), live.quiet():
            for module in layer.modules():
                owner._init_weights(module)
        for name, tensor in layer.named_parameters():
            if tensor.device.type != "meta":
                kind = _kind(tensor)
                if kind != default_fill(name, tensor.dim()):
                    fills[name] = kind
            elif name.rpartition(".")[2] in ("A_log", "D", "dt_bias"):
                fills[name] = "special"
    return fills


def _kind(tensor: torch.Tensor) -> str:
    """What the family's initialiser made of a tensor."""
    if bool((tensor == 1).all()):
        return "ones"
    if bool((tensor == 0).all()):
        return "zeros"
    return "random" if tensor.dim() > 1 else "special"


def trial_plans(depth: int) -> list[Plan]:
    """Plans that between them move the first, the middle and the last layer."""
    every = list(range(depth))
    middle = depth // 2
    orders = [
        every,
        every[:-1],
        every[1:],
        every[:middle] + every[middle + 1 :],
        [i for i in every for _ in range(2)],
        every[::-1],
        [*every[:1], *every[1:-1][::-1], *every[-1:]],
        every + every[middle:],
        every[::2],
    ]
    unique = dict.fromkeys(tuple(order) for order in orders if order)
    return [Plan.of(depth, order) for order in unique]


def misfits(
    facts: Facts, config: PreTrainedConfig, base: PreTrainedModel, build: Build, plan: Plan
) -> list[live.Difference]:
    """What would be wrong about the model that this plan makes, found by building it."""
    old = live.find_stacks(base)[facts.path]
    values = rewrite_config(live.config_json(config), facts, plan)
    try:
        model, new = _stack_of(live.config_from(values, type(config)), build, facts.path)
    except Exception as error:  # the family's own checks of its config
        reason = " ".join(str(error).split())
        return [live.Difference(-1, f"no model can be built of that config: {reason}")]
    if new is None:
        return [live.Difference(0, "the rebuilt model has no such stack")]
    if facts.shared:
        return []
    found = live.differences(old, new, plan.sources, facts.bound)
    outside = _changed_outside(base, model, facts.path) - dict(facts.by_depth).keys()
    return found + [live.Difference(-1, f"`{name}` outside the stack changes") for name in outside]


def _judge(facts: Facts, config: PreTrainedConfig, base: PreTrainedModel, build: Build) -> Facts:
    """Try plans, to see what has to be checked before a plan may be used on this stack."""
    layers = live.find_stacks(base)[facts.path]
    kinds = [_frozen(live.shapes(layer), facts.bound) for layer in layers]
    fits: list[tuple[Plan, bool]] = []
    for plan in trial_plans(_depth(facts, config)):
        try:
            fits.append((plan, not misfits(facts, config, base, build, plan)))
        except RestackError:
            continue  # refused by a rule, for its stated reason
    if all(fit for _, fit in fits):
        return replace(facts, verified=True)
    if all(edges_fit(kinds, plan) is fit for plan, fit in fits):
        return replace(facts, edges=True, verified=True)
    return replace(facts, live=True, verified=fits[0][1])


def _depth(facts: Facts, config: PreTrainedConfig) -> int:
    return int(get(live.config_json(config), facts.counts[0]))


def _frozen(names: Mapping[str, Any], bound: tuple[str, ...]) -> frozenset[Any]:
    return frozenset(item for item in names.items() if item[0] not in bound)


def _with_outputs(facts: Facts, config: PreTrainedConfig, base: PreTrainedModel) -> Facts:
    """Which tensors to zero for a no-op layer, and what they are called on disk."""
    if facts.shared:
        return facts
    outputs = find_outputs(config, facts)
    if not outputs or not facts.renamed:
        return replace(facts, outputs=outputs)
    layers = range(len(live.find_stacks(base)[facts.path]))
    state = base.state_dict()
    ours = {name: {f"{facts.path}.{i}.{name}" for i in layers} & state.keys() for name in outputs}
    stored = _stored(base, *(name for places in ours.values() for name in places))
    start = f"({'|'.join(map(re.escape, facts.prefixes))})[0-9]+[.]"
    names = {re.sub(r"\.\d+\.", ".*.", re.sub(f"^{start}", "", name)) for name in stored}
    names |= {name for name, places in ours.items() if not places}  # a kind not there by default
    return replace(facts, outputs=outputs, stored_outputs=tuple(sorted(names)))
