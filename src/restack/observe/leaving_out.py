"""What every metric gains without a layer or a block: exactly, by virtual evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedModel

from restack.anatomy.anatomy import Stack
from restack.errors import StackError
from restack.observe import checking
from restack.observe.evaluate import Progress, evaluate
from restack.observe.readouts import Readout
from restack.observe.running import Batch
from restack.observe.score_result import INCREASE, Row, Span
from restack.plan import Plan, drop
from restack.surgery.fresh import DEFAULT

_COUNTS = ("tokens", "rows")  # among the results of readouts, what is no metric


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The metrics of a whole stack, and by how much each grows without some of its layers."""

    whole: Row
    increases: Mapping[Span, Row] = field(default_factory=dict)
    """None for what cannot be left out."""
    refused: tuple[str, ...] = ()
    """Which layers no plan can leave out, and why."""
    fallback: str | None = None
    """Why a model was rebuilt for every plan; None where none was."""


def leave_out(
    model: PreTrainedModel,
    stack: Stack,
    spans: Sequence[Span],
    batches: Sequence[Batch],
    readout: Readout | Callable[[Any, Batch, int], dict[str, Any]],
    memory: int | None = None,
    progress: Progress | None = None,
) -> LeftOut:
    """Evaluate the stack without each of the spans, all of them in one go."""
    plans = {(i, n): drop(stack.depth, range(i, i + n)) for i, n in spans if n < stack.depth}
    try:
        checking.refuse(model, stack, list(plans.values()), 0, DEFAULT)
        refused: dict[Span, str] = {}
    except StackError:  # of ModernBERT layer 0 cannot go; the others still can
        refused = {span: why for span, plan in plans.items() if (why := _why(model, stack, plan))}
    plans = {span: plan for span, plan in plans.items() if span not in refused}
    run = evaluate(
        model,
        [Plan.identity(stack.depth), *plans.values()],
        batches,
        readout,
        stack=stack.path,
        memory=memory,
        progress=progress,
    )
    whole, *rest = map(_metrics, run.results)
    without = dict(zip(plans, rest, strict=True))
    return LeftOut(
        whole,
        {span: _increases(whole, without.get(span, {})) for span in spans},
        tuple(f"{_named(*span)} cannot be left out: {why}" for span, why in refused.items()),
        run.fallback,
    )


def _why(model: PreTrainedModel, stack: Stack, plan: Plan) -> str | None:
    try:
        checking.refuse(model, stack, [plan], 0, DEFAULT)
    except StackError as error:
        return error.message
    return None


def _named(start: int, length: int) -> str:
    return f"layer {start}" if length == 1 else f"layers {start}..{start + length - 1}"


def _metrics(result: Mapping[str, Any]) -> Row:
    """The numbers among what was read; None for a perplexity beyond all bounds."""
    return {
        name: float(value) if math.isfinite(value) else None
        for name, value in result.items()
        if name not in _COUNTS and isinstance(value, int | float)
    }


def _increases(whole: Row, without: Row) -> Row:
    pairs = {name: (value, without.get(name)) for name, value in whole.items()}
    return {
        f"{name}{INCREASE}": None if before is None or after is None else after - before
        for name, (before, after) in pairs.items()
    }
