"""What each layer, and each block of layers, does: every measure from as few passes as it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from restack.anatomy import models
from restack.anatomy.anatomy import Stack
from restack.data.tasks import Task
from restack.errors import DataError, PlanError, RestackError
from restack.observe.leaving_out import LeftOut, leave_out
from restack.observe.lens import LensResult
from restack.observe.measures import Cka, Geometry
from restack.observe.reading import Anchor, Reading, pieces, reading_of, real_tokens, state_names
from restack.observe.readouts import Readout
from restack.observe.running import Batch
from restack.observe.score_result import STATE_MEASURES, Row, ScoreResult, Span, plan_from
from restack.observe.splitting import Pieces, rows_of
from restack.observe.stack_run import layer_states
from restack.observe.taylor import (
    Gradients,
    Loss,
    Taylor,
    gradients,
    language_loss,
    task_loss,
)

__all__ = ["MEASURES", "ScoreResult", "plan_from", "score"]

MEASURES = (*STATE_MEASURES, "taylor", "exact", "accuracy_gain")
Progress = Callable[[str, int], None]
"""Is told what was done, `states` or `exact`, and for how many texts (times plans) just now."""


def score(
    model: PreTrainedModel,
    batches: Iterable[Batch],
    *,
    stack: str | None = None,
    blocks: Sequence[int] = (1,),
    measures: Sequence[str] | None = None,
    task: Task | None = None,
    labels: Sequence[Any] | None = None,
    readout: Readout | Callable[[Any, Batch, int], dict[str, Any]] | None = None,
    lens: LensResult | None = None,
    anchor: Anchor | None = None,
    cka_memory: int = 2 << 30,
    memory: int | None = None,
    progress: Progress | None = None,
) -> ScoreResult:
    """Measure every layer of a stack, and every block of so many consecutive layers.

    All but `exact` come from a single pass over the batches. `taylor` is the first-order estimate
    of what the loss gains without a layer; `exact` leaves every layer and block out and gives what
    each metric gains, as `loss_increase` and so on. The loss is that of `task` and `labels` (those
    of all rows), else that of the model's own language-modelling head; with `readout` other things
    are read for `exact`. `accuracy_gain` needs the result of a `lens` over the same stack.

    Without `measures`, all are taken that can be; `notes` says what could not, and why. `memory`
    bounds the states that `exact` holds, `cka_memory` what `cka` takes.
    """
    found = models.pick(model, stack)
    lengths = _lengths(blocks, found.depth)
    wanted = _wanted(measures, lens, found)
    kept = list(batches)
    if not kept:
        raise DataError("no batch to score the layers on", hint="Give at least one text.")
    needed = frozenset(measures or ()) & ({"taylor"} if readout else {"taylor", "exact"})
    loss, notes = _loss(
        model, found, kept[0], task, labels, needed if measures else wanted, strict=bool(needed)
    )
    reading = reading_of(model, found, kept[0], anchor)
    told = progress or (lambda what, rows: None)
    seen = _observe(model, found, kept, reading, loss, wanted, cka_memory, told)
    spans = sorted({(i, n) for n in (1, *lengths) for i in range(found.depth - n + 1)})
    out = LeftOut({} if seen.taylor is None else {"loss": seen.taylor.loss})
    how = readout or (loss.readout if loss is not None else None)
    if "exact" in wanted and how is not None:
        labelled = kept if readout or loss is None else [loss.label(batch) for batch in kept]
        out = leave_out(
            model, found, spans, labelled, how, memory, lambda rows: told("exact", rows)
        )
    rows = {span: _row(span, seen, reading, out, lens, wanted) for span in spans}
    return ScoreResult(
        model=model.config.name_or_path or type(model).__name__,
        stack=found.path,
        texts=seen.texts,
        tokens=seen.tokens,
        anchor=reading.anchor,
        angles_over="anchors" if reading.causal else "tokens",
        loss=loss.what if loss is not None else None,
        whole=out.whole,
        layers=tuple(rows[i, 1] for i in range(found.depth)),
        blocks={(i, n): rows[i, n] for n in lengths for i in range(found.depth - n + 1)},
        cka=seen.cka,
        zero_norms=tuple(seen.geometry.zero_norms),
        fallback=out.fallback,
        notes=(*notes, *seen.notes, *out.refused),
    )


def _lengths(blocks: Sequence[int], depth: int) -> list[int]:
    wrong = [n for n in blocks if type(n) is not int or not 1 <= n <= depth]
    if wrong:
        raise PlanError(f"blocks of {wrong[0]} layers: the stack has {depth}")
    return sorted(set(blocks))


def _wanted(
    measures: Sequence[str] | None, lens: LensResult | None, stack: Stack
) -> frozenset[str]:
    known = f"Known: {', '.join(MEASURES)}."
    if measures is not None and not measures:
        raise DataError("no measure is named", hint=known)
    wanted = frozenset(MEASURES if measures is None else measures)
    if unknown := sorted(wanted - set(MEASURES)):
        raise DataError(f"there is no measure {unknown[0]!r}", hint=known)
    if lens is None and measures is not None and "accuracy_gain" in wanted:
        raise DataError("accuracy_gain needs the result of a lens", hint="Give `lens`.")
    if lens is not None and len(lens.layers) != stack.depth + 1:
        raise DataError(
            f"the lens has {len(lens.layers)} states, `{stack.path}` has {stack.depth + 1}",
            hint="Run the lens on this very stack.",
        )
    return wanted


def _loss(
    model: PreTrainedModel,
    stack: Stack,
    first: Batch,
    task: Task | None,
    labels: Sequence[Any] | None,
    wanted: frozenset[str],
    *,
    strict: bool,
) -> tuple[Loss | None, list[str]]:
    """What a loss is read from, if one is wanted; without one, and unless `strict`, why not."""
    if (task is None) != (labels is None):
        raise DataError("a task needs labels, and labels a task", hint="Give both, or none.")
    if not wanted & {"taylor", "exact"}:
        return None, []
    if task is not None and labels is not None:
        return task_loss(task, labels), []
    try:
        return language_loss(model, stack, first), []
    except RestackError as error:
        if strict:
            raise
        return None, [f"no loss could be measured: {error.message}"]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one pass over all batches gave."""

    geometry: Geometry
    cka: Mapping[Span, float | None]
    taylor: Taylor | None
    texts: int
    tokens: int
    notes: tuple[str, ...]


def _observe(
    model: PreTrainedModel,
    stack: Stack,
    batches: Sequence[Batch],
    reading: Reading,
    loss: Loss | None,
    wanted: frozenset[str],
    cka_memory: int,
    progress: Progress,
) -> _Seen:
    states = stack.depth + 1
    geometry = Geometry(states)
    taylor = Taylor(states) if loss is not None and "taylor" in wanted else None
    cka: Cka | None = None
    notes: tuple[str, ...] = ()
    texts = tokens = 0

    def work(batch: Batch) -> Gradients:
        if taylor is not None and loss is not None:
            return gradients(model, stack, batch, loss)
        return Gradients(layer_states(model, batch, stack, tail=False).states, [], 0.0, 0)

    names = state_names(stack)
    names += [f"the gradient by {name}" for name in names[1:]]
    halves = Pieces()
    for batch in batches:
        for piece, found in halves.run(batch, work):
            if cka is None and "cka" in wanted:
                cka, notes = _cka(states, found.states[0].shape[-1], cka_memory)
            real = real_tokens(model, stack, piece, found.states[0])
            tensors = [*found.states, *found.gradients]
            for x, is_anchor in pieces(tensors, real, reading.anchor, names):
                geometry.add(x[:, :states], is_anchor)
                if cka is not None:
                    cka.add(x[:, :states])
                if taylor is not None:
                    taylor.add(x)
            if taylor is not None:
                taylor.count(found)
            texts += len(real)
            tokens += int(real.sum())
            progress("states", rows_of(piece) or 1)
    return _Seen(geometry, cka.values() if cka else {}, taylor, texts, tokens, notes)


def _cka(states: int, hidden: int, memory: int) -> tuple[Cka | None, tuple[str, ...]]:
    """CKA of all pairs of states; if that takes too much memory, of neighbours alone."""
    every = [(i, j) for i in range(states) for j in range(i, states)]
    near = [(i, i + 1) for i in range(states - 1)]
    if Cka.nbytes(len(every), hidden) <= memory:
        return Cka(every), ()
    needed = f"CKA between all states takes {Cka.nbytes(len(every), hidden):,} bytes"
    if Cka.nbytes(2 * states - 1, hidden) <= memory:
        return Cka(near), (f"{needed}, so only neighbours were compared (cka_memory)",)
    return None, (f"{needed}, and that of neighbours does not fit either (cka_memory)",)


def _row(
    span: Span,
    seen: _Seen,
    reading: Reading,
    out: LeftOut,
    lens: LensResult | None,
    wanted: frozenset[str],
) -> Row:
    """All measures of one layer or block."""
    start, length = span
    end = start + length
    geometry = seen.geometry
    cosine = geometry.cosine(start, end)
    found: dict[str, float | None] = {
        "cls_cosine": geometry.cosine(start, end, anchors=True),
        "token_cosine": cosine,
        "block_influence": None if cosine is None else 1 - cosine,
        "angular_distance": geometry.angle(start, end, anchors=reading.causal),
        "relative_update": geometry.update(start, end),
        "cka": seen.cka.get((start, end)),
    }
    if seen.taylor is not None:
        found["taylor"] = seen.taylor.increase(start, length)
    if lens is not None:
        found["accuracy_gain"] = lens.layers[end].accuracy - lens.layers[start].accuracy
    return {name: value for name, value in found.items() if name in wanted} | dict(
        out.increases.get(span, {})
    )
