"""A model's own language-modelling head, as a function of raw states of its stack.

The model runs its own tail: what lies between the stack and the logits (final norm, transform,
scaling, soft-capping) is whatever its forward does there, so that no architecture needs a table.
States are rows, one a real token, and are read in chunks: tokens x vocabulary never exists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from restack.anatomy import models
from restack.anatomy.anatomy import Stack
from restack.errors import StackError
from restack.observe.stack_run import layer_states
from restack.observe.tail import Tail, tail_of

MEMORY = 64 * 2**20
"""Bytes for what exists of one chunk of rows at once: small enough to stay near a processor."""
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
    dtype: torch.dtype

    @property
    def fingerprint(self) -> str:
        """A hash of its weights, by which a tuned lens knows the head that it was made for."""
        seen = hashlib.sha256()
        for name, tensor in sorted(self.weights.items()):
            seen.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            seen.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
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
    """The language-modelling head that stands on this stack in the model itself.

    A head whose weights were not in the checkpoint is refused: its numbers would mean nothing.
    """
    found = models.pick(model, stack)
    tail = _language_tail(model, found)
    _refuse_fresh(model, found, tail)
    return Head(
        "own",
        "same" if sees_behind(model, found) else "next",
        tail.hidden,
        tail.width,
        tail,
        tail.weights,
        model.device,
        model.dtype,
    )


def graft_head(
    body: PreTrainedModel,
    source: PreTrainedModel,
    *,
    stack: str | None = None,
    label: str | None = None,
) -> Head:
    """The head of another checkpoint, for the states of this body (D2 of Kao et al.: a fine-tuned
    body with the pretrained head).

    Of a causal model the final norm comes along with the head.
    """
    head = own_head(source, stack=stack)
    name = label or source.config.name_or_path or type(source).__name__
    width = layer_width(body, models.pick(body, stack))
    if width != head.hidden:
        raise StackError(
            f"the head of {name} reads states of {head.hidden} numbers, and the layers of "
            f"{type(body).__name__} give {width}",
            hint="take the head of the checkpoint that the body was fine-tuned from",
        )
    tokens = embedding_rows(body)
    if tokens != head.vocab:
        raise StackError(
            f"the head of {name} knows {head.vocab:,} tokens, and {type(body).__name__} "
            f"embeds {tokens:,}",
            hint="take the head of the checkpoint that the body was fine-tuned from",
        )
    return _labelled(head, name)


def _labelled(head: Head, label: str) -> Head:
    values = {name: getattr(head, name) for name in head.__dataclass_fields__}
    return Head(**{**values, "label": label})


def read(head: Head, states: Tensor, right: Tensor, *, memory: int = MEMORY) -> Reading:
    """Read rows of states (n x hidden), given the right token of each."""
    with torch.no_grad():
        parts = [
            _read_chunk(head.logits(rows), tokens)
            for rows, tokens in chunks(head, states, right, memory=memory)
        ]
    if not parts:
        none = states.new_empty(0, dtype=torch.int64)
        return Reading(none, none.float(), none, none.float())
    return Reading(*(torch.cat(values) for values in zip(*parts, strict=True)))


def chunks(
    head: Head, *rows: Tensor, memory: int = MEMORY, copies: int = _COPIES
) -> Iterator[tuple[Tensor, ...]]:
    """Parts of tensors of n rows, on the head's device, whose logits fit into the memory."""
    size = max(1, memory // (4 * copies * head.vocab))
    for start in range(0, len(rows[0]), size):
        yield tuple(part[start : start + size].to(head.device) for part in rows)


def _read_chunk(logits: Tensor, right: Tensor) -> Reading:
    logits = logits.float()
    total = logits.logsumexp(-1)
    highest, best = logits.max(-1)
    score = logits.gather(-1, right[:, None])
    rank = (logits > score).sum(-1) + 1
    return Reading(best, (highest - total).exp(), rank, score[:, 0] - total)


def sees_behind(model: PreTrainedModel, stack: Stack) -> bool:
    """Whether a token's state depends on what stands behind it: masked models, not causal ones.

    Found by differentiating, for configs do not say it in one way, and masked attention leaves a
    gradient of exactly zero.
    """
    if model.config.is_encoder_decoder:
        return False
    embedded: list[Tensor] = []

    def watch(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    hook = model.get_input_embeddings().register_forward_hook(watch)
    try:
        ids = torch.arange(4).remainder(embedding_rows(model))[None]
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        run = layer_states(model, batch, stack, keep=[stack.depth], tail=False, grad=True)
        first = run.states[0][0, 0]
        # a plain sum would vanish behind a layer norm
        weighed = (first * torch.linspace(1, 2, len(first)).to(first)).sum()
        (gradient,) = torch.autograd.grad(weighed, embedded[-1])
    finally:
        hook.remove()
    return bool(gradient[0, -1].abs().sum() > 0)


def embedding_rows(model: PreTrainedModel) -> int:
    """How many tokens the model has an embedding for."""
    return int(model.get_input_embeddings().weight.shape[0])


def layer_width(model: PreTrainedModel, stack: Stack) -> int:
    """The size of one token's state."""
    return tail_of(model, stack, lambda output: None).hidden


def _language_tail(model: PreTrainedModel, stack: Stack) -> Tail:
    if model.get_output_embeddings() is None:
        raise _no_head(model)
    return tail_of(model, stack, _logits)


def _logits(output: Any) -> Tensor:
    # the pretraining classes of BERT and its kin have a second head and name the first so
    found = output.get("prediction_logits")
    found = output.get("logits") if found is None else found
    if found is None:
        raise StackError(f"{type(output).__name__} holds no logits over the vocabulary")
    return found


def _no_head(model: PreTrainedModel) -> StackError:
    from transformers.models.auto import modeling_auto as auto

    kind, cls = model.config.model_type, type(model).__name__
    names = (auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    having = " or ".join(dict.fromkeys(known[kind] for known in names if kind in known))
    which = f"{having} has one" if having else f"no class of type {kind!r} is known to have one"
    return StackError(
        f"{cls} has no language-modelling head; {which}",
        hint="load a checkpoint that holds such a head, take the head of another one "
        "(--head FROM), or fit one on your texts with the body frozen (--fit-head)",
    )


def _refuse_fresh(model: PreTrainedModel, stack: Stack, tail: Tail) -> None:
    """Find out whether the head was made up on loading, from what loading and training leave."""
    loaded = {name for name, p in model.named_parameters() if _was_loaded(p)}
    params = dict(model.named_parameters())
    made_up = [name for name in tail.weights if name in params and name not in loaded]
    flat = [name for name in tail.weights if name in params and params[name].dim() == 1]
    only_here = [name for name in flat if not name.startswith(f"{stack.path}.")]
    untouched = only_here and all(_is_constant(params[name]) for name in only_here)
    if not (loaded and made_up and (untouched or not flat)) and not (
        untouched and _is_trained(model, stack)
    ):
        return
    names = made_up or only_here
    raise StackError(
        f"the language-modelling head of {type(model).__name__} was not in the checkpoint and "
        f"holds random numbers ({', '.join(f'`{name}`' for name in names[:3])}"
        f"{'...' if len(names) > 3 else ''})",
        hint="take the head of another checkpoint (--head FROM), fit one on your texts with the "
        "body frozen (--fit-head), or, if it was trained just now, save the model and load it",
    )


def _was_loaded(parameter: Tensor) -> bool:
    # left on each parameter by from_pretrained, and on no other
    return bool(getattr(parameter, "_is_hf_initialized", False))


def _is_constant(tensor: Tensor) -> bool:
    return bool((tensor == tensor.flatten()[0]).all())


def _is_trained(model: PreTrainedModel, stack: Stack) -> bool:
    flat = [p for p in model.get_submodule(stack.path).parameters() if p.dim() == 1]
    return bool(flat) and not all(_is_constant(p) for p in flat)
