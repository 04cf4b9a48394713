"""How a model calls its layers on one batch, so that they can be applied to other states.

What a layer gets beside the state (masks, positions, the output of an encoder) does not depend on
the order of the layers. It is recorded in a forward pass in which the layers do nothing.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from restack.anatomy import live
from restack.anatomy.anatomy import Stack
from restack.errors import StackError
from restack.observe.leaf import body_of
from restack.observe.running import Batch, Enough, forwards, model_inputs
from restack.observe.stack_run import layers_of, not_once, state_in, state_out

_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, enum.Enum, slice)


@dataclass(frozen=True, slots=True)
class Form:
    """What the layers of a stack take and return, seen in one real forward pass."""

    beside: tuple[tuple[Any, ...] | None, ...]
    """For each layer what follows the state in the tuple that it returns; None: it returns none."""
    carried: bool
    """Later layers get what layer 0 returns beside the state (T5: the position bias)."""
    in_place: bool
    """Layers overwrite the state that they are given."""

    def wrap(self, layer: int, state: Tensor, beside: tuple[Any, ...] | None = None) -> Any:
        """A state in the form in which this layer returns it."""
        own = self.beside[layer]
        return state if own is None else (state, *(own if beside is None else beside))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a layer, but for the state."""

    layer: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def again(self, state: Tensor, layer: nn.Module | None = None) -> Any:
        """The same call with another state, and maybe another layer."""
        args, kwargs = self.args, self.kwargs
        if args:
            args = (state, *args[1:])
        else:
            kwargs = {**kwargs, "hidden_states": state}
        return (layer or self.layer)(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Recording:
    """A model on one batch: what enters the stack, each layer, and what lies behind the stack."""

    model: PreTrainedModel
    stack: Stack
    inputs: dict[str, Any]
    form: Form
    calls: tuple[Call, ...]
    start: Tensor
    earlier: dict[nn.Module, Any]
    """What layers of other stacks return that ran before this one (the encoder of a decoder)."""

    def apply(self, layer: int, state: Tensor, module: nn.Module | None = None) -> Tensor:
        """What this layer makes of a state; `module` takes its place."""
        state = state.clone() if self.form.in_place else state
        return state_out(self.calls[layer].again(state, module))

    def finish(self, state: Tensor) -> Any:
        """The output of the model with this state behind the last layer."""
        layers = {call.layer: i for i, call in reversed(list(enumerate(self.calls)))}
        given = {layer: self.form.wrap(i, state) for layer, i in layers.items()}
        with forwards({m: _giving(output) for m, output in (given | self.earlier).items()}):
            return self.model(**self.inputs)


def _giving(output: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: output


def record(model: PreTrainedModel, stack: Stack, batch: Batch, form: Form) -> Recording:
    """Run what stands before the stack, and note how the layers are called."""
    inputs = model_inputs(model, batch)
    calls: list[Call] = []
    start: list[Tensor] = []
    handed: list[tuple[Any, ...]] = []

    def taking(layer: nn.Module) -> Callable[..., Any]:
        own = layer.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            number, state = len(calls), state_in(args, kwargs)
            if not number:
                start.append(state)
            calls.append(_stateless(layer, args, kwargs))
            if form.carried and number == 0:
                handed.append(tuple(own(*args, **kwargs)[1:]))
            if len(calls) == stack.depth:
                raise Enough
            return form.wrap(number, state, *handed)

        return forward

    layers = layers_of(model, stack)
    with (
        _last_outputs(model, stack, lambda: not calls) as earlier,
        forwards({layer: taking(layer) for layer in layers}),
        contextlib.suppress(Enough),
    ):
        model(**inputs)
    if len(calls) != stack.depth:
        raise not_once(model, stack, len(calls))
    return Recording(model, stack, inputs, form, tuple(calls), start[0], earlier)


def _stateless(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """A call that keeps no state alive."""
    if args:
        return Call(layer, (None, *args[1:]), kwargs)
    return Call(layer, args, {name: v for name, v in kwargs.items() if name != "hidden_states"})


@contextlib.contextmanager
def _last_outputs(
    model: PreTrainedModel, stack: Stack, still: Callable[[], bool]
) -> Iterator[dict[nn.Module, Any]]:
    """For each layer of the other stacks what its stack returns, while `still` holds."""
    found: dict[nn.Module, Any] = {}
    with contextlib.ExitStack() as hooks:
        for path, layers in live.find_stacks(model).items():
            if path == stack.path:
                continue

            def after(_: nn.Module, args: Any, output: Any, layers: nn.ModuleList = layers) -> None:
                if still():
                    found.update(dict.fromkeys(layers, output))

            for layer in layers:
                hooks.callback(layer.register_forward_hook(after).remove)
        yield found


def learn(model: PreTrainedModel, stack: Stack, batch: Batch) -> tuple[Form, Any]:
    """The form of the layers, and what the base model returns, from one plain forward pass.

    Refused are stacks whose layers hand on more than the state, so that what one of them gets
    depends on those before it.
    """
    calls: list[Call] = []
    outputs: list[Any] = []
    versions: list[int] = []
    before: list[Any] = []
    in_place = False

    def entering(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(Call(layer, args, kwargs))
        before.append(_contents((args[1:], kwargs)))
        versions.append(state_in(args, kwargs)._version)

    def leaving(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        nonlocal in_place
        outputs.append(output)
        in_place |= state_in(args, kwargs)._version != versions[-1]

    with contextlib.ExitStack() as hooks:
        for layer in layers_of(model, stack):
            hooks.callback(layer.register_forward_pre_hook(entering, with_kwargs=True).remove)
            hooks.callback(layer.register_forward_hook(leaving, with_kwargs=True).remove)
        inputs = model_inputs(model, batch)
        body = body_of(model, lambda: model(**inputs))
    if len(calls) != stack.depth:
        raise not_once(model, stack, len(calls))
    for number, (call, seen) in enumerate(zip(calls, before, strict=True)):
        _refuse_shared(stack, number, (call.args[1:], call.kwargs), seen)
    beside = tuple(_beside(output) for output in outputs)
    carried = _carried(stack, calls, beside)
    plain = tuple(b if b is None else tuple(_without_tensors(x) for x in b) for b in beside)
    return Form(plain, carried, in_place), body


def _beside(output: Any) -> tuple[Any, ...] | None:
    return tuple(output[1:]) if isinstance(output, tuple | list) else None


def _without_tensors(value: Any) -> Any:
    return value if isinstance(value, _PLAIN) else None


def _carried(stack: Stack, calls: list[Call], beside: tuple[tuple[Any, ...] | None, ...]) -> bool:
    """Whether layers get what layer 0 returned beside the state; any other layer's is refused."""
    first = {id(t) for t in _tensors(beside[0])}
    carried = False
    for number in range(1, len(calls)):
        given = {id(t) for t in _tensors((calls[number].args, calls[number].kwargs))}
        handed = given & {id(t) for t in _tensors(beside[number - 1])}
        carried |= bool(handed)
        if handed - first:
            raise StackError(
                f"layer {number - 1} of `{stack.path}` hands more than its state to layer {number}"
            )
    return carried


def _refuse_shared(stack: Stack, number: int, given: Any, seen: Any) -> None:
    """Refuse what could take values from layer to layer unseen: caches, and lists that change."""
    for value in _leaves(given):
        if not isinstance(value, _PLAIN) and not callable(value):
            raise StackError(
                f"layer {number} of `{stack.path}` is given a {type(value).__name__}, through "
                "which layers may pass values to each other"
            )
    if _contents(given) != seen:
        raise StackError(f"the layers of `{stack.path}` write into what layer {number} is given")


def _leaves(value: Any) -> Iterator[Any]:
    """All values within containers, tensors left out."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for part in value:
            yield from _leaves(part)
    elif not isinstance(value, Tensor):
        yield value


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, Tensor):
        yield value


def _contents(value: Any) -> Any:
    """What containers hold, by identity: equal as long as nothing is put into them."""
    if isinstance(value, dict):
        return {key: _contents(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [_contents(part) for part in value]
    return (id(value), value._version) if isinstance(value, Tensor) else id(value)
