"""Whether a language model sees what it must not: tokens that it predicts, or other texts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from restack.errors import DataError, StackError
from restack.tune.examples import Examples

# Relative to the largest logit. What is masked out changes nothing at all; kernels may sum in
# another order where the shapes differ.
_UNSEEN, _SAME = 1e-6, 1e-4


@torch.no_grad()
def check_causal(model: nn.Module, examples: Examples) -> None:
    """Refuse a model whose outputs depend on tokens behind them."""
    rows = np.array([int(examples.tokens.lengths.argmax())])
    batch = examples.batch(rows)
    before = _logits(model, batch.inputs)
    batch.inputs["input_ids"][0, -1] = (batch.inputs["input_ids"][0, -1] + 1) % before.shape[-1]
    after = _logits(model, batch.inputs)
    if _far(before[:, :-1], after[:, :-1]) > _UNSEEN:
        raise DataError(
            f"{type(model).__name__} reads in both directions, so as a causal language model it "
            "would see the tokens that it predicts",
            hint="Use masked language modelling (mlm) for it, or a causal model.",
        )


@torch.no_grad()
def check_packing(model: nn.Module, examples: Examples) -> None:
    """Refuse a model that does not keep texts apart that stand end to end in one row."""
    rows = np.arange(min(3, len(examples)))
    first = int(examples.tokens.lengths[0])
    batch = examples.batch(rows)
    ids = batch.inputs["input_ids"]
    try:
        packed = _logits(model, batch.inputs)
        # the other texts must not notice that the first one is another
        changed = ids.clone()
        changed[0, :first] = (changed[0, :first] + 1) % packed.shape[-1]
        other = _logits(model, batch.inputs | {"input_ids": changed})
        moved = _far(packed[:, first:], other[:, first:])
        alone = [_logits(model, examples.batch(rows[i : i + 1]).inputs) for i in range(len(rows))]
        apart = _far(packed, torch.cat(alone, dim=1))
    except TypeError as error:
        raise StackError(
            f"{type(model).__name__} cannot read packed texts: {error}",
            hint="Leave packing out.",
        ) from error
    if len(rows) > 1 and (moved > _UNSEEN or apart > _SAME):
        raise StackError(
            f"{type(model).__name__} does not keep packed texts apart: a text's outputs change "
            "with the texts beside it",
            hint="Leave packing out, or load the model with another attention.",
        )


def _logits(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    was = model.training
    model.eval()
    try:
        logits: Tensor = model(**inputs).logits
    finally:
        model.train(was)
    return logits


def _far(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) if a.numel() else 0.0
