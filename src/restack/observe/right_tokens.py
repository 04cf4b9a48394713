"""Which tokens of a batch a head is asked for, and the states that it reads them from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from restack.anatomy.anatomy import Stack
from restack.errors import DataError, StackError
from restack.observe.running import Batch
from restack.observe.stack_run import layer_states

Reads = Literal["same", "next"]


class Asked(NamedTuple):
    """The n tokens of a batch that are asked for: none that is special, and no padding."""

    where: Tensor
    """Texts x tokens: True at the places whose states are read."""
    right: Tensor
    """The n right tokens, in the order of these places."""
    first: Tensor
    """True where the right token is the one right behind the first special token of its text."""


def asked_tokens(batch: Batch, reads: Reads) -> Asked:
    """The tokens at their own places (`same`), or each read from the place before it (`next`)."""
    if "special_tokens_mask" not in batch:
        raise DataError(
            "the batch does not say which of its tokens are special",
            hint="make batches with restack.data.batches, or give `special_tokens_mask`",
        )
    ids, special = batch["input_ids"], batch["special_tokens_mask"].bool()
    present = batch.get("attention_mask")
    present = torch.ones_like(special) if present is None else present.bool()
    real = present & ~special
    # padding may stand in front: a text begins where nothing was present before
    begins = present & ~_before(present)
    first = real & _before(begins & special)
    if reads == "same":
        return Asked(real, ids[real], first[real])
    real = real & _before(present)
    return Asked(real.roll(-1, 1), ids[real], first[real])


def _before(mask: Tensor) -> Tensor:
    """For each place what the mask says of the place before it."""
    shifted = mask.roll(1, 1)
    shifted[:, 0] = False
    return shifted


def states_at(model: PreTrainedModel, stack: Stack, batch: Batch, where: Tensor) -> list[Tensor]:
    """The states of all layers at some places of a batch, as rows, from one forward pass.

    The pass ends behind the stack. Numbers that are not finite are an error, which names the layer
    that they begin at.
    """
    if model.config.is_encoder_decoder:
        raise StackError(
            f"{type(model).__name__} reads one text and writes another; token by token only masked "
            "and causal language models can be read",
            hint="name a model with one stack",
        )
    places = where.to(model.device)
    rows = []
    for layer, state in enumerate(_states(model, stack, batch)):
        # Longformer fills texts up to its window
        rows.append(state[:, : where.shape[1]][places])
        if not torch.isfinite(rows[-1]).all():
            part = f"layer {layer - 1} of `{stack.path}` gives" if layer else "the embeddings give"
            raise DataError(
                f"{part} NaN or infinite states",
                hint="use float32 or bfloat16 if the model ran in float16; otherwise its weights "
                "are damaged",
            )
    return rows


def _states(model: PreTrainedModel, stack: Stack, batch: Batch) -> Iterator[Tensor]:
    states = layer_states(model, batch, stack, tail=False).states
    while states:  # the padded states go as the rows come
        yield states.pop(0)
