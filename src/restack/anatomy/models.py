"""The anatomy of a torch model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from restack.anatomy import atlas, live
from restack.anatomy.anatomy import Anatomy, Shape, Stack, no_stack
from restack.anatomy.config import get
from restack.anatomy.facts import Facts
from restack.errors import StackError

_DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64"}


def anatomy(model: PreTrainedModel | type[PreTrainedModel]) -> Anatomy:
    """The stacks of a model in memory, found by the live rule, known by the atlas or by trial.

    A class stands for the model of its default config.
    """
    if isinstance(model, type) and issubclass(model, PreTrainedModel):
        made: Any = model.config_class
        model = live.build_meta(made(), model)
    if not isinstance(model, PreTrainedModel):
        raise StackError(
            f"expected a transformers model, found {type(model).__name__}",
            hint="unwrap it first (`model.module`, `model.get_base_model()`)",
        )
    config = live.config_json(model.config)
    tensors = {
        name: Shape(
            _DTYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch.")),
            tuple(tensor.shape),
            tensor.numel() * tensor.element_size(),
        )
        for name, tensor in model.state_dict().items()
    }
    known = atlas.for_config(config)
    stacks = []
    for path, layers in live.find_stacks(model).items():
        facts = _facts(known, live.base_path(model, path)) or _learned(model, path)
        if facts is not None:
            stacks.append(_stack(facts, path, layers, config))
    location = model.config.name_or_path or type(model).__name__
    tied = dict(getattr(model, "all_tied_weights_keys", {}))
    return Anatomy(location, config, tuple(stacks), tensors, tied)


def pick(model: PreTrainedModel, which: str | None = None) -> Stack:
    """The stack that `which` names, or the only one."""
    found = anatomy(model)
    if which and not any(which in stack.path for stack in found.stacks):
        with live.also(which):  # what no rule finds is a stack where the user says so
            found = anatomy(model)
    if not found.stacks:
        lists = [n for n, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m) > 1]
        raise no_stack(found.location, found.config, (f"{n}.{i}.x" for n in lists for i in (0, 1)))
    return found.pick(which)


def _facts(known: tuple[Facts, ...], path: str) -> Facts | None:
    exact = [facts for facts in known if facts.path == path]
    # a composed model: `language_model.layers` here is `layers` of the inner model
    inner = [facts for facts in known if not facts.prefixes and path.endswith(f".{facts.path}")]
    return next(iter(exact or inner), None)


def _learned(model: PreTrainedModel, path: str) -> Facts | None:
    """Facts of a type that the atlas does not know, by building variants of the model itself."""
    from restack.anatomy.learn import learn

    cls = type(model)
    try:
        facts = learn(model.config, build=lambda config: live.build_meta(config, cls)).get(path)
    except Exception as error:
        raise StackError(
            f"`{path}` of {cls.__name__} looks like a stack, but variants of the model cannot be "
            f"built to learn about it ({type(error).__name__}: {error})",
            hint="models whose class builds from its config alone can be re-stacked",
        ) from error
    return facts if facts and facts.counts else None


def _stack(facts: Facts, path: str, layers: nn.ModuleList, config: dict) -> Stack:
    depth = get(config, facts.counts[0]) if facts.shared else len(layers)
    shapes = tuple(
        {
            name: Shape(str(t.dtype), tuple(t.shape), t.numel() * t.element_size())
            for name, t in layer.state_dict().items()
        }
        for layer in layers
    )
    return Stack(replace(facts), f"{path}.", depth, shapes)
