"""Re-stack a model in memory by building a new one around its tensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import Any, TypeVar, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from restack.anatomy import live, models
from restack.anatomy.anatomy import Stack
from restack.anatomy.config import rewrite_config
from restack.errors import StackError
from restack.plan import Mark, Plan, Slot
from restack.surgery import fresh
from restack.surgery.checks import check, misfit
from restack.surgery.family import drawn, family_layer
from restack.surgery.keymap import Entry, key_map

Model = TypeVar("Model", bound=PreTrainedModel)


def restack(
    model: Model,
    plan: Plan | str,
    *,
    stack: str | None = None,
    seed: int = 0,
    init: str = fresh.DEFAULT,
) -> Model:
    """A new model whose stack follows the plan; the given model stays as it is.

    Editing a list of layers in place leaves the config, the hooks that record hidden states and the
    cache indices stale, so a new model is built from the new config and given the old tensors,
    copied. Slots marked `@tied` share storage with the first slot of the same source layer.
    """
    found = models.pick(model, stack)
    plan = Plan.parse(plan, found.depth) if isinstance(plan, str) else plan
    check(found, plan)
    _refuse_wrapped(model)
    values = live.config_json(model.config)
    config = live.config_from(rewrite_config(values, found.facts, plan), type(model.config))
    config._attn_implementation = model.config._attn_implementation
    config.name_or_path = model.config.name_or_path

    new = cast(Model, live.build_meta(config, type(model)))
    layers = None if found.facts.shared else new.get_submodule(found.path)
    if layers is not None:
        old_layers = model.get_submodule(found.path)
        wrong = live.differences(old_layers, layers, plan.sources, found.facts.bound)  # type: ignore[arg-type]
        if wrong:
            raise misfit(found, plan, wrong)
    _fill(new, model, found, plan, seed, init, values)
    new.tie_weights()
    _tie_slots(layers, plan)
    _copy_state(new, model, layers, found, plan)
    return new


def _refuse_wrapped(model: PreTrainedModel) -> None:
    if getattr(model, "hf_quantizer", None) is not None:
        raise StackError(
            "a quantised model cannot be rebuilt in memory",
            hint="edit its checkpoint instead (`restack edit`): the tensors travel as they are",
        )
    places: dict[str, Any] = getattr(model, "hf_device_map", None) or {}
    if len(set(places.values())) > 1:
        raise StackError(
            "the model is spread over several devices by hooks",
            hint="edit its checkpoint with `restack edit`, then load that with device_map",
        )


def _fill(
    new: PreTrainedModel,
    old: PreTrainedModel,
    found: Stack,
    plan: Plan,
    seed: int,
    init: str,
    config: Mapping[str, Any],
) -> None:
    """Give the new model its tensors: copies, zeros, fresh ones."""
    old_state = old.state_dict()
    if found.facts.shared:
        plan = Plan.identity(len(found.layers))  # the groups stay, the depth is in the config
    make = _Maker(old, found, dict(config), seed, init)
    copies: dict[object, torch.Tensor] = {}  # tensors that the old model ties stay tied
    state: dict[str, torch.Tensor] = {}
    for entry in key_map(old_state, f"{found.path}.", plan, bound=found.facts.bound):
        tensor = old_state[entry.source]
        if entry.slot is None:
            storage = (tensor.data_ptr() or entry.name, tensor.shape)
            if storage not in copies:
                copies[storage] = gather(tensor, entry.name, found, plan).clone()
            state[entry.name] = copies[storage]
        else:
            state[entry.name] = make.tensor(entry, tensor)
    expected = live.shapes(new)
    wrong = sorted(
        name
        for name in expected.keys() | state.keys()
        if expected.get(name) != (tuple(state[name].shape) if name in state else None)
    )
    if wrong:
        name = wrong[0]
        have = list(state[name].shape) if name in state else "nothing"
        want = list(expected[name]) if name in expected else "nothing"
        raise StackError(
            f"the re-stacked {type(new).__name__} expects {want} for `{name}`, the plan "
            f"{plan} gives {have} ({len(wrong)} tensors differ)",
            hint="the tensor depends on the depth in a way that is not known",
        )
    trainable = {name: p.requires_grad for name, p in old.named_parameters()}
    new.load_state_dict(state, strict=True, assign=True)
    own = dict(new.named_parameters())
    for entry in key_map(trainable, f"{found.path}.", plan, bound=found.facts.bound):
        if entry.name in own:
            own[entry.name].requires_grad_(trainable[entry.source])


class _Maker:
    """Makes the tensors of slots, by their marks."""

    def __init__(
        self, model: PreTrainedModel, stack: Stack, config: dict[str, Any], seed: int, init: str
    ) -> None:
        self.model, self.path, self.facts, self.seed = model, stack.path, stack.facts, seed
        self.rules = None if init == fresh.FAMILY else fresh.rules(init, config, stack.facts)
        self.last: tuple[Slot, Mapping[str, torch.Tensor]] | None = None

    def tensor(self, entry: Entry, source: torch.Tensor) -> torch.Tensor:
        slot = entry.slot
        assert slot is not None
        if slot.mark is Mark.NOOP and self.facts.zeroed(entry.rest, on_disk=False):
            return torch.zeros_like(source)
        if slot.mark is not Mark.FRESH or source.is_meta or not source.is_floating_point():
            return source.clone()
        if self.rules is None:
            made = self._family(slot)[entry.rest]
        else:
            what = self.rules(entry.rest, source.dim())
            if what == "keep":
                return source.clone()
            made = drawn(what, source.numel(), self.seed, slot, entry.rest).reshape(source.shape)
        # a copy, because the next slot may be of the same draw
        return made.to(dtype=source.dtype, device=source.device, copy=True)

    def _family(self, slot: Slot) -> Mapping[str, torch.Tensor]:
        if self.last is None or self.last[0] != slot:
            self.last = slot, family_layer(self._unbuilt, self.path, self.seed, slot)
        return self.last[1]

    @cached_property
    def _unbuilt(self) -> PreTrainedModel:
        return live.build_meta(self.model.config, type(self.model))


def gather(tensor: torch.Tensor, name: str, stack: Stack, plan: Plan) -> torch.Tensor:
    """A tensor outside the stack; the parts of one that has a part a layer follow the plan."""
    axis = stack.facts.axis_of(name)
    if axis is None:
        return tensor
    parts = tensor.chunk(plan.depth, dim=axis)
    return torch.cat([parts[source] for source in plan.sources], dim=axis)


def _tie_slots(layers: nn.Module | None, plan: Plan) -> None:
    """Let tied slots train as one: the same Parameter objects in separate layers."""
    if layers is None:
        return
    owners: dict[int, int] = {}
    for position, slot in enumerate(plan):
        if slot.mark in (Mark.COPY, Mark.TIED):
            owners.setdefault(slot.source, position)
        if slot.mark is Mark.TIED and owners[slot.source] != position:
            owner = dict(layers[owners[slot.source]].named_modules())  # type: ignore[index]
            for path, module in layers[position].named_modules():  # type: ignore[index]
                module._parameters.update(owner[path]._parameters)


def _copy_state(
    new: PreTrainedModel, old: PreTrainedModel, layers: nn.Module | None, found: Stack, plan: Plan
) -> None:
    """What a state dict does not hold: unsaved buffers, the mode, the generation config."""
    buffers = dict(old.named_buffers())
    owners = dict(new.named_modules())
    trail = key_map(buffers, f"{found.path}.", plan) if layers is not None else None
    pairs = ((e.name, e.source) for e in trail) if trail else ((n, n) for n in buffers)
    for name, source in pairs:
        owner, _, leaf = name.rpartition(".")
        module = owners.get(owner)
        if module is not None and leaf in module._non_persistent_buffers_set:
            module._buffers[leaf] = buffers[source].clone()
    left = [name for name, tensor in new.named_buffers() if tensor.is_meta]
    if left and not any(tensor.is_meta for tensor in buffers.values()):
        raise StackError(f"{type(new).__name__} computes `{left[0]}` in a way that is not known")
    modes = {path: module.training for path, module in old.named_modules()}
    for path, module in owners.items():
        module.training = modes.get(path, old.training)
    if getattr(old, "generation_config", None) is not None:
        new.generation_config = copy.deepcopy(old.generation_config)
