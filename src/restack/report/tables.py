"""Tables as HTML that sorts, filters and copies with the script of the page."""

from __future__ import annotations

from restack.report import words
from restack.report.html import Markup, join, tag
from restack.studies.findings import Column, Entry, Number, Table

PUBLISHED = "\u25c6"  # the mark of published values, in charts too
_WITHOUT_FILTER = 8
_TALL = 24


def table(found: Table, anchor: str) -> Markup:
    """The table with its tools; `anchor` is unique in the page."""
    kinds = _Kinds(found)
    head = (
        tag(
            "th",
            tag("button", words.column_title(column), type="button"),
            scope="col",
            cls=kinds.classes(place),
            data_kind="number" if kinds.numeric[place] else "text",
        )
        for place, column in enumerate(found.columns)
    )
    body = (
        tag("tr", *(kinds.cell(place, entry) for place, entry in enumerate(row)))
        for row in found.rows
    )
    count = len(found.rows)
    tools = [
        tag(
            "input",
            type="search",
            placeholder="Filter rows",
            aria_label=f"Filter rows of {found.title}",
        )
        if count > _WITHOUT_FILTER
        else None,
        tag("span", f"{count:,} rows", cls="count", role="status"),
        tag("span", "Copy", cls="copy-label"),
        *(
            tag("button", label, type="button", data_copy=form)
            for form, label in (("csv", "CSV"), ("latex", "LaTeX"), ("markdown", "Markdown"))
        ),
    ]
    inner = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body))
    return tag(
        "div",
        tag("div", *tools, cls="tools"),
        tag(
            "div",
            inner,
            cls="scroll tall" if count > _TALL else "scroll",
            tabindex="0",
            role="region",
            aria_label=found.title,
        ),
        cls="table",
        id=anchor,
    )


class _Kinds:
    """What the entries of each column have in common."""

    def __init__(self, found: Table) -> None:
        entries = [[row[place] for row in found.rows] for place in range(len(found.columns))]
        pairs = list(zip(found.columns, entries, strict=True))
        self.columns = found.columns
        self.digits = [
            words.column_digits(column, column_entries) for column, column_entries in pairs
        ]
        self.numeric = [
            column.kind == "number"
            or all(words.numeric(e) is not None for e in some if e is not None)
            for column, some in pairs
        ]
        self.spread = [
            any(isinstance(e, Number) and (e.low is not None or words.few(e)) for e in some)
            for some in entries
        ]

    def classes(self, place: int) -> str | None:
        column = self.columns[place]
        align = column.align or ("right" if self.numeric[place] else "left")
        names = [align] if align != "left" else []
        return " ".join([*names, *(["plan"] if column.kind == "plan" else [])]) or None

    def cell(self, place: int, entry: Entry) -> Markup:
        column, digits = self.columns[place], self.digits[place]
        published = words.is_published(entry, column)
        shown = words.entry_text(entry, column, digits)
        parts: list[Markup | str] = [
            tag("span", PUBLISHED, cls="mark", aria_label="published") if published else "",
            tag("code", shown) if column.kind == "plan" and shown else shown,
        ]
        attributes: dict[str, str] = {}
        value = words.numeric(entry)
        if value is not None:
            attributes["data_v"] = _exact(value, column)
        if isinstance(entry, Number):
            attributes |= _beside(entry, column)
        if self.spread[place]:
            parts.append(tag("span", words.entry_spread(entry, column, digits), cls="pm"))
        classes = " ".join(filter(None, [self.classes(place), "published" if published else None]))
        return tag("td", join(*parts), cls=classes or None, **attributes)


def _beside(entry: Number, column: Column) -> dict[str, str]:
    ends = {"data_low": entry.low, "data_high": entry.high}
    found = {name: _exact(value, column) for name, value in ends.items() if value is not None}
    if entry.n:
        found["data_n"] = str(entry.n)
    if entry.note:
        found["title"] = entry.note
    return found


def _exact(value: float, column: Column) -> str:
    """In the unit of the column, for sorting and copying."""
    return f"{value * 100 if column.unit == '%' else value:.10g}"
