"""Drawing a plan: the old and the new stack side by side, a row for each stretch of layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from restack.plan.plan import Mark, Plan, Slot
from restack.plan.text import items
from restack.plan.words import ascending_runs, describe

if TYPE_CHECKING:
    from rich.console import RenderableType

_LONG = 3  # shorter stretches are drawn slot by slot, so that each number can be seen
_REPEATS_SHOWN = 12  # an item like 0-79x2 with more slots than this is one row

_RICH_STYLE = {
    "unchanged": "dim",
    "shifted": "",
    "moved": "yellow",
    "repeated": "cyan",
    "fresh": "green",
    "no-op": "magenta",
    "tied": "blue",
    "gone": "red",
}
# Read well on white and on black alike, as notebooks come in both.
_HTML_COLOUR = {
    "unchanged": "#8888",
    "shifted": "#888",
    "moved": "#d90",
    "repeated": "#0aa",
    "fresh": "#2a2",
    "no-op": "#b4b",
    "tied": "#48f",
    "gone": "#e44",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a drawing; `new` is empty where layers are gone."""

    old: str
    new: str
    kind: str  # a key of the tables of colours
    words: str

    @property
    def arrow(self) -> str:
        return "->" if self.new else ""


def draw(plan: Plan) -> str:
    """The drawing as plain text.

    >>> print(draw(Plan.parse("0-3,3@noop,4-5,8@fresh", 9)))
    9 -> 8 layers  0-3,3@noop,4-5,8@fresh
      old     new
      0-3  -> 0-3  unchanged
        3  -> 4    no-op copy
        4  -> 5    shifted
        5  -> 6    shifted
      6-7          gone
        8  -> 7    fresh weights
    """
    lines = rows(plan)
    left = max(3, *(len(row.old) for row in lines))
    right = max(3, *(len(row.new) for row in lines))
    table = [("old", "", "new", ""), *((r.old, r.arrow, r.new, r.words) for r in lines)]
    drawn = (f"  {a:>{left}}  {b:2} {c:{right}}  {d}".rstrip() for a, b, c, d in table)
    return "\n".join([header(plan), *drawn])


def header(plan: Plan) -> str:
    """The depths and the text form, as the first line of every drawing."""
    return f"{plan.depth} -> {len(plan)} layers  {plan}"


def rows(plan: Plan) -> list[Row]:
    """The lines of a drawing, from the lowest layer up, gone layers where they used to stand."""
    gone = ascending_runs(plan.gone)
    drawn: list[Row] = []
    for slots, kind, words in _stretches(plan):
        sources = [plan[position].source for position in slots]
        while gone and gone[0][0] < max(sources):
            drawn.append(_gone_row(*gone.pop(0)))
        drawn.append(Row(_span(sources[0], sources[-1]), _span(slots[0], slots[-1]), kind, words))
    return drawn + [_gone_row(*run) for run in gone]


def as_rich(plan: Plan) -> RenderableType:
    """The drawing for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("  old", justify="right")
    table.add_column("")
    table.add_column("new")
    table.add_column("")
    for row in rows(plan):
        table.add_row(row.old, row.arrow, row.new, row.words, style=_RICH_STYLE[row.kind])
    return Group(Text(header(plan), style="bold"), table)


def as_html(plan: Plan) -> str:
    """The drawing for a notebook: one piece of HTML that needs nothing else."""
    lines = "".join(
        f'<tr><td style="text-align:right">{escape(row.old)}</td>'
        f"<td>{'&rarr;' if row.new else ''}</td>"
        f'<td style="text-align:left">{escape(row.new)}</td>'
        f'<td style="text-align:left;border-left:4px solid {_HTML_COLOUR[row.kind]}">'
        f"{escape(row.words)}</td></tr>"
        for row in rows(plan)
    )
    return (
        f"<div><b>{plan.depth} &rarr; {len(plan)} layers</b> <code>{escape(str(plan))}</code>"
        f"<br>{escape(describe(plan))}"
        f'<table><tr><th style="text-align:right">old</th><th></th><th>new</th><th></th></tr>'
        f"{lines}</table></div>"
    )


def slot_kinds(plan: Plan) -> list[str]:
    """What happens to the layer in each slot, in one word.

    A layer that has only slid up or down is shifted, one that has changed its order is moved.

    >>> slot_kinds(Plan.parse("0,2,2,3@fresh,6,5,4", 7))
    ['unchanged', 'shifted', 'repeated', 'fresh', 'moved', 'unchanged', 'moved']
    """
    first_slot: dict[int, int] = {}
    for position, slot in enumerate(plan):
        if slot.mark is Mark.COPY:
            first_slot.setdefault(slot.source, position)
    in_order = _in_order(list(first_slot))
    kinds = []
    for position, slot in enumerate(plan):
        if slot.mark is not Mark.COPY:
            kinds.append("no-op" if slot.mark is Mark.NOOP else str(slot.mark))
        elif first_slot[slot.source] != position:
            kinds.append("repeated")
        elif slot.source == position:
            kinds.append("unchanged")
        else:
            kinds.append("shifted" if slot.source in in_order else "moved")
    return kinds


def _in_order(layers: list[int]) -> set[int]:
    """The layers that no higher one precedes and no lower one follows."""
    highest_so_far = accumulate(layers, max)
    lowest_to_come = list(accumulate(reversed(layers), min))[::-1]
    return {
        layer
        for layer, highest, lowest in zip(layers, highest_so_far, lowest_to_come, strict=True)
        if highest == layer == lowest
    }


def _stretches(plan: Plan) -> Iterator[tuple[range, str, str]]:
    """The slots that share a row, with what happens to them as a kind and in words."""
    kinds = slot_kinds(plan)
    words = [_words(slot, kind) for slot, kind in zip(plan, kinds, strict=True)]
    start = 0
    for item in items(plan):
        slots = range(start, start + len(item))
        start = slots.stop
        if item.times > 1 and len(item) > _REPEATS_SHOWN:
            kind = "repeated" if item.mark is Mark.COPY else kinds[slots[0]]
            also = "" if item.mark is Mark.COPY else f", {kind}"
            yield slots, kind, f"each {item.times} times{also}"
            continue
        for alike in _split(slots, words):
            parts = (alike,) if len(alike) >= _LONG and item.times == 1 else _singly(alike)
            yield from ((part, kinds[part[0]], words[part[0]]) for part in parts)


def _split(slots: range, words: list[str]) -> Iterator[range]:
    for _, alike in groupby(slots, key=words.__getitem__):
        positions = list(alike)
        yield range(positions[0], positions[-1] + 1)


def _singly(slots: range) -> Iterator[range]:
    return (range(position, position + 1) for position in slots)


def _words(slot: Slot, kind: str) -> str:
    if kind == "fresh":
        return "fresh weights" + (f", draw {slot.draw}" if slot.draw > 1 else "")
    return {"no-op": "no-op copy", "tied": "shares its weights"}.get(kind, kind)


def _gone_row(first: int, last: int) -> Row:
    return Row(_span(first, last), "", "gone", "gone")


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"
