"""What a readout sees: one batch at the end of one plan, computed no further than it asks for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from restack.errors import StackError
from restack.observe.running import Batch, Enough, forwards
from restack.observe.stack_run import tokens_first

HEAD_BYTES = 64 << 20  # logits computed at a time


@dataclass(frozen=True)
class Leaf:
    """One batch at the end of one plan.

    `state` is the raw state behind the last layer. `body` is what the base model returns (the state
    behind the final norm) and costs no head. `output` is what the model returns. `logits` applies
    the model's language-model head to chosen tokens.
    """

    model: PreTrainedModel
    batch: Batch
    inputs: dict[str, Any]
    run: Callable[[], Any]
    """Runs the model behind the stack."""
    last: Callable[[], Tensor]
    plan: int
    """The place of the plan among those that are evaluated."""

    @cached_property
    def state(self) -> Tensor:
        """The raw state behind the last layer: batch x tokens x hidden."""
        state = self.last()
        return state.transpose(0, 1) if tokens_first(self.model) else state

    @cached_property
    def output(self) -> Any:
        """What the model returns."""
        return self.run()

    @property
    def body(self) -> Any:
        """What the base model returns; the same as `output` where there is no other part."""
        return self._body[0]

    @cached_property
    def _body(self) -> tuple[Any, nn.Module]:
        return stop_at_body(self.model, self.run)

    def hidden(self) -> Tensor:
        """The last state behind the final norm: batch x tokens x hidden."""
        state = self.body[0] if isinstance(self.body, tuple) else self.body.get("last_hidden_state")
        if state is None:
            raise StackError(
                f"{type(self.model).__name__} does not return a last hidden state",
                hint="load the model without its head (AutoModel), or read its output",
            )
        return state

    def logits(self, where: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """The language-model head on the tokens that are True in `where` (batch x tokens).

        Yields pieces of a list of these tokens with their logits, so that the vocabulary is never
        held for all tokens of a batch.
        """
        table = self.model.get_output_embeddings()
        if table is None:
            raise StackError(
                f"{type(self.model).__name__} has no language-model head",
                hint="load the checkpoint as AutoModelForMaskedLM or AutoModelForCausalLM",
            )
        body, base = self._body
        states = self.hidden()
        states = states[where.to(states.device)]
        inputs = {k: v for k, v in self.inputs.items() if k not in ("labels", "logits_to_keep")}
        size = max(16, HEAD_BYTES // (4 * table.weight.shape[0]))
        for start in range(0, len(states), size):
            part = slice(start, min(start + size, len(states)))
            given = _with_state(body, states[part][None])
            modules = [base, self.model.get_encoder()] if self._is_bare_decoder else [base]
            with forwards(dict.fromkeys(modules, lambda *args, given=given, **kwargs: given)):
                yield part, _logits(self.model(**inputs))[0]

    @property
    def _is_bare_decoder(self) -> bool:
        """T5: the model itself runs an encoder before its body, which is the decoder alone."""
        return self.model.base_model is self.model and self._body[1] is not self.model


def body_of(model: PreTrainedModel, run: Callable[[], Any]) -> Any:
    """What the base model returns within `run`, which ends there: no head is computed."""
    return stop_at_body(model, run)[0]


def stop_at_body(model: PreTrainedModel, run: Callable[[], Any]) -> tuple[Any, nn.Module]:
    """The output of the part that the head reads, and that part; the whole model if there is none.

    It is the base model or, where its forward is passed by (OPT) or there is no base model of its
    own (T5), the decoder.
    """
    base, inner = model.base_model, _decoder(model)
    entered: list[nn.Module] = []
    seen: list[tuple[Any, nn.Module]] = []

    def end(module: nn.Module, args: Any, output: Any) -> None:
        if module is base or not entered:
            seen.append((output, module))
            raise Enough

    with contextlib.ExitStack() as hooks:
        if base is not model:
            enter = base.register_forward_pre_hook(lambda module, args: entered.append(module))
            hooks.callback(enter.remove)
            hooks.callback(base.register_forward_hook(end).remove)
        if inner is not None and inner is not base:
            hooks.callback(inner.register_forward_hook(end).remove)
        with contextlib.suppress(Enough):
            return run(), model
    return seen[0]


def _decoder(model: PreTrainedModel) -> nn.Module | None:
    """The decoder, if the head of the model may read it without the base model around it."""
    has_head = model.get_output_embeddings() is not None
    decoder = model.get_decoder() if has_head else None
    return decoder if isinstance(decoder, PreTrainedModel) and decoder is not model else None


def _logits(output: Any) -> Tensor:
    # the classes for pretraining have a second head beside it
    return output.prediction_logits if "prediction_logits" in output else output.logits


def _with_state(body: Any, state: Tensor) -> Any:
    if isinstance(body, tuple):
        return (state, *body[1:])
    return type(body)(**{**body, "last_hidden_state": state})
