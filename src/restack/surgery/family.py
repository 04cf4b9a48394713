"""Fresh layers as the model family itself would start them. Needs torch."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import torch

from restack.anatomy import live
from restack.anatomy.facts import Facts
from restack.errors import StackError
from restack.plan import Slot
from restack.surgery.fresh import ENCODE


def family_layer(
    config: dict[str, Any], facts: Facts, seed: int, slot: Slot
) -> dict[str, torch.Tensor]:
    """The tensors of one fresh layer in float32, by their names within the layer.

    The layer is built without storage and filled by the family's `_init_weights`, under a seed
    that depends on the source layer and the draw alone.
    """
    base = live.build_meta(live.config_from(config))
    stack = live.find_stacks(base).get(facts.path)
    if stack is None:
        raise StackError(
            f"model type {config.get('model_type')!r} builds no stack at `{facts.path}`",
            hint="choose another initialiser: --init standard",
        )
    layer = stack[slot.source].to_empty(device="cpu").float()
    text = f"restack/{seed}/{slot.source}/{slot.draw}".encode()
    with torch.random.fork_rng(devices=[]), torch.no_grad(), live.quiet():
        torch.manual_seed(int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little"))
        for tensor in layer.state_dict().values():
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
        for module in layer.modules():
            base._init_weights(module)
    state = layer.state_dict()
    for rest, tensor in state.items():
        if tensor.is_floating_point() and bool(torch.isnan(tensor).any()):
            raise StackError(
                f"the initialiser of {type(base).__name__} leaves `{rest}` unset",
                hint="choose another initialiser: --init standard",
            )
    return state


def encoded_family(
    config: dict[str, Any], facts: Facts, seed: int, slot: Slot, rest: str, dtype: str
) -> Iterator[bytes]:
    """The bytes of one tensor of a fresh layer."""
    layer = _cached(json.dumps(config, sort_keys=True), facts, seed, slot)
    yield ENCODE[dtype](layer[rest].numpy().ravel())


@functools.lru_cache(maxsize=2)
def _cached(config: str, facts: Facts, seed: int, slot: Slot) -> dict[str, torch.Tensor]:
    return family_layer(json.loads(config), facts, seed, slot)
