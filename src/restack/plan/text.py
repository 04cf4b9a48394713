"""The text form of plans, read and written.

    plan   = step {"+" step}            each step is for the stack that the one before it leaves
    step   = verb | item {"," item}
    item   = layers ["x" times] ["@" mark [draw]]
    layers = number ["-" number]        both ends included, from the higher to the lower reversed
    mark   = "fresh" | "noop" | "tied"

Blanks may stand around ",", "+", ":" and "=". Fresh weights without a number take the lowest draw
of their layer that is not used further left, so `9x2@fresh` are two different ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from restack.errors import PlanError
from restack.plan.calls import read_verb
from restack.plan.chain import Draws, chain
from restack.plan.plan import MAX_DRAW, MAX_SLOTS, Mark, Plan, Slot, checked_depth, out_of_range
from restack.plan.reader import Reader, suggestion

_WORD = re.compile(r"[A-Za-z_]+")
_MAX_STEPS = 32
_RANGES = "a range is written 0-5, both ends included; layers count from 0"


@dataclass(frozen=True, slots=True)
class Item:
    """One item of the text form: the layers from `first` to `last`, each so many times in place.

    `draw` is the number as written; 0 where there is none.

    >>> item = Item(first=4, last=2, times=2, mark=Mark.NOOP)
    >>> print(item, item.sources)
    4-2x2@noop (4, 4, 3, 3, 2, 2)
    """

    first: int
    last: int
    times: int = 1
    mark: Mark = Mark.COPY
    draw: int = 0

    @property
    def step(self) -> int:
        return 1 if self.last >= self.first else -1

    @property
    def sources(self) -> tuple[int, ...]:
        layers = range(self.first, self.last + self.step, self.step)
        return tuple(layer for layer in layers for _ in range(self.times))

    def __len__(self) -> int:
        return (abs(self.last - self.first) + 1) * self.times

    def __str__(self) -> str:
        layers = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        times = "" if self.times == 1 else f"x{self.times}"
        mark = "" if self.mark is Mark.COPY else f"@{self.mark}{self.draw or ''}"
        return layers + times + mark


def parse(text: str, depth: int, scores: Sequence[float] | None = None) -> Plan:
    """Read a plan; see `Plan.parse`."""
    reader = Reader(text)
    if not text.strip():
        raise PlanError("the plan is empty", hint=f"{_RANGES}; or say what to do: drop:top=6")
    plan = _step(reader, checked_depth(depth), scores)
    steps = 1
    while not reader.at_end:
        if not reader.take("+"):
            hint = _RANGES if reader.next in ".:" else None
            reader.fail("expected ',', '+' or the end", hint=hint)
        steps += 1
        if steps > _MAX_STEPS:
            reader.fail(f"more than {_MAX_STEPS} steps")
        start = reader.at
        step = _step(reader, len(plan), scores)
        try:
            plan = chain(plan, step)
        except PlanError as error:
            reader.fail(error.message, start, error.hint)
    return plan


def format_plan(plan: Plan) -> str:
    """Write the text form, as short as items make it.

    >>> format_plan(Plan.of(12, [0, 0, 1, 1, 2, 2, *range(3, 12)]))
    '0-2x2,3-11'
    """
    return ",".join(map(str, items(plan)))


def items(plan: Plan) -> list[Item]:
    """The items that the text form of a plan is made of."""
    draws = Draws()
    done: list[Item] = []
    for slot in plan:
        # `times` of the last item is still open, so it is kept to a single layer until then.
        item = Item(slot.source, slot.source, 1, slot.mark, _written_draw(slot, draws))
        if done and _differ_in_times_only(done[-1], item):
            item = done.pop()
            item = Item(item.first, item.last, item.times + 1, item.mark, item.draw)
        elif len(done) > 1:
            _join_last_two(done)
        done.append(item)
    if len(done) > 1:
        _join_last_two(done)
    return done


def _written_draw(slot: Slot, draws: Draws) -> int:
    if slot.mark is not Mark.FRESH:
        return 0
    is_natural = draws.lowest_free(slot.source) == slot.draw
    draws.take(slot.source, slot.draw)
    return 0 if is_natural else slot.draw


def _differ_in_times_only(a: Item, b: Item) -> bool:
    return a.first == a.last == b.first and (a.mark, a.draw) == (b.mark, b.draw)


def _join_last_two(done: list[Item]) -> None:
    a, b = done[-2:]
    alike = (a.times, a.mark, a.draw) == (b.times, b.mark, b.draw)
    step = b.first - a.last
    if alike and (step == a.step or (a.first == a.last and step == -1)):
        done[-2:] = [Item(a.first, b.last, a.times, a.mark, a.draw)]


def _step(reader: Reader, depth: int, scores: Sequence[float] | None) -> Plan:
    reader.blank()
    if not reader.next.isascii() or not reader.next.isalnum():
        hint = _RANGES if reader.next == "-" else None
        reader.fail("expected a layer number or a verb", hint=hint)
    read = _slots(reader, depth) if reader.next.isdigit() else read_verb(reader, depth, scores)
    reader.blank()
    return read


def _slots(reader: Reader, depth: int) -> Plan:
    slots: list[Slot] = []
    draws = Draws()
    while True:
        slots.extend(_draw_numbers(_item(reader, depth, len(slots)), draws))
        reader.blank()
        if not reader.take(","):
            return Plan(depth, tuple(slots))
        reader.blank()


def _draw_numbers(item: Item, draws: Draws) -> Iterator[Slot]:
    for source in item.sources:
        if item.mark is Mark.FRESH:
            draw = item.draw or draws.lowest_free(source)
            draws.take(source, draw)
            yield Slot(source, item.mark, draw)
        else:
            yield Slot(source, item.mark)


def _item(reader: Reader, depth: int, position: int) -> Item:
    """Read one item, whose first layer stands in slot `position`."""
    start = reader.at
    first, last = reader.span()
    times = reader.whole("a number of times") if reader.take("x") else 1
    if times < 1:
        reader.fail("a layer cannot stand 0 times", start, "leave it out to drop it")
    mark, draw = _mark(reader) if reader.take("@") else (Mark.COPY, 0)
    item = Item(first, last, times, mark, draw)
    # Both checks come before anything is laid out, so that no number can fill the memory.
    for place, layer in ((position, first), (position + len(item) - times, last)):
        if layer >= depth:
            reader.fail(out_of_range(place, layer, depth), start)
    if position + len(item) > MAX_SLOTS:
        reader.fail(f"more than {MAX_SLOTS} slots", start)
    return item


def _mark(reader: Reader) -> tuple[Mark, int]:
    start = reader.at
    word = reader.match(_WORD)
    marks = [str(mark) for mark in Mark if mark is not Mark.COPY]
    if word not in marks:
        reader.fail("expected a mark", start, suggestion(word, marks, f"one of {', '.join(marks)}"))
    start = reader.at
    if not reader.next.isdigit():
        return Mark(word), 0
    draw = reader.whole("a draw number")
    if Mark(word) is not Mark.FRESH:
        reader.fail("only @fresh takes a number", start)
    if not 1 <= draw <= MAX_DRAW:
        reader.fail(f"expected a draw number 1..{MAX_DRAW}", start)
    return Mark(word), draw
