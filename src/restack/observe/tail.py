"""What a model does between its stack and its output, as a function of rows of states."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from restack.anatomy.anatomy import Stack
from restack.errors import StackError
from restack.observe.running import forwards, observing
from restack.observe.stack_run import layers_of, not_once, state_in, tokens_first


@dataclass(frozen=True, slots=True)
class Tail:
    """Rows of states (n x hidden) to rows of what `take` finds in the model's output.

    Each row is run as a text of one token, which no limit of positions forbids and which leaves
    nothing to attend to. The layers return what they are given here instead of running.
    """

    model: PreTrainedModel
    layers: tuple[nn.Module, ...]
    forms: tuple[Any, ...]
    """What each layer returned for one token: the state, or a tuple that begins with it."""
    hidden: int
    take: Callable[[Any], Tensor | None]
    in_decoder: bool
    width: int = 0
    """The size of a row that comes out."""
    weights: Mapping[str, Tensor] | None = None
    """The parameters and buffers that it computes with, by their names in the model."""

    def __call__(self, states: Tensor) -> Tensor:
        states = states.to(device=self.model.device, dtype=self.model.dtype)
        found = self.take(self.output(states))
        assert found is not None
        return found.reshape(len(states), -1)

    def output(self, states: Tensor) -> Any:
        """The model's own output for rows of states; differentiable where gradients are on."""
        texts = states[None] if tokens_first(self.model) else states[:, None]
        given = {
            layer: _giving(_with_state(form, texts))
            for layer, form in zip(self.layers, self.forms, strict=True)
        }
        inputs = _one_token(self.model, len(states), in_decoder=self.in_decoder)
        with observing(self.model, grad=torch.is_grad_enabled()), forwards(given):
            return self.model(**inputs)


def tail_of(
    model: PreTrainedModel, stack: Stack, take: Callable[[Any], Tensor | None]
) -> Tail:
    """The tail behind a stack; `take` finds in the model's output what is wanted of it."""
    in_decoder = _place(model, stack)
    layers = layers_of(model, stack)
    forms: dict[nn.Module, Any] = {}
    hidden = 0

    def watch(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        nonlocal hidden
        hidden = state_in(args, kwargs).shape[-1]
        forms[layer] = output

    hooks = [layer.register_forward_hook(watch, with_kwargs=True) for layer in layers]
    try:
        with observing(model):
            model(**_one_token(model, 1, in_decoder=in_decoder))
    finally:
        for hook in hooks:
            hook.remove()
    if len(forms) != len(layers):
        raise not_once(model, stack, len(forms))
    tail = Tail(model, tuple(forms), tuple(forms.values()), hidden, take, in_decoder)
    return _measured(tail, stack)


def _measured(tail: Tail, stack: Stack) -> Tail:
    """The same tail with its width and its weights, found by running it on two rows."""
    rows = torch.linspace(-1, 1, 2 * tail.hidden, device=tail.model.device)
    with _Seen(rows.reshape(2, -1).to(tail.model.dtype)) as seen:
        found = tail.take(tail.output(seen.start))
    if found is not None and found.shape[:-1].numel() != 2:
        raise StackError(
            f"behind `{stack.path}` {type(tail.model).__name__} makes {list(found.shape)} of two "
            "tokens, so it does not read each token by itself"
        )
    named = [*tail.model.named_parameters(), *tail.model.named_buffers()]
    weights = {name: tensor for name, tensor in named if id(tensor) in seen.used}
    return replace(tail, width=0 if found is None else found.shape[-1], weights=weights)


class _Seen(TorchFunctionMode):
    """Notes which tensors are computed with, from the moment that the states are first used."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.start, self.used = start, set()
