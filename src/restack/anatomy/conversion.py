"""Tensors as they stand on disk, from those in a model.

The one place that imports transformers' conversion code, which is semi-internal; a test holds it
to what `save_pretrained` writes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from restack.anatomy import live


def as_on_disk(
    model: PreTrainedModel, state: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """This (part of a) state dict as `save_pretrained` would store it."""
    return revert_weight_conversion(model, dict(state))


def names_on_disk(model: PreTrainedModel, state: Mapping[str, torch.Tensor]) -> set[str]:
    """The names under which `save_pretrained` would store this (part of a) state dict."""
    return set(as_on_disk(model, state))


def unexpected_and_missing(
    config: PreTrainedConfig, stored: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """How the tensors of a checkpoint differ from what its class stores, in words."""
    names = config.architectures or []
    cls = next((c for n in names if (c := getattr(transformers, n, None)) is not None), None)
    model = live.build_meta(config, cls)
    expected = {
        name: tuple(tensor.shape) for name, tensor in as_on_disk(model, model.state_dict()).items()
    }
    tied = set(model.all_tied_weights_keys)
    given = {_unprefixed(name, model, expected): shape for name, shape in stored.items()}
    found = []
    for name in sorted(expected.keys() | given.keys()):
        if name not in given and name not in tied:
            found.append(f"`{name}` is missing: {type(model).__name__} expects it")
        elif name not in expected:
            found.append(f"`{name}` is unexpected: {type(model).__name__} has no place for it")
        elif name in given and given[name] != expected[name]:
            found.append(f"`{name}` is {list(given[name])}; expected {list(expected[name])}")
    return found


def _unprefixed(name: str, model: PreTrainedModel, expected: Mapping[str, object]) -> str:
    """Checkpoints of a base model may or may not carry the prefix that heads give it."""
    prefix = f"{model.base_model_prefix}."
    if name in expected:
        return name
    for other in (name.removeprefix(prefix), prefix + name):
        if other in expected:
            return other
    return name
