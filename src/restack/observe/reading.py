"""Which tokens of a batch count, which one stands for its text, and one vector for them all.

Real tokens count, special ones (`[CLS]`, `[SEP]`) among them; padding does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel

from restack.anatomy.anatomy import Stack
from restack.errors import DataError
from restack.observe.running import Batch
from restack.observe.tail import sees_behind

Anchor = Literal["first", "last"]
Pooling = Literal["mean", "cls", "last"]
CLASS_TOKEN_LAST = ("xlnet",)
_AT_ONCE = 1 << 23  # numbers of all states looked at together: 64 MB in double precision


@dataclass(frozen=True, slots=True)
class Reading:
    """How a stack reads texts."""

    causal: bool
    """Whether tokens see only what stands before them."""
    anchor: Anchor
    """The real token that stands for its text: the class token, or in causal models the last."""


def reading_of(
    model: PreTrainedModel, stack: Stack, batch: Batch, anchor: Anchor | None = None
) -> Reading:
    """How this stack reads texts; `anchor` overrules which token stands for one."""
    if anchor is not None and anchor not in get_args(Anchor):
        raise DataError(f"there is no anchor {anchor!r}", hint="It is the 'first' or 'last' token.")
    if model.config.is_encoder_decoder:
        causal = "decoder" in stack.path
    else:  # what does not read tokens alone cannot be tried, and images and sounds have no order
        causal = set(batch) & {"pixel_values", "input_features", "input_values"} == set()
        causal = causal and not sees_behind(model, stack)
    last = causal or model.config.model_type in CLASS_TOKEN_LAST
    return Reading(causal, anchor or ("last" if last else "first"))


def real_tokens(model: PreTrainedModel, stack: Stack, batch: Batch, state: Tensor) -> Tensor:
    """True at the real tokens of a state of this stack; all of them where no mask speaks of it."""
    in_decoder = model.config.is_encoder_decoder and "decoder" in stack.path
    mask: Any = batch.get("decoder_attention_mask" if in_decoder else "attention_mask")
    real = torch.zeros(state.shape[:2], dtype=torch.bool, device=state.device)
    # sounds are masked by the sample, and there are fewer states than that
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.shape[1] > state.shape[1]:
        return ~real
    real[:, : mask.shape[1]] = mask.to(state.device) != 0  # Longformer fills texts up behind
    return real


def anchors(real: Tensor, anchor: Anchor) -> Tensor:
    """The place of the first or the last real token of each row."""
    if not real.any(-1).all():
        raise DataError(
            f"row {int((~real.any(-1)).nonzero()[0])} of a batch has no token besides padding",
            hint="Leave out empty texts.",
        )
    if anchor == "first":
        return real.int().argmax(-1)
    return real.shape[-1] - 1 - real.flip(-1).int().argmax(-1)


def pieces(
    tensors: Sequence[Tensor], real: Tensor, anchor: Anchor, names: Sequence[str]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The real tokens of some tensors (each batch x tokens x hidden), a number of them at a time.

    Yields tokens x tensors x hidden, and which of the tokens are anchors. `names` says what each of
    the tensors is, for the error about numbers that are not finite.
    """
    is_anchor = torch.zeros_like(real)
    is_anchor[torch.arange(len(real), device=real.device), anchors(real, anchor)] = True
    flat = [tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors]
    step = max(64, _AT_ONCE // (len(flat) * flat[0].shape[-1]))
    for some in real.flatten().nonzero().squeeze(1).split(step):
        x = torch.stack([tensor.index_select(0, some) for tensor in flat], 1)
        finite = x.isfinite().all(-1).all(0)
        if not finite.all():
            raise DataError(
                f"{names[int((~finite).nonzero()[0])]} holds values that are not finite numbers",
                hint="Use float32 or bfloat16 if the model ran in float16; otherwise its weights "
                "are damaged.",
            )
        yield x, is_anchor.flatten().index_select(0, some)


def state_names(stack: Stack) -> list[str]:
    """What to call each state of a stack."""
    path = stack.path
    return [f"what enters layer 0 of `{path}`"] + [
        f"what leaves layer {i} of `{path}`" for i in range(stack.depth)
    ]


def pool(states: Sequence[Tensor], real: Tensor, pooling: Pooling) -> Tensor:
    """One vector for each text and state, in float32: texts x states x hidden."""
    real = real.to(states[0].device)
    if pooling == "mean":
        weights = (real / real.sum(1, keepdim=True)).unsqueeze(1)
        # padding may hold anything, and 0 x NaN is NaN
        return torch.cat([weights @ s.float().masked_fill(~real[..., None], 0) for s in states], 1)
    places = torch.arange(real.shape[1], device=real.device)
    first = real.int().argmax(1)
    last = (real * places).argmax(1)
    rows = torch.arange(len(real), device=real.device)
    return torch.stack([s[rows, first if pooling == "cls" else last].float() for s in states], 1)
