"""What running a model for observation takes: inputs, modes, and other forwards for a while."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from restack.errors import DataError

Batch = Mapping[str, Any]
NOT_FOR_MODEL = ("special_tokens_mask", "indices")


# What models keep from one call to the next: keys and values; XLNet's states.
_MEMORIES = {"use_cache", "use_mems"}


class Enough(Exception):
    """Ends a forward pass from within: what was wanted of it is there."""


@contextlib.contextmanager
def retractable(progress: Callable[[int], None] | None) -> Iterator[Callable[[int], None]]:
    """Progress that is taken back if the work fails: it may be done again in smaller pieces."""
    done = 0

    def tell(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(count)

    try:
        yield tell
    except BaseException:
        tell(-done)
        raise


@contextlib.contextmanager
def observing(model: nn.Module, *, grad: bool = False) -> Iterator[None]:
    """Evaluation mode, and no gradients unless they are asked for; all is put back at the end."""
    modes = [module for module in model.modules() if module.training]
    try:
        for module in modes:
            module.training = False
        with torch.set_grad_enabled(grad):
            yield
    finally:
        for module in modes:
            module.training = True


@contextlib.contextmanager
def forwards(replaced: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Let modules do something else than their own forward for a while.

    The model keeps its modules, its depth and its config, so forwards that slice the list of layers
    or look up their kinds by number go on working, and so do hooks.
    """
    kept = {module: vars(module).get("forward") for module in replaced}
    try:
        for module, function in replaced.items():
            vars(module)["forward"] = function
        yield
    finally:
        for module, own in kept.items():
            vars(module).pop("forward", None)
            if own is not None:
                vars(module)["forward"] = own


def model_inputs(model: PreTrainedModel, batch: Batch) -> dict[str, Any]:
    """What of a batch the model takes, on its device; no cache of keys and values is kept."""
    _check_ids(model, batch)
    inputs = {
        name: _moved(value, model, name)
        for name, value in batch.items()
        if name not in NOT_FOR_MODEL
    }
    for memory in _MEMORIES & inspect.signature(type(model).forward).parameters.keys():
        inputs.setdefault(memory, False)
    return inputs


def _moved(value: Any, model: PreTrainedModel, name: str) -> Any:
    if not isinstance(value, Tensor):
        return value
    floats = value.is_floating_point() and name != "labels"
    return value.to(device=model.device, dtype=model.dtype if floats else None)


def _check_ids(model: PreTrainedModel, batch: Batch) -> None:
    ids = batch.get("input_ids")
    if not isinstance(ids, Tensor) or not ids.numel():
        return
    try:
        known = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError:  # CLIP and others with several towers
        known = None
    least, most = int(ids.min()), int(ids.max())
    if known is not None and not 0 <= least <= most < known:
        raise DataError(
            f"token {least if least < 0 else most} is not in the model's vocabulary of {known}",
            hint="use the tokenizer that belongs to this model",
        )
