"""A plan in one line of words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from restack.plan.plan import Mark, Plan

_MOST_SPANS = 8
_MOST_RUNS = 4


def describe(plan: Plan) -> str:
    """Say in one line what a plan does.

    >>> describe(Plan.parse("drop:top=6", 12))
    '12 -> 6: drops 6..11'
    >>> describe(Plan.parse("duplicate:each", 12))
    '12 -> 24: each layer twice'
    >>> describe(Plan.parse("upscale:48+reinit:47", 32))
    '32 -> 48: 8..23 twice, in runs 0..23 8..31, fresh 31'
    """
    if plan.is_identity:
        return f"{plan.depth} layers, unchanged"
    parts = [
        *([f"drops {spans(plan.gone)}"] if plan.gone else []),
        *_repeats(plan),
        *_order(plan.sources),
        *_marked(plan, Mark.FRESH, "fresh"),
        *_marked(plan, Mark.NOOP, "no-op"),
        *_marked(plan, Mark.TIED, "tied"),
    ]
    same = len(plan) == plan.depth
    return f"{plan.depth}{' layers' if same else f' -> {len(plan)}'}: {', '.join(parts)}"


def spans(layers: Iterable[int]) -> str:
    """Layer numbers as words.

    >>> spans([0, 1, 2, 5])
    '0..2 5'
    """
    runs = ascending_runs(sorted(set(layers)))
    shown = [str(a) if a == b else f"{a}..{b}" for a, b in runs[:_MOST_SPANS]]
    left = len(runs) - len(shown)
    return " ".join([*shown, f"and {left} more"] if left else shown)


def ascending_runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The stretches in which every number is one more than the one before it.

    >>> ascending_runs([0, 1, 2, 1, 2, 7])
    [(0, 2), (1, 2), (7, 7)]
    """
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _repeats(plan: Plan) -> list[str]:
    # Fresh slots and no-op copies do not repeat what a layer does; they are named apart.
    times = Counter(slot.source for slot in plan if slot.mark in (Mark.COPY, Mark.TIED))
    parts = []
    for n in sorted(set(times.values()) - {1}):
        layers = [layer for layer, count in times.items() if count == n]
        who = "each layer" if len(layers) == plan.depth > 1 else spans(layers)
        parts.append(f"{who} {'twice' if n == 2 else f'{n} times'}")
    return parts


def _order(sources: tuple[int, ...]) -> list[str]:
    in_order = tuple(sorted(sources))
    if sources == in_order:
        return []
    if sources == in_order[::-1]:
        return ["in reverse order"]
    displaced = [a for a, b in zip(sources, in_order, strict=True) if a != b]
    if len(displaced) == 2 and len(set(sources)) == len(sources):
        return [f"{min(displaced)} and {max(displaced)} swapped"]
    runs = ascending_runs(sources)
    if len(runs) <= _MOST_RUNS:
        return ["in runs " + " ".join(f"{a}..{b}" for a, b in runs)]
    return ["in a new order"]


def _marked(plan: Plan, mark: Mark, word: str) -> list[str]:
    layers = [slot.source for slot in plan if slot.mark is mark]
    return [f"{word} {spans(layers)}"] if layers else []
