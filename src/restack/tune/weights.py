"""The tensors that training changes: taken out, put back, and known again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from restack.tune.engine import Engine

_SAMPLE = 1024


def changing(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Trained parameters, each once even where it is tied, and buffers."""
    yield from ((name, p) for name, p in model.named_parameters() if p.requires_grad)
    yield from model.named_buffers()


def take(model: nn.Module, wrapped: nn.Module, engine: Engine) -> dict[str, Tensor]:
    """Copies of all that changes on the CPU; of a sharded model only on the first process."""
    if not engine.sharded:
        return {name: tensor.detach().cpu().clone() for name, tensor in changing(model)}
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state: dict[str, Any] = get_model_state_dict(wrapped, options=options)
    return state


def put_back(
    model: nn.Module, wrapped: nn.Module, engine: Engine, weights: Mapping[str, Tensor]
) -> None:
    """Give a model what `take` took, in place, so that what is tied stays tied."""
    if not engine.sharded:
        with torch.no_grad():
            for name, tensor in changing(model):
                tensor.copy_(weights[name])
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    if hasattr(wrapped, "reshard"):  # FSDP 2 leaves the outermost weights whole after a forward
        wrapped.reshard()  # type: ignore[operator]
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(wrapped, dict(weights), options=options)


def optimizer_state(wrapped: nn.Module, optimizer: Any, engine: Engine) -> dict[str, Any]:
    """What the optimizer remembers; of a sharded model all of it, on the first process."""
    if not engine.sharded:
        state: dict[str, Any] = optimizer.state_dict()
        return state
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return dict(get_optimizer_state_dict(wrapped, optimizer, options=options))


def set_optimizer_state(
    wrapped: nn.Module, optimizer: Any, engine: Engine, state: dict[str, Any]
) -> None:
    """Let the optimizer remember what `optimizer_state` gave."""
    if not engine.sharded:
        optimizer.load_state_dict(state)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_optimizer_state_dict(wrapped, optimizer, state, options=options)


def digest(model: nn.Module) -> str:
    """A name for the weights of a model, from a sample of each tensor; whatever it was made by."""
    seen = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().flatten()
        some = flat[:: max(1, len(flat) // _SAMPLE)].cpu().contiguous()
        seen.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        seen.update(some.view(torch.uint8).numpy().tobytes())
    return seen.hexdigest()
