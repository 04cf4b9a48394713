"""Joining plans as '+' does: every slot that a later step makes fresh gets weights of its own."""

from __future__ import annotations

from functools import reduce

from restack.plan.plan import Mark, Plan, Slot


class Draws:
    """Which draws of each source layer are taken, and which is the lowest free one."""

    def __init__(self) -> None:
        self._taken: set[tuple[int, int]] = set()
        self._lowest: dict[int, int] = {}

    def take(self, source: int, draw: int) -> None:
        self._taken.add((source, draw))

    def is_taken(self, source: int, draw: int) -> bool:
        return (source, draw) in self._taken

    def lowest_free(self, source: int) -> int:
        draw = self._lowest.get(source, 1)
        while (source, draw) in self._taken:
            draw += 1
        self._lowest[source] = draw  # draws are never given back, so the search need not restart
        return draw


def chain(first: Plan, *steps: Plan) -> Plan:
    """Do one plan after the other, where slots made fresh at different places stay different.

    `first.then(second)` alone gives equal fresh weights to two slots that hold the same source
    layer; here each takes the lowest draw that is still free.

    >>> twice, all_fresh = Plan.parse("0x2", 1), Plan.parse("0-1@fresh", 2)
    >>> print(twice.then(all_fresh), "|", chain(twice, all_fresh))
    0@fresh,0@fresh1 | 0x2@fresh
    """
    return reduce(lambda below, step: below.then(_with_own_draws(below, step)), steps, first)


def _with_own_draws(below: Plan, step: Plan) -> Plan:
    """`step` with its fresh slots renumbered so that over `below` no two of them become equal."""
    if step.depth != len(below) or not step.has_fresh:
        return step
    draws = Draws()
    for slot in step:
        under = below[slot.source]
        if slot.mark is Mark.COPY and under.mark is Mark.FRESH:
            draws.take(under.source, under.draw)
    renumbered: dict[Slot, Slot] = {}
    for slot in step:
        if slot.mark is not Mark.FRESH or slot in renumbered:
            continue
        source, draw = below[slot.source].source, slot.draw
        if draws.is_taken(source, draw):
            draw = draws.lowest_free(source)
        draws.take(source, draw)
        renumbered[slot] = Slot(slot.source, Mark.FRESH, draw)
    return Plan(step.depth, tuple(renumbered.get(slot, slot) for slot in step))
