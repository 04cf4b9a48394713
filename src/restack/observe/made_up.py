"""Heads that were not in the checkpoint: transformers fills them with random numbers on loading."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from transformers import PreTrainedModel

from restack.anatomy.anatomy import Stack
from restack.errors import StackError


def refuse_made_up(model: PreTrainedModel, stack: Stack, weights: Mapping[str, Tensor]) -> None:
    """Raise if these weights, those of a head, are not trained although the stack is.

    A model that is random throughout passes: its head is as good as its layers.
    """
    found = _not_loaded(model, weights) or _untouched(model, stack, weights)
    if not found:
        return
    named = ", ".join(f"`{name}`" for name in found[:3])
    raise StackError(
        f"the language-modelling head of {type(model).__name__} was not in the checkpoint and "
        f"holds random numbers: {named}{f' and {len(found) - 3} more' if len(found) > 3 else ''}",
        hint="take the head of another checkpoint (--head FROM) or fit one on your texts with "
        "the body frozen (--fit-head); if it was trained just now, save the model and load it",
    )


def _not_loaded(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> list[str]:
    """Weights that `from_pretrained` made up, by the mark that it leaves on all others."""
    if not any(_marked(parameter) for parameter in model.parameters()):
        return []
    known = {name for name, _ in model.named_parameters()}
    missing = [name for name in weights if name in known and not _marked(weights[name])]
    # the mark tells nothing of training afterwards, biases and norms do
    flat = [weights[name] for name in missing if weights[name].dim() == 1]
    return missing if all(map(_constant, flat)) else []


def _untouched(model: PreTrainedModel, stack: Stack, weights: Mapping[str, Tensor]) -> list[str]:
    """Biases and norms of a head that are all as initialisers leave them, on a trained stack.

    For models that were built from loaded ones and carry no marks.
    """
    flat = [name for name, tensor in weights.items() if tensor.dim() == 1]
    layers = [p for p in model.get_submodule(stack.path).parameters() if p.dim() == 1]
    trained = bool(layers) and not all(map(_constant, layers))
    return flat if trained and all(_constant(weights[name]) for name in flat) else []


def _marked(parameter: Tensor) -> bool:
    return bool(getattr(parameter, "_is_hf_initialized", False))


def _constant(tensor: Tensor) -> bool:
    return bool((tensor == tensor.flatten()[0]).all())
