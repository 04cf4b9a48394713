"""A model's answers to a split and its scores, in one pass without training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from restack.data.metrics import perplexity
from restack.tune.engine import Engine
from restack.tune.examples import Batch, Examples
from restack.tune.losses import Loss, head_loss, span_logits
from restack.tune.predictions import Predictions

_PLACES = {"cpu": 2048}  # tokens of a batch: on a CPU what fits its caches is fastest
_PLACES_ELSEWHERE = 16384

Heard = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came out for one split."""

    metrics: dict[str, float]
    """Those of the task, in its order, and the mean loss; or that alone."""
    predictions: Predictions | None
    """None where there is a loss alone, as in language modelling."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    examples: Examples,
    engine: Engine,
    *,
    loss: Loss | None = None,
    heard: Heard | None = None,
) -> Evaluation:
    """Run a model over a split once; all processes get the whole of it.

    With a `loss` nothing but its mean is found. `heard` is told how many rows are done each time.
    """
    kind = examples.split.task.kind
    was = model.training
    model.eval()
    total, count = 0.0, 0
    outputs: list[tuple[np.ndarray, Any]] = []
    try:
        for rows, counts in _share(examples, engine):
            batch = examples.batch(rows).to(engine.device)
            with engine.autocast():
                out = model(**batch.inputs) if loss is None else None
                lost = head_loss(kind, out, batch) if loss is None else loss(model, batch)
            if not counts:
                continue
            total += float(lost)
            count += batch.count
            if loss is None and kind not in ("lm", "mlm"):
                outputs.append((rows, _kept(kind, out, batch)))
            if heard is not None:
                heard(len(rows))
    finally:
        model.train(was)
    total, count = engine.total(total), int(engine.total(count))
    if loss is not None:
        return Evaluation({"loss": total / count}, None)
    if kind in ("lm", "mlm"):
        return Evaluation({"perplexity": perplexity(total, count), "loss": total / count}, None)
    found = _predictions(examples, engine.joined(outputs))
    return Evaluation(found.scores(examples.split) | {"loss": total / count}, found)


def _share(examples: Examples, engine: Engine) -> list[tuple[np.ndarray, bool]]:
    """The batches of this process, and whether they count.

    Processes that hold parts of one model must all call it equally often.
    """
    found = examples.in_order(_PLACES.get(engine.device.type, _PLACES_ELSEWHERE))
    own = [(rows, True) for rows in found[engine.rank :: engine.world]]
    missing = -(-len(found) // engine.world) - len(own)
    return own + [(found[-1], False)] * missing


def _kept(kind: str, out: Any, batch: Batch) -> Any:
    """What is kept of the outputs of a batch, in its order."""
    if kind != "span":
        return out.logits.float().cpu().numpy()
    starts, ends = (scores.cpu().numpy() for scores in span_logits(out, batch))
    real = batch.inputs["attention_mask"].cpu().numpy() != 0
    return [(s[r], e[r]) for s, e, r in zip(starts, ends, real, strict=True)]


def _predictions(examples: Examples, outputs: list[tuple[np.ndarray, Any]]) -> Predictions:
    """The outputs of all batches in the order of the split."""
    if examples.windows is None:
        rows = np.concatenate([rows for rows, _ in outputs])
        logits = np.concatenate([values for _, values in outputs])
        return Predictions.of_rows(examples.split, logits[np.argsort(rows, kind="stable")])
    by_row = {
        int(row): pair for rows, pairs in outputs for row, pair in zip(rows, pairs, strict=True)
    }
    starts, ends = zip(*(by_row[row] for row in range(len(examples))), strict=True)
    return Predictions.of_windows(examples.split, examples.windows, starts, ends)
