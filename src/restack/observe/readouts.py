"""What to read at the end of each plan, as sums that add up over batches.

A `Readout` reads a `Leaf` and says what the sums of all batches come to. Numbers are added, arrays
and tensors are joined along their first axis. Plain functions do too, see `of_output`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from restack.data import metrics
from restack.data.tasks import Kind, Task
from restack.errors import DataError
from restack.observe.leaf import Leaf
from restack.observe.reading import CLASS_TOKEN_LAST, Pooling, pool
from restack.observe.running import Batch

Sums = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Readout:
    """How to read one batch, and what the sums over all batches come to."""

    read: Callable[[Leaf], Mapping[str, Any]]
    result: Callable[[Sums], dict[str, Any]] = dict


def add(total: Sums, new: Mapping[str, Any]) -> None:
    """Add the readings of one batch to those before it."""
    for name, value in new.items():
        if isinstance(value, Tensor):
            value = value.detach().float().cpu().numpy() if value.dim() else value.item()
        if isinstance(value, np.ndarray) and value.ndim:
            total.setdefault(name, []).append(value)
        else:
            total[name] = total.get(name, 0) + value


def settle(readout: Readout, total: Sums) -> dict[str, Any]:
    """The result of all batches."""
    joined = {n: np.concatenate(v) if isinstance(v, list) else v for n, v in total.items()}
    return readout.result(joined)


def of_output(function: Callable[[Any, Batch, int], Mapping[str, Any]]) -> Readout:
    """A function of the model's output, the batch, and the place of the plan among all plans.

    A batch may come in pieces, if memory is short: sums and counts add up then, means do not.
    """
    return Readout(lambda leaf: function(leaf.output, leaf.batch, leaf.plan))


def real_tokens(batch: Batch) -> Tensor:
    """True at tokens of the text: no padding and, where they are marked, no special tokens."""
    mask = _attended(batch)
    special = batch.get("special_tokens_mask")
    return mask if special is None else mask & ~special.bool()


def _attended(batch: Batch) -> Tensor:
    mask = batch.get("attention_mask")
    return torch.ones_like(batch["input_ids"], dtype=torch.bool) if mask is None else mask.bool()


def token_accuracy() -> Readout:
    """How often a masked-LM head gives the very token that stands there, unmasked."""

    def read(leaf: Leaf) -> Sums:
        return _tokens(leaf, real_tokens(leaf.batch), leaf.batch["input_ids"], loss=False)

    return Readout(read, _token_means)


def masked_lm() -> Readout:
    """Loss, perplexity and accuracy on the `labels` of the batches, -100 left out."""

    def read(leaf: Leaf) -> Sums:
        labels = _labels(leaf.batch)
        return _tokens(leaf, labels != -100, labels)

    return Readout(read, _token_means)


def causal_lm() -> Readout:
    """Loss, perplexity and accuracy of the next token, or on `labels` where batches have them.

    Every token that follows a token of its text counts, a closing special token too. For
    encoder-decoders the labels are those of the decoder, as they take them.
    """

    def read(leaf: Leaf) -> Sums:
        batch = leaf.batch
        if leaf.model.config.is_encoder_decoder:
            labels = _labels(batch)
            return _tokens(leaf, labels != -100, labels)
        targets = batch["labels"] if "labels" in batch else batch["input_ids"]
        mask = _attended(batch)
        where = torch.zeros_like(mask)
        where[:, :-1] = mask[:, :-1] & mask[:, 1:] & (targets[:, 1:] != -100)
        return _tokens(leaf, where, targets.roll(-1, 1))

    return Readout(read, _token_means)


def _labels(batch: Batch) -> Tensor:
    if "labels" not in batch:
        raise DataError("the batches have no `labels`", hint="this readout compares with them")
    return batch["labels"]


def _tokens(leaf: Leaf, where: Tensor, targets: Tensor, *, loss: bool = True) -> Sums:
    """Sums over the chosen tokens. The logits are never there for all of them at once."""
    wanted = targets[where]
    right = torch.zeros((), dtype=torch.int64, device=leaf.model.device)
    total = 0.0  # not on the device: Apple's GPUs have no double precision
    if len(wanted):
        wanted = wanted.to(leaf.model.device)
        for part, logits in leaf.logits(where):
            right += (logits.argmax(-1) == wanted[part]).sum()
            if loss:
                lost = functional.cross_entropy(logits.float(), wanted[part], reduction="sum")
                total += lost.item()
    sums: Sums = {"tokens": len(wanted), "right": int(right)}
    return sums | {"loss": total} if loss else sums


def _token_means(sums: Sums) -> dict[str, Any]:
    tokens = sums["tokens"]
    if not tokens:
        raise DataError("no token was read", hint="give texts with more than special tokens")
    result = {"accuracy": sums["right"] / tokens, "tokens": tokens}
    if "loss" in sums:
        result["loss"] = sums["loss"] / tokens
        result["perplexity"] = metrics.perplexity(sums["loss"], tokens)
    return result


def task_metrics(task: Task, labels: Sequence[Any]) -> Readout:
    """The metrics of a task and the mean loss, for models with a head for it.

    `labels` are those of all rows; the batches say by their `indices` which rows they hold.
    """

    def read(leaf: Leaf) -> Sums:
        if "indices" not in leaf.batch:
            raise DataError("the batches have no `indices`, so their labels cannot be found")
        logits = task_logits(task, leaf.output)
        return {"logits": logits.cpu().numpy(), "rows": leaf.batch["indices"].cpu().numpy()}

    def result(sums: Sums) -> dict[str, Any]:
        logits, own = sums["logits"], [labels[row] for row in sums["rows"]]
        scores = metrics.score(task, metrics.predict(task.kind, logits), own)
        loss = _loss(task.kind, logits, metrics.label_array(task, own))
        return {**scores, "loss": loss, "rows": len(own)}

    return Readout(read, result)


def task_logits(task: Task, output: Any) -> Tensor:
    """What a model with a head for a task answers: rows x outputs."""
    logits = output.get("logits")
    shape = None if logits is None else list(logits.shape[1:])
    if shape != [task.outputs]:
        found = "no answer" if shape is None else f"{' x '.join(map(str, shape))} numbers"
        raise DataError(
            f"{task.name} needs a head that gives {task.outputs} "
            f"number{'s' * (task.outputs > 1)} a row; what the model returns "
            f"({type(output).__name__}) has {found}",
            hint="give a model that was fine-tuned on this task; measures of states alone "
            "(cls_cosine, block_influence, ...) need no head",
        )
    return logits.float()


def _loss(kind: Kind, logits: np.ndarray, labels: np.ndarray) -> float:
    """The loss that this kind of task is trained with."""
    outputs, wanted = torch.from_numpy(logits).double(), torch.from_numpy(labels)
    if kind == "classification":
        return float(functional.cross_entropy(outputs, wanted))
    if kind == "regression":
        return float(functional.mse_loss(outputs.reshape(-1), wanted.double()))
    return float(functional.binary_cross_entropy_with_logits(outputs, wanted.double()))


def pooled(how: Pooling = "mean") -> Readout:
    """One vector a row from the last state behind the final norm, as `features`.

    Rows are in the order of the batches' `indices`. Padding is left out. `cls` is the first token,
    or the last one in families that have their class token there.
    """
    if how not in get_args(Pooling):
        raise DataError(f"cannot pool by {how!r}", hint=f"by {', '.join(get_args(Pooling))}")

    def read(leaf: Leaf) -> Sums:
        state = leaf.hidden()
        mask = leaf.batch.get("attention_mask")
        real = torch.ones(state.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
        last = how == "cls" and leaf.model.config.model_type in CLASS_TOKEN_LAST
        features = pool([state], real, "last" if last else how)[:, 0]
        indices = leaf.batch.get("indices")
        return {"features": features} | ({} if indices is None else {"rows": indices.numpy()})

    def result(sums: Sums) -> dict[str, Any]:
        features = sums["features"]
        return {"features": features[np.argsort(sums["rows"])] if "rows" in sums else features}

    return Readout(read, result)
