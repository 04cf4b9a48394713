"""Run a model and see the states between its layers; run its layers and its tail on other states.

A state is what one layer hands to the next, raw: state 0 enters layer 0, state i+1 leaves layer i,
and the final norm lies behind the last one. Batches are as `restack.data.batches` yields them; what
is not for the model (`special_tokens_mask`, `indices`) is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from restack.anatomy.anatomy import Stack
from restack.errors import StackError
from restack.observe.running import Batch, Enough, forwards, model_inputs, observing

# Layers of these families take tokens x batch x hidden.
TOKENS_FIRST = ("fsmt", "xlnet")


@dataclass(frozen=True, slots=True)
class Run:
    """One forward pass."""

    states: list[Tensor]
    """Batch x tokens x hidden: depth + 1 of them, or those that were to be kept, in order."""
    output: Any
    """The model's own output; None where the run ended behind the stack."""


def layer_states(
    model: PreTrainedModel,
    batch: Batch,
    stack: Stack,
    *,
    keep: Collection[int] | None = None,
    tail: bool = True,
    grad: bool = False,
) -> Run:
    """One forward pass in evaluation mode, with the states of a stack on the way.

    `keep` names the states to keep, all by default. Without `tail` the run ends behind the last
    layer, so that no head is computed (a whole vocabulary for every token). With `grad` the states
    are part of the graph of the output.
    """
    wanted = range(stack.depth + 1) if keep is None else sorted(set(keep))
    if wanted and not 0 <= wanted[0] <= wanted[-1] <= stack.depth:
        raise StackError(f"states of `{stack.path}` are 0..{stack.depth}, not {list(wanted)}")
    states: list[Tensor] = []
    calls = 0

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if calls == 0 and 0 in wanted:
            states.append(state_in(args, kwargs))

    def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        nonlocal calls
        calls += 1
        if calls in wanted:
            states.append(state_out(output))
        if calls == stack.depth and not tail:
            raise Enough

    output = None
    with observing(model, grad=grad), contextlib.ExitStack() as hooks:
        for layer in layers_of(model, stack):
            hooks.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
            hooks.callback(layer.register_forward_hook(after).remove)
        with contextlib.suppress(Enough):
            output = model(**model_inputs(model, batch))
    if calls != stack.depth:
        raise not_once(model, stack, calls)
    if tokens_first(model):
        states = [state.transpose(0, 1) for state in states]
    return Run(states, output)


def finish(model: PreTrainedModel, stack: Stack, batch: Batch, state: Tensor) -> Any:
    """The output of the model with this state behind the last layer: final norm, head and all.

    `state` is as `layer_states` gives it. Only the first layer runs, to see what layers return.
    """
    state = state.transpose(0, 1) if tokens_first(model) else state
    seen: list[Any] = []

    def give(layer: nn.Module) -> Callable[..., Any]:
        own = layer.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            if not seen:
                output = own(*args, **kwargs)
                bare = isinstance(output, Tensor)
                seen.append(state if bare else (state, *output[1:]))
            return seen[0]

        return forward

    layers = layers_of(model, stack)
    with observing(model), forwards({layer: give(layer) for layer in layers}):
        return model(**model_inputs(model, batch))


def layers_of(model: PreTrainedModel, stack: Stack) -> list[nn.Module]:
    """The modules of a stack: its layers, or for ALBERT its groups of shared weights."""
    return list(model.get_submodule(stack.path).children())


def state_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The state among the arguments of a layer."""
    return args[0] if args else kwargs["hidden_states"]


def state_out(output: Any) -> Tensor:
    """The state in what a layer returns."""
    return output[0] if isinstance(output, tuple | list) else output


def tokens_first(model: PreTrainedModel) -> bool:
    """Whether the layers of this model take tokens x batch x hidden."""
    return model.config.model_type in TOKENS_FIRST


def not_once(model: PreTrainedModel, stack: Stack, calls: int) -> StackError:
    """The error for a stack that a forward pass does not go through exactly once."""
    return StackError(
        f"the inputs ran through {calls} layers of `{stack.path}` in {type(model).__name__}, "
        f"which has {stack.depth}",
        hint="give the inputs that this stack reads (pixel_values, decoder_input_ids...)",
    )
