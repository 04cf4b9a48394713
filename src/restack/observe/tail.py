"""What a model does between its stack and its output, as a function of rows of states."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from restack.anatomy.anatomy import Stack
from restack.errors import StackError
from restack.observe.running import forwards, observing
from restack.observe.stack_run import layer_states, layers_of, not_once, state_in, tokens_first
from restack.observe.weights_used import Trace

Take = Callable[[Any], Tensor]
"""Finds what is wanted in a model's output: texts x tokens x width."""


@dataclass(frozen=True, slots=True)
class Tail:
    """What stands behind a stack, as a function from rows of states (n x hidden).

    Each row is run as a text of one token, which no limit of positions forbids and which leaves
    nothing to attend to. The layers return the states instead of running.
    """

    model: PreTrainedModel
    in_decoder: bool
    forms: Mapping[nn.Module, Any]
    """What each layer returns for one token: its state, or a tuple that begins with it."""
    hidden: int
    unit: int
    """Tokens of one text: one, unless the model fills texts up (Longformer, to its window)."""

    def __call__(
        self, states: Tensor, take: Take, *, entered: Callable[[], None] | None = None
    ) -> Tensor:
        """What `take` finds, as rows; differentiable where gradients are on.

        `entered` is called when the stack is reached.
        """
        states = states.to(device=self.model.device, dtype=self.model.dtype)
        count = -(-len(states) // self.unit)
        if missing := count * self.unit - len(states):
            states = torch.cat([states, states.new_zeros(missing, self.hidden)])
        texts = states.reshape(count, self.unit, self.hidden)
        given = self._giving(texts.transpose(0, 1) if tokens_first(self.model) else texts, entered)
        inputs = _texts(self.model, count, self.unit, in_decoder=self.in_decoder)
        with observing(self.model, grad=torch.is_grad_enabled()), forwards(given):
            found = take(self.model(**inputs))
        if found.shape[:2] != texts.shape[:2]:
            raise StackError(
                f"{type(self.model).__name__} makes {list(found.shape)} of {count} texts of "
                f"{self.unit} tokens: what stands behind the stack does not read token by token"
            )
        return found.flatten(0, 1)[: count * self.unit - missing]

    def _giving(
        self, texts: Tensor, entered: Callable[[], None] | None
    ) -> dict[nn.Module, Callable[..., Any]]:
        def giving(form: Any) -> Callable[..., Any]:
            output = texts if isinstance(form, Tensor) else (texts, *form[1:])

            def forward(*args: Any, **kwargs: Any) -> Any:
                if entered is not None:
                    entered()
                return output

            return forward

        return {layer: giving(form) for layer, form in self.forms.items()}

    def weights(self, take: Take) -> dict[str, Tensor]:
        """The parameters and buffers that what `take` finds is computed with, by their names."""
        trace = Trace()
        row = torch.linspace(-1, 1, self.hidden, device=self.model.device)[None]
        with torch.no_grad(), trace:
            result = self(row, take, entered=trace.begin)
        used = trace.behind(result)
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        return {name: tensor for name, tensor in named if id(tensor) in used}


def tail_of(model: PreTrainedModel, stack: Stack) -> Tail:
    """The tail behind a stack, learnt from a text of one token."""
    in_decoder = _in_decoder(model, stack)
    layers = layers_of(model, stack)
    forms: dict[nn.Module, Any] = {}
    shapes: list[torch.Size] = []

    def watch(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        shapes.append(state_in(args, kwargs).shape)
        forms[layer] = output

    hooks = [layer.register_forward_hook(watch, with_kwargs=True) for layer in layers]
    try:
        with observing(model):
            model(**_texts(model, 1, 1, in_decoder=in_decoder))
    finally:
        for hook in hooks:
            hook.remove()
    if len(shapes) != stack.depth:
        raise not_once(model, stack, len(shapes))
    return Tail(model, in_decoder, forms, shapes[0][-1], shapes[0][:-1].numel())


def sees_behind(model: PreTrainedModel, stack: Stack) -> bool:
    """Whether a token's state depends on what stands behind it: masked models, not causal ones.

    Found by differentiating: configs say it in many ways, and masked attention leaves a gradient
    of exactly zero.
    """
    if model.config.is_encoder_decoder:
        return False
    started: list[Tensor] = []

    def start(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if started:
            return None
        started.append(state_in(args, kwargs).detach().requires_grad_())
        state = started[0].clone()  # some layers write into what they are given
        return ((state, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": state})

    hook = layers_of(model, stack)[0].register_forward_pre_hook(start, with_kwargs=True)
    try:
        with torch.inference_mode(False), torch.enable_grad():  # whatever the caller is in
            batch = _texts(model, 1, 4, in_decoder=False)
            run = layer_states(model, batch, stack, keep=[stack.depth], tail=False, grad=True)
            first = run.states[0][0, 0]
            # a plain sum would vanish behind a layer norm
            weighed = (first * torch.linspace(1, 2, len(first)).to(first)).sum()
            (gradient,) = torch.autograd.grad(weighed, started)
    finally:
        hook.remove()
    gradient = gradient.transpose(0, 1) if tokens_first(model) else gradient
    return bool(gradient[0, 1:].abs().sum() > 0)


def _in_decoder(model: PreTrainedModel, stack: Stack) -> bool:
    if model.config.is_encoder_decoder and "decoder" not in stack.path:
        raise StackError(
            f"the head of {type(model).__name__} reads what its decoder gives, not `{stack.path}`",
            hint="name the stack of the decoder with --stack",
        )
    return bool(model.config.is_encoder_decoder)


def _texts(model: PreTrainedModel, texts: int, length: int, *, in_decoder: bool) -> dict[str, Any]:
    """Inputs of so many texts of so many tokens; which tokens does not matter."""
    padding = getattr(model.config.get_text_config(decoder=in_decoder), "pad_token_id", None)
    ids = torch.full((texts, length), int(padding == 0), device=model.device)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if in_decoder:
        width = getattr(model.config, "d_model", None) or model.config.hidden_size
        encoded = torch.zeros(texts, 1, width, device=model.device, dtype=model.dtype)
        inputs = {
            "decoder_input_ids": ids,
            "encoder_outputs": BaseModelOutput(last_hidden_state=encoded),
        }
    inputs |= {"use_cache": False, "return_dict": True}
    taken = inspect.signature(type(model).forward).parameters
    return {name: value for name, value in inputs.items() if name in taken}
