"""The loss of a batch, as a sum and not a mean, so that batches of any size add up.

A `Loss` is any function of the model and a batch; distillation has one of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from restack.data.tasks import Kind
from restack.errors import RestackError
from restack.tune.examples import Batch
from restack.tune.masking import IGNORED

Loss = Callable[[nn.Module, Batch], Tensor]
"""The sum of the losses of what the batch counts (`Batch.count`)."""


def task_loss(kind: Kind, *, smoothing: float = 0.0) -> Loss:
    """The usual loss of a kind of task, on the outputs of the model's head."""
    if smoothing and kind in ("regression", "span"):
        raise RestackError(
            f"label smoothing is not defined for a task of the kind {kind!r}",
            hint="Leave label_smoothing at 0.",
        )

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return head_loss(kind, model(**batch.inputs), batch, smoothing)

    return loss


def head_loss(kind: Kind, outputs: object, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """The loss of a head's outputs."""
    labels = batch.labels
    if kind == "span":
        starts, ends = span_logits(outputs, batch)
        return 0.5 * (
            functional.cross_entropy(starts, labels[:, 0], reduction="sum")
            + functional.cross_entropy(ends, labels[:, 1], reduction="sum")
        )
    logits: Tensor = outputs.logits  # type: ignore[attr-defined]
    if kind == "regression":
        return (logits.float().view(-1) - labels).square().sum()
    if kind == "multilabel":
        goal = labels * (1 - smoothing) + smoothing / 2
        each = functional.binary_cross_entropy_with_logits(logits.float(), goal, reduction="none")
        return each.mean(-1).sum()
    if kind == "lm":
        logits, labels = logits[:, :-1], labels[:, 1:]
    if kind in ("lm", "mlm"):
        logits, labels = logits.flatten(0, 1), labels.flatten()
        if kind == "mlm":  # most tokens are not asked for
            asked = labels != IGNORED
            logits, labels = logits[asked], labels[asked]
    return functional.cross_entropy(
        logits.float(), labels, reduction="sum", ignore_index=IGNORED, label_smoothing=smoothing
    )


def span_logits(outputs: object, batch: Batch) -> tuple[Tensor, Tensor]:
    """Scores of starts and ends, in which padding takes no part."""
    padding = batch.inputs["attention_mask"] == 0
    return tuple(  # type: ignore[return-value]
        logits.float().masked_fill(padding, -torch.inf)
        for logits in (outputs.start_logits, outputs.end_logits)  # type: ignore[attr-defined]
    )
