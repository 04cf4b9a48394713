"""A model's own language-modelling head, as a function of raw states of its stack.

The model runs its own tail: what lies between the stack and the logits (final norm, transform,
scaling, soft-capping) is whatever its forward does there, so that no architecture needs a table.
States are rows, one a real token, and are read in chunks: tokens x vocabulary never exists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from restack.anatomy import models
from restack.errors import StackError
from restack.observe.made_up import refuse_made_up
from restack.observe.tail import sees_behind, tail_of

MEMORY = 64 * 2**20
"""Bytes for what exists of one chunk of rows at once."""
_COPIES = 3  # of the logits: themselves, in float32, and their exponentials or a comparison


@dataclass(frozen=True, slots=True)
class Head:
    """What turns raw states into logits, and whose it is."""

    label: str
    """`own`, `fitted`, or the name of the checkpoint that it was taken from."""
    reads: Literal["same", "next"]
    """Whether it names the token at its place (masked models) or the one behind it (causal)."""
    hidden: int
    vocab: int
    logits: Callable[[Tensor], Tensor]
    """Rows of states (n x hidden) to rows of logits (n x vocab)."""
    weights: Mapping[str, Tensor]
    """All that it computes with, by name."""
    device: torch.device

    @property
    def fingerprint(self) -> str:
        """A hash of its weights, by which a tuned lens knows the head that it was made for."""
        seen = hashlib.sha256()
        for name, tensor in sorted(self.weights.items()):
            plain = tensor.detach().cpu().contiguous().flatten()
            seen.update(f"{name} {plain.dtype} {list(tensor.shape)} ".encode())
            seen.update(plain.view(torch.uint8).numpy().data)
        return seen.hexdigest()[:32]


class Reading(NamedTuple):
    """What a head says of each of n states."""

    best: Tensor
    """The most likely token."""
    confidence: Tensor
    """Its probability."""
    rank: Tensor
    """The place of the right token, 1 being the first; tokens that score alike share a place."""
    logprob: Tensor
    """The log-probability of the right token."""


def own_head(model: PreTrainedModel, *, stack: str | None = None) -> Head:
    """The language-modelling head that the model itself has on this stack.

    A head whose weights were not in the checkpoint is refused: its numbers would mean nothing.
    """
    found = models.pick(model, stack)
    if model.get_output_embeddings() is None:
        raise no_head(model)
    tail = tail_of(model, found)
    weights = tail.weights(language_logits)
    refuse_made_up(model, found, weights)
    with torch.no_grad():
        vocab = tail(torch.zeros(1, tail.hidden), language_logits).shape[-1]
    return Head(
        "own",
        "same" if sees_behind(model, found) else "next",
        tail.hidden,
        vocab,
        partial(tail, take=language_logits),
        weights,
        model.device,
    )


def graft_head(
    body: PreTrainedModel,
    source: PreTrainedModel,
    *,
    stack: str | None = None,
    label: str | None = None,
) -> Head:
    """The head of another checkpoint, to read the states of this body.

    Kao et al. read a fine-tuned body with the pretrained head in this way. Of a causal model the
    final norm comes along, as a part of the head.
    """
    head = own_head(source, stack=stack)
    name = label or source.config.name_or_path or type(source).__name__
    cls = type(body).__name__
    hint = "take the head of the checkpoint that the body was fine-tuned from"
    found = models.pick(body, stack)
    hidden = tail_of(body, found).hidden
    if hidden != head.hidden:
        raise StackError(
            f"the head of {name} reads states of {head.hidden} numbers; the layers of {cls} "
            f"give {hidden}",
            hint=hint,
        )
    known, given = vocabulary(source), vocabulary(body)
    if known != given:
        raise StackError(
            f"the head of {name} is for a vocabulary of {known:,} tokens; that of {cls} has "
            f"{given:,}",
            hint=hint,
        )
    if sees_behind(body, found) != (head.reads == "same"):
        kinds = ("masked", "causal") if head.reads == "same" else ("causal", "masked")
        raise StackError(
            f"the head of {name} is that of a {kinds[0]} model, and {cls} is a {kinds[1]} one: "
            "their states name other tokens",
            hint=hint,
        )
    return replace(head, label=name)


def read(head: Head, states: Tensor, right: Tensor, *, memory: int = MEMORY) -> Reading:
    """Read rows of states (n x hidden), of which the right tokens are known."""
    count = len(states)
    whole, fractions = torch.empty(2, count, dtype=torch.long), torch.empty(2, count)
    found = Reading(whole[0], fractions[0], whole[1], fractions[1])
    start = 0
    with torch.no_grad():
        for rows, tokens in chunks(head, states, right, memory=memory):
            # into place: small tensors kept between large ones would pin the heap of the process,
            # which then grows with every chunk
            part = _read(head.logits(rows), tokens)
            for kept, values in zip(found, part, strict=True):
                kept[start : start + len(rows)] = values
            start += len(rows)
    return found


def chunks(
    head: Head, *rows: Tensor, memory: int = MEMORY, copies: int = _COPIES
) -> Iterator[tuple[Tensor, ...]]:
    """Parts of tensors of n rows, on the head's device, whose logits fit into the memory."""
    size = max(1, memory // (4 * copies * head.vocab))
    for start in range(0, len(rows[0]), size):
        yield tuple(part[start : start + size].to(head.device) for part in rows)


def _read(logits: Tensor, right: Tensor) -> Reading:
    # beside the head itself these passes over the logits are what the lens costs: argmax and gather
    # take a third of max, a sum of bytes a twentieth of one of truth values, on a CPU
    logits = logits.float()
    best = logits.argmax(-1)
    highest = logits.gather(-1, best[:, None])
    score = logits.gather(-1, right[:, None])
    rank = (logits > score).view(torch.uint8).sum(-1, dtype=torch.int32) + 1
    spread = (logits - highest).exp_().sum(-1).log()
    return Reading(best, (-spread).exp(), rank, (score - highest)[:, 0] - spread)


def language_logits(output: Any) -> Tensor:
    """The logits over the vocabulary in what a model returns."""
    # the pretraining classes of BERT and its kin have two heads, and call the first so
    found = output.get("prediction_logits")
    found = output.get("logits") if found is None else found
    if found is None:
        raise StackError(f"{type(output).__name__} holds no logits over a vocabulary")
    return found


def vocabulary(model: PreTrainedModel) -> int:
    """How many tokens the model has an embedding for."""
    table: Any = model.get_input_embeddings().weight
    return len(table)


def no_head(model: PreTrainedModel) -> StackError:
    """The error for a model without a head: names the class that has one."""
    from transformers.models.auto import modeling_auto as auto

    kind, cls = model.config.model_type, type(model).__name__
    masked, causal = auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    having = masked.get(kind) or causal.get(kind)
    which = f"{having} has one" if having else f"no class for {kind!r} is known to have one"
    return StackError(
        f"{cls} has no language-modelling head; {which}",
        hint="load a checkpoint that holds such a head, take that of another one (--head FROM), "
        "or fit one on your texts with the body frozen (--fit-head)",
    )
