"""What leaving layers out would do to the loss, to first order, from one backward pass.

Let x_i be the state that enters layer i and g_j the gradient of the loss by the state x_j. Without
the layers i .. j-1 the rest of the stack would be given x_i in place of x_j, and the loss, as a
function of that state alone, would change by about

    sum over tokens of  g_j . (x_i - x_j)

which is exact in the limit of layers that change little. One backward pass gives all g_j, and with
them the estimate for every layer and every block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from restack.anatomy.anatomy import Stack
from restack.data.metrics import label_array
from restack.data.tasks import Task
from restack.errors import DataError
from restack.observe import readouts
from restack.observe.heads import Head, chunks, language_logits, own_head
from restack.observe.measures import double
from restack.observe.readouts import Readout
from restack.observe.running import Batch
from restack.observe.stack_run import (
    Run,
    layer_states,
    layers_of,
    state_in,
    state_out,
    tokens_first,
)

_IGNORED = -100


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss that can be read at the end of plans, and differentiated on the way."""

    what: str
    readout: Readout
    """Its mean, and the metrics that go with it."""
    label: Callable[[Batch], Batch]
    """A batch with all that the loss is read from."""
    sums: Callable[[Run, Batch], tuple[Tensor, float, int]]
    """Of a run: what to differentiate, the loss summed, and over how many."""
    needs_output: bool
    """Whether the loss is read from the model's own output, and not from its last state."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """One batch: its states, the gradients of the summed loss by all but the first, the loss."""

    states: list[Tensor]
    gradients: list[Tensor]
    loss: float
    count: int


class Taylor:
    """Adds up the estimates for all blocks of layers."""

    def __init__(self, states: int) -> None:
        self._products = torch.zeros(states, states - 1, dtype=torch.float64)
        self._loss, self._count = 0.0, 0

    def count(self, found: Gradients) -> None:
        """Take in the loss of a batch."""
        self._loss += found.loss
        self._count += found.count

    def add(self, x: Tensor) -> None:
        """Take in states and then gradients: real tokens x (states, gradients) x hidden."""
        x = double(x)
        states = len(self._products)
        self._products += torch.einsum("tih,tjh->ij", x[:, :states], x[:, states:]).cpu()

    @property
    def loss(self) -> float:
        """The mean loss of the whole model."""
        if not self._count:
            raise DataError(
                "no token or label was found to measure a loss by", hint="Give longer texts."
            )
        return self._loss / self._count

    def increase(self, start: int, length: int) -> float:
        """By how much the mean loss would grow without so many layers from `start` on."""
        end = start + length
        products = self._products[:, end - 1]
        return float(products[start] - products[end]) / self._count


def gradients(model: PreTrainedModel, stack: Stack, batch: Batch, loss: Loss) -> Gradients:
    """One forward and one backward pass, through the stack and what is behind it alone."""
    batch = loss.label(batch)
    with _frozen(model):
        with _watching(model, stack) as states:  # the loss may run the model again, see `Tail`
            run = layer_states(
                model, batch, stack, keep=[stack.depth], tail=loss.needs_output, grad=True
            )
        with torch.enable_grad():
            target, total, count = loss.sums(run, batch)
        found = torch.autograd.grad(target, states[1:])
    turned = [t.transpose(0, 1) if tokens_first(model) else t for t in (*states, *found)]
    turned = [tensor.detach() for tensor in turned]
    return Gradients(turned[: len(states)], turned[len(states) :], total, count)


@contextlib.contextmanager
def _watching(model: PreTrainedModel, stack: Stack) -> Iterator[list[Tensor]]:
    """The states of the next forward pass, as parts of its graph, which begins at the first one.

    Each layer is given a copy, as some write into what they are given.
    """
    states: list[Tensor] = []

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if states:
            return None
        states.append(state_in(args, kwargs).detach().requires_grad_())
        copy = states[0].clone()
        return ((copy, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": copy})

    def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        states.append(state_out(output))
        copy = states[-1].clone()
        return copy if isinstance(output, Tensor) else (copy, *output[1:])

    with contextlib.ExitStack() as hooks:
        for layer in layers_of(model, stack):
            hooks.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
            hooks.callback(layer.register_forward_hook(after).remove)
        yield states


@contextlib.contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """No parameter trains, so that the graph keeps nothing for gradients that nobody asks for."""
    training = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in training:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in training:
            parameter.requires_grad_(True)


def language_loss(model: PreTrainedModel, stack: Stack, first: Batch) -> Loss:
    """The loss of the model's own head: of the next token, or in masked models of the same one.

    Masked models see the text unmasked. `labels` in the batches (as in the `first` one) say, where
    there are any, what is right and, by -100, what does not count; encoder-decoders need them.
    """
    if model.config.is_encoder_decoder:
        if "labels" not in first:
            raise DataError(
                f"{type(model).__name__} writes texts of its own, and the batches have no `labels`",
                hint="Give batches with the `labels` that its decoder is trained on.",
            )
        return Loss(
            "the tokens in `labels`",
            readouts.causal_lm(),
            lambda batch: batch,
            lambda run, batch: _of_logits(language_logits(run.output), batch["labels"]),
            needs_output=True,
        )
    head = own_head(model, stack=stack.path)
    ahead = head.reads == "next"
    return Loss(
        "the next token" if ahead else "the same token, unmasked",
        readouts.causal_lm() if ahead else readouts.masked_lm(),
        lambda batch: _labelled(batch, special=ahead),
        lambda run, batch: _of_head(head, run.states[-1], batch),
        needs_output=False,
    )


def _labelled(batch: Batch, *, special: bool) -> Batch:
    """A batch with its own tokens as labels; padding and, unless told otherwise, special ones not.

    With them the readouts and the gradients cannot count different tokens.
    """
    if "labels" in batch:
        return batch
    ids = batch["input_ids"]
    if special:
        mask = batch.get("attention_mask")
        counted = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    else:
        counted = readouts.real_tokens(batch)
    return {**batch, "labels": ids.masked_fill(~counted, _IGNORED)}


def _of_logits(logits: Tensor, labels: Tensor) -> tuple[Tensor, float, int]:
    labels = labels.to(logits.device)
    total = functional.cross_entropy(
        logits.float().flatten(0, -2), labels.flatten(), ignore_index=_IGNORED, reduction="sum"
    )
    return total, total.item(), int((labels != _IGNORED).sum())


def _of_head(head: Head, state: Tensor, batch: Batch) -> tuple[Tensor, float, int]:
    """The loss by the last state, with logits for only some of the tokens at a time."""
    labels = batch["labels"]
    if head.reads == "next":
        mask = batch.get("attention_mask", torch.ones_like(labels))
        ahead = labels.new_full(labels.shape, _IGNORED)
        together = (mask[:, :-1] != 0) & (mask[:, 1:] != 0)
        ahead[:, :-1] = labels[:, 1:].masked_fill(~together, _IGNORED)
        labels = ahead
    where = labels != _IGNORED
    rows = state[:, : labels.shape[1]][where.to(state.device)]
    total, slopes = 0.0, list[Tensor]()
    # a copy more than for reading: the slopes of the logits
    for some, right in chunks(head, rows.detach(), labels[where], copies=5):
        some = some.requires_grad_()
        part = functional.cross_entropy(head.logits(some).float(), right, reduction="sum")
        slopes += torch.autograd.grad(part, some)
        total += part.item()
    slope = torch.cat(slopes) if slopes else torch.zeros_like(rows)
    return (rows * slope.to(rows.device)).sum(), total, len(rows)


def task_loss(task: Task, labels: Sequence[Any]) -> Loss:
    """The loss of a model with a head for a task; `labels` are those of all rows."""
    if task.kind not in ("classification", "regression", "multilabel"):
        raise DataError(f"{task.name} ({task.kind}) has no one label a text to measure a loss by")

    def sums(run: Run, batch: Batch) -> tuple[Tensor, float, int]:
        logits = readouts.task_logits(task, run.output)
        own = [labels[row] for row in batch["indices"]]
        wanted = torch.from_numpy(label_array(task, own)).to(logits.device)
        if task.kind == "classification":
            total = functional.cross_entropy(logits, wanted, reduction="sum")
        elif task.kind == "regression":
            total = functional.mse_loss(logits.reshape(-1), wanted.float(), reduction="sum")
        else:
            each = functional.binary_cross_entropy_with_logits(
                logits, wanted.float(), reduction="none"
            )
            total = each.mean(-1).sum()
        return total, total.item(), len(own)

    readout = readouts.task_metrics(task, labels)
    return Loss(f"the labels of {task.name}", readout, lambda batch: batch, sums, needs_output=True)
