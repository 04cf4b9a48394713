"""The stacks of a torch model, found by rule, and what a built model says of its layers."""

from __future__ import annotations

import contextlib
import contextvars
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

# Stacks whose layers carry none of the three marks that `_is_layers` looks for, or (ALBERT) whose
# unit lies above the level at which it would find them.
EXTRA = {
    "albert": ("encoder.albert_layer_groups",),
    "cpmant": ("encoder.layers",),
    "ctrl": ("h",),
    "fsmt": ("encoder.layers", "decoder.layers"),
    "gpt_neox_japanese": ("layers",),
    "ibert": ("encoder.layer",),
    "lxmert": ("encoder.layer", "encoder.r_layers", "encoder.x_layers"),
    "mgp-str": ("encoder.blocks",),
    "mpnet": ("encoder.layer",),
    "openai-gpt": ("h",),
    "patchtsmixer": ("encoder.mlp_mixer_encoder.mixers",),
    "patchtst": ("encoder.layers",),
    "perceiver": ("encoder.self_attends",),
    "reformer": ("encoder.layers",),
    "squeezebert": ("encoder.layers",),
    "timesfm": ("layers",),
    "xlnet": ("layer",),
}


_named: contextvars.ContextVar[str | None] = contextvars.ContextVar("named", default=None)


@contextlib.contextmanager
def also(path: str) -> Iterator[None]:
    """Meanwhile, the list of modules at this path counts as a stack, because the user says so."""
    token = _named.set(path)
    try:
        yield
    finally:
        _named.reset(token)


def _is_layers(modules: nn.ModuleList, owner: PreTrainedModel) -> bool:
    recorded = owner.can_record_outputs or {}
    marked = recorded.get("hidden_states") if isinstance(recorded, Mapping) else None
    marked = marked if isinstance(marked, (list, tuple)) else [marked]
    layer_classes = tuple(
        kind
        for kind in (getattr(mark, "target_class", mark) for mark in marked)
        if isinstance(kind, type)
    )
    whole = set(owner._no_split_modules or ())
    if any(type(layer).__name__.endswith("ConvLayer") for layer in modules):
        return False  # the feature extractors of speech models, not a transformer
    return all(
        isinstance(layer, (GradientCheckpointingLayer, *layer_classes))
        or type(layer).__name__ in whole
        for layer in modules
    )


def find_stacks(model: PreTrainedModel) -> dict[str, nn.ModuleList]:
    """The outermost lists of transformer layers of a model, by module path."""
    found: dict[str, nn.ModuleList] = {}
    owners: dict[str, PreTrainedModel] = {}
    for path, module in model.named_modules():
        if isinstance(module, PreTrainedModel):
            owners[path] = module
        if not isinstance(module, nn.ModuleList) or not len(module):
            continue
        if any(path.startswith(f"{outer}.") for outer in found):
            continue
        home = owner_of(path, owners)
        inner = path[len(home) :].lstrip(".")
        listed = EXTRA.get(getattr(owners[home].config, "model_type", ""), ())
        if path == _named.get() or inner in listed or _is_layers(module, owners[home]):
            found[path] = module
    return found


def owner_of(path: str, owners: Iterable[str]) -> str:
    """The path of the innermost of these modules that holds the one at `path`."""
    return max((o for o in owners if not o or path.startswith(f"{o}.")), key=len)


def base_path(model: PreTrainedModel, path: str) -> str:
    """The module path of a stack as seen from the base model, without the task class's prefix."""
    prefix = model.base_model_prefix
    if prefix and hasattr(model, prefix) and path.startswith(f"{prefix}."):
        return path[len(prefix) + 1 :]
    return path


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Building throw-away models says nothing: their warnings are about weights nobody will use."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)


def build_meta(
    config: PreTrainedConfig, cls: type[PreTrainedModel] | None = None
) -> PreTrainedModel:
    """A model without storage, to ask for its names, shapes and attributes."""
    with quiet(), torch.device("meta"):
        return cls(config) if cls else AutoModel.from_config(config)


def config_json(config: PreTrainedConfig) -> dict[str, Any]:
    """The whole config as it would stand in a config.json, defaults included."""
    text = config.to_json_string(use_diff=False)
    return json.loads(text, object_hook=lambda o: float(o["__float__"]) if "__float__" in o else o)


def config_from(values: Mapping[str, Any], cls: type[PreTrainedConfig] | None = None) -> Any:
    """A transformers config from its JSON form."""
    values = dict(values)
    if cls is None:
        return AutoConfig.for_model(values.pop("model_type"), **values)
    return cls.from_dict(values)


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all that a checkpoint of this module holds."""
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing about a rebuilt layer that its source layer did otherwise."""

    slot: int
    what: str

    def __str__(self) -> str:
        return f"slot {self.slot}: {self.what}"


# Attributes that follow the position without changing what a trained layer computes.
_POSITIONAL = (
    "layer_idx",
    "layer_id",
    "layer_number",
    "drop_path",
    "drop_prob",
    "dropout",
    "training",
    "layerdrop",
    "has_relative_attention_bias",
)


def _attributes(layer: nn.Module, ours: int) -> dict[str, object]:
    """Plain attributes of a layer and its parts; numbers that equal its own are shown as such."""
    seen: dict[str, object] = {}
    for path, module in layer.named_modules():
        if not any(mark in path for mark in _POSITIONAL):
            seen[f"{path}.__class__"] = type(module).__name__
        for name, value in vars(module).items():
            if name.startswith("_") or any(mark in f"{path}.{name}" for mark in _POSITIONAL):
                continue
            if isinstance(value, bool | str | float | type(None)):
                seen[f"{path}.{name}"] = value
            elif isinstance(value, int):
                seen[f"{path}.{name}"] = "its own number" if value == ours else value
    return seen


def differences(
    old: nn.ModuleList, new: nn.ModuleList, sources: tuple[int, ...], bound: tuple[str, ...] = ()
) -> list[Difference]:
    """How the layers of a new stack differ from the source layers that they stand for."""
    found: list[Difference] = []
    if len(new) != len(sources):
        return [
            Difference(len(new), f"the rebuilt model has {len(new)} layers, not {len(sources)}")
        ]
    shape_cache = {s: _without(shapes(old[s]), bound) for s in set(sources)}
    for slot, (layer, source) in enumerate(zip(new, sources, strict=True)):
        expected, given = _without(shapes(layer), bound), shape_cache[source]
        for name in sorted(expected.keys() | given.keys()):
            if name not in given:
                found.append(Difference(slot, f"expects `{name}`, which layer {source} lacks"))
            elif name not in expected:
                found.append(Difference(slot, f"has no place for `{name}` of layer {source}"))
            elif expected[name] != given[name]:
                found.append(
                    Difference(
                        slot,
                        f"expects `{name}` as {list(expected[name])}; layer {source} "
                        f"has {list(given[name])}",
                    )
                )
        before, after = _attributes(old[source], source), _attributes(layer, slot)
        for name in before.keys() & after.keys():
            same = before[name] == after[name]
            if not same and "its own number" not in (before[name], after[name]):
                found.append(
                    Difference(
                        slot,
                        f"`{name.lstrip('.')}` would be {after[name]!r}; layer {source} "
                        f"has {before[name]!r}",
                    )
                )
    return found


def _without(names: dict[str, Any], bound: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in names.items() if name not in bound}
