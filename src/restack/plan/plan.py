"""The one idea: for each position of a new stack, which source layer stands there and how.

A `Plan` is the answer for all positions at once. Everything else makes plans (text, verbs),
shows them (draw, words) or carries them out (surgery). Layers and slots count from 0.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from restack.errors import PlanError

if TYPE_CHECKING:
    from rich.console import RenderableType

MAX_SLOTS = 10_000
"""The deepest stack, old or new: far beyond any model, small enough that a slip stays harmless."""

MAX_DRAW = 999_999_999


class Mark(StrEnum):
    """How a source layer stands in its slot."""

    COPY = "copy"  # its weights, in storage of their own
    FRESH = "fresh"  # its shapes, newly drawn weights
    NOOP = "noop"  # its weights, output projections zeroed: the layer starts as the identity
    TIED = "tied"  # its weights, in storage shared with the other slots of the same source


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """One position of a new stack: the source layer that stands there, and how.

    `draw` says which of several independent sets of fresh weights it is. Fresh weights depend on
    source and draw, never on the position, so equal slots hold equal weights.

    >>> print(Slot(3), Slot(3, Mark.NOOP), Slot(3, Mark.FRESH), Slot(3, Mark.FRESH, draw=2))
    3 3@noop 3@fresh 3@fresh2
    """

    source: int
    mark: Mark = Mark.COPY
    draw: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", whole_number(self.source, "a layer number"))
        object.__setattr__(self, "draw", whole_number(self.draw, "a draw number"))
        try:
            object.__setattr__(self, "mark", Mark(self.mark))
        except ValueError:
            raise PlanError(
                f"unknown mark {self.mark!r}", hint=f"the marks are {', '.join(Mark)}"
            ) from None
        if self.source < 0:
            raise PlanError(f"layer {self.source}: layers count from 0")
        if not 1 <= self.draw <= MAX_DRAW:
            raise PlanError(f"draw {self.draw} of layer {self.source}: draws are 1..{MAX_DRAW}")
        if self.draw > 1 and self.mark is not Mark.FRESH:
            raise PlanError(f"layer {self.source} @{self.mark}: only fresh weights have a draw")

    def __str__(self) -> str:
        mark = "" if self.mark is Mark.COPY else f"@{self.mark}"
        return f"{self.source}{mark}{self.draw if self.draw > 1 else ''}"


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """The slots of a new stack over a source stack of `depth` layers.

    >>> plan = Plan.parse("0-2,5,5@fresh", depth=6)
    >>> len(plan), plan[3], plan.sources, plan.gone
    (5, Slot(source=5, mark=<Mark.COPY: 'copy'>, draw=1), (0, 1, 2, 5, 5), (3, 4))
    >>> print(plan)
    0-2,5,5@fresh
    """

    depth: int
    slots: tuple[Slot, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", checked_depth(self.depth))
        object.__setattr__(self, "slots", tuple(self.slots))
        if not self.slots:
            raise PlanError("the plan is empty", hint="a stack needs at least one layer")
        if len(self.slots) > MAX_SLOTS:
            raise PlanError(f"the plan has {len(self.slots)} slots; at most {MAX_SLOTS} can be")
        for position, slot in enumerate(self.slots):
            if slot.source >= self.depth:
                raise PlanError(out_of_range(position, slot.source, self.depth))

    @classmethod
    def identity(cls, depth: int) -> Plan:
        """The plan that changes nothing.

        >>> print(Plan.identity(12))
        0-11
        """
        return cls.of(depth, range(checked_depth(depth)))

    @classmethod
    def of(cls, depth: int, sources: Iterable[int]) -> Plan:
        """The plan that copies these source layers, in this order.

        >>> print(Plan.of(4, [0, 0, 3]))
        0x2,3
        """
        return cls(depth, tuple(map(Slot, sources)))

    @classmethod
    def parse(cls, text: str, depth: int, scores: Sequence[float] | None = None) -> Plan:
        """Read the text form or the verb form of a plan for a stack of `depth` layers.

        `scores` (one a layer: how alike its input and its output are) are needed only by
        `drop:above=` and `drop:lowest=`.

        >>> Plan.parse("drop:top=2+reverse", depth=6)
        Plan.parse('3-0', depth=6)
        """
        from restack.plan.text import parse

        return parse(text, depth, scores)

    def __len__(self) -> int:
        return len(self.slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.slots)

    def __getitem__(self, position: int) -> Slot:
        return self.slots[position]

    @property
    def sources(self) -> tuple[int, ...]:
        """The source layer of each slot."""
        return tuple(slot.source for slot in self.slots)

    @property
    def gone(self) -> tuple[int, ...]:
        """The source layers that stand nowhere."""
        return tuple(sorted(set(range(self.depth)) - set(self.sources)))

    @property
    def marks(self) -> frozenset[Mark]:
        """The marks that occur."""
        return frozenset(slot.mark for slot in self.slots)

    @property
    def has_fresh(self) -> bool:
        return Mark.FRESH in self.marks

    @property
    def is_identity(self) -> bool:
        return self.slots == tuple(map(Slot, range(self.depth)))

    def then(self, other: Plan) -> Plan:
        """The one plan that does this one, then `other` on its result; also `self >> other`.

        A fresh slot of `other` keeps its draw, so two of them that lie over the same source layer
        hold equal weights; `chain` gives each its own draw, as '+' does in text.

        >>> print(Plan.parse("0-2x2", 3) >> Plan.parse("5,0@fresh", 6))
        2,0@fresh
        """
        if other.depth != len(self):
            raise PlanError(
                f"the first plan leaves {len(self)} layers, the second is for {other.depth}"
            )
        laid = (_laid_over(self, position, slot) for position, slot in enumerate(other))
        return Plan(self.depth, tuple(laid))

    def __rshift__(self, other: Plan) -> Plan:
        return self.then(other)

    def inverse(self) -> Plan:
        """The plan that undoes a reordering.

        >>> shuffled = Plan.of(4, [2, 0, 3, 1])
        >>> (shuffled >> shuffled.inverse()).is_identity
        True
        """
        if self.marks != {Mark.COPY} or sorted(self.sources) != list(range(self.depth)):
            raise PlanError(
                "only a reordering has an inverse: every layer exactly once, as a plain copy",
                hint="start again from the source stack instead",
            )
        position_of = {source: position for position, source in enumerate(self.sources)}
        return Plan.of(self.depth, (position_of[layer] for layer in range(self.depth)))

    def __str__(self) -> str:
        from restack.plan.text import format_plan

        return format_plan(self)

    def __repr__(self) -> str:
        return f"Plan.parse({str(self)!r}, depth={self.depth})"

    def __rich__(self) -> RenderableType:
        from restack.plan.draw import as_rich

        return as_rich(self)

    def _repr_html_(self) -> str:
        from restack.plan.draw import as_html

        return as_html(self)


def _laid_over(below: Plan, position: int, slot: Slot) -> Slot:
    """What `slot`, reading its source from the plan `below`, is in terms of the first stack."""
    under = below[slot.source]
    if slot.mark is Mark.COPY:
        return under
    if slot.mark is Mark.FRESH:
        return Slot(under.source, Mark.FRESH, slot.draw)
    # A slot has one mark: zeroed fresh weights, or storage shared with a zeroed layer, need two.
    if under.mark is Mark.FRESH or (slot.mark is Mark.TIED and under.mark is Mark.NOOP):
        raise PlanError(
            f"slot {position} would be @{slot.mark} over {under}: one plan cannot say both",
            hint="make it two edits, one after the other",
        )
    return Slot(under.source, slot.mark)


def checked_depth(depth: int) -> int:
    """`depth` as an int, if a stack can be that deep."""
    depth = whole_number(depth, "a depth")
    if not 1 <= depth <= MAX_SLOTS:
        raise PlanError(f"a stack of {depth} layers: expected 1..{MAX_SLOTS}")
    return depth


def out_of_range(position: int, layer: int, depth: int) -> str:
    """The message for a slot that asks for a layer which is not there."""
    return f"slot {position} asks for layer {layer}, but the layers are 0..{depth - 1}"


def whole_number(value: Any, what: str) -> int:
    """`value` as an int, if it is a whole number."""
    # operator.index takes numpy integers and refuses floats; True is an int only by accident.
    if isinstance(value, bool):
        raise PlanError(f"{value!r} is not {what}")
    try:
        return operator.index(value)
    except TypeError:
        raise PlanError(f"{value!r} is not {what}") from None
