"""Accuracy of the last layer along many plans, without training: the curves of Kao et al."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from restack.anatomy import models
from restack.errors import PlanError
from restack.observe.evaluate import Progress, evaluate
from restack.observe.heads import MEMORY, Head, own_head, read
from restack.observe.leaf import Leaf
from restack.observe.readouts import Readout
from restack.observe.right_tokens import asked_tokens
from restack.observe.running import Batch
from restack.plan import Plan, drop, duplicate, repeat, upscale

_LONGEST_REPEAT = 50  # as far as Kao et al. repeat the layer of ALBERT

# For each kind of curve its plans, given the depth of the stack, the depth to stop at (None: as
# far as it goes) and the layer that `duplicate-one` is about.
_CURVES: dict[str, Callable[[int, int | None, int], Iterable[Plan]]] = {
    "duplicate": lambda n, to, _: (duplicate(n, first=k) for k in _more(n, to, 2 * n)),
    "duplicate-last": lambda n, to, _: (duplicate(n, last=k) for k in _more(n, to, 2 * n)),
    "duplicate-one": lambda n, to, one: (duplicate(n, {one: 1 + k}) for k in _more(n, to)),
    "repeat": lambda n, to, _: (
        repeat(n, n + k) for k in _more(n, max(_LONGEST_REPEAT, 2 * n) if to is None else to)
    ),
    "upscale": lambda n, to, _: (upscale(n, n + k) for k in _more(n, to, 2 * n)),
    "drop": lambda n, to, _: (drop(n, top=k) for k in _fewer(n, to)),
    "drop-bottom": lambda n, to, _: (drop(n, bottom=k) for k in _fewer(n, to)),
    "drop-even": lambda n, to, _: (drop(n, even=k) for k in _fewer(n, to, n // 2)),
    "drop-odd": lambda n, to, _: (drop(n, odd=k) for k in _fewer(n, to, -(-n // 2))),
    "drop-symmetric": lambda n, to, _: (
        drop(n, symmetric=k) if k else Plan.identity(n)
        for k in _fewer(n, to)
        if k == 0 or (n - k) % 2 == 0  # else the middle has no middle
    ),
    "drop-one": lambda n, to, _: (Plan.identity(n), *(drop(n, [i]) for i in range(n))),
}


def plan_curve(kind: str, depth: int, *, to: int | None = None, layer: int = 0) -> tuple[Plan, ...]:
    """The plans of a curve, beginning with the whole stack.

    `kind` may hold the depth to end at, as `repeat:30`. `duplicate` repeats the first layers once
    each, as Kao et al. do it; `duplicate-last` the last ones; `duplicate-one` only `layer`, again
    and again. `drop` and its kind leave out more and more layers; `drop-one` each by itself.

    >>> [str(plan) for plan in plan_curve("duplicate", 3)]
    ['0-2', '0x2,1-2', '0-1x2,2', '0-2x2']
    >>> [str(plan) for plan in plan_curve("drop:2", 4)]
    ['0-3', '0-2', '0-1']
    """
    name, _, number = kind.partition(":")
    if name not in _CURVES or (number and not number.isdecimal()):
        raise PlanError(
            f"there is no curve {kind!r}",
            hint=f"known: {', '.join(_CURVES)}; each may have a depth to end at, as repeat:30",
        )
    return tuple(_CURVES[name](depth, int(number) if number else to, layer))


def _more(depth: int, to: int | None, most: int | None = None) -> range:
    """How many layers are added, from none up to the depth `to`."""
    to = 2 * depth if to is None else to
    if to < depth or (most is not None and to > most):
        raise PlanError(
            f"a curve that adds layers to {depth} cannot end at {to}",
            hint=f"it ends between {depth} and {most}" if most else f"it ends at {depth} or more",
        )
    return range(to - depth + 1)


def _fewer(depth: int, to: int | None, most: int | None = None) -> range:
    """How many layers are left out, from none down to the depth `to`."""
    most = depth - 1 if most is None else min(most, depth - 1)
    wanted = most if to is None else depth - to
    if not 0 <= wanted <= most:
        raise PlanError(
            f"a curve that leaves out layers of {depth} cannot end at {to}",
            hint=f"it ends between {depth - most} and {depth}",
        )
    return range(wanted + 1)


@dataclass(frozen=True, slots=True)
class PlanAccuracy:
    """How often the right token is read behind the last layer of a plan."""

    plan: Plan
    accuracy: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"plan": str(self.plan), "depth": len(self.plan), "accuracy": self.accuracy}


@dataclass(frozen=True, slots=True)
class Curve:
    """The accuracy of plans, and what it took."""

    plans: tuple[PlanAccuracy, ...]
    tokens: int
    edges: int
    """Layer applications that one batch takes."""
    layer_applications: int
    fallback: str | None
    """Why a model was rebuilt for every plan; None where none was."""


def plan_accuracy(
    model: PreTrainedModel,
    plans: Sequence[Plan | str],
    batches: Iterable[Batch],
    *,
    stack: str | None = None,
    head: Head | None = None,
    seed: int = 0,
    memory: int = MEMORY,
    state_memory: int | None = None,
    progress: Progress | None = None,
) -> Curve:
    """Token accuracy of the last layer along each plan, counted as in `lens`.

    All plans share what they have in common, see `evaluate`, which `state_memory` and `seed` are
    for; `memory` bounds the logits.
    """
    found = models.pick(model, stack)
    head = head or own_head(model, stack=found.path)

    def count(leaf: Leaf) -> dict[str, Any]:
        asked = asked_tokens(leaf.batch, head.reads)
        state = leaf.state[:, : asked.where.shape[1]]
        rows = state[asked.where.to(state.device)]
        best = read(head, rows, asked.right, memory=memory).best
        return {"right": int((best == asked.right).sum()), "tokens": len(asked.right)}

    run = evaluate(
        model,
        plans,
        batches,
        Readout(count),
        stack=found.path,
        seed=seed,
        memory=state_memory,
        progress=progress,
    )
    rows = tuple(
        PlanAccuracy(plan, sums["right"] / max(1, sums["tokens"]))
        for plan, sums in zip(run.plans, run.results, strict=True)
    )
    return Curve(rows, run.results[0]["tokens"], run.edges, run.layer_applications, run.fallback)
