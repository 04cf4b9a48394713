"""States behind chosen layers of a model that runs as it runs: in training, wrapped, with LoRA."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from restack.anatomy.anatomy import Stack
from restack.observe.running import Enough
from restack.observe.stack_run import layers_of, state_out, tokens_first


@contextlib.contextmanager
def watched(
    model: PreTrainedModel, stack: Stack, layers: Collection[int], *, end: bool = False
) -> Iterator[dict[int, Tensor]]:
    """Within it a forward pass leaves the states behind these layers: batch x tokens x hidden.

    The model, or what wraps it, is called as always. With `end` the pass ends behind the last
    layer, without an output. Layers are counted by their calls: those of ALBERT are one module.
    """
    found: dict[int, Tensor] = {}
    calls = 0

    def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        nonlocal calls
        if calls in layers:
            state = state_out(output)
            found[calls] = state.transpose(0, 1) if tokens_first(model) else state
        calls += 1
        if end and calls == stack.depth:
            raise Enough

    with contextlib.ExitStack() as hooks:
        for layer in layers_of(model, stack):
            hooks.callback(layer.register_forward_hook(after).remove)
        with contextlib.suppress(Enough):
            yield found
