"""Tables as HTML that sorts, filters and copies with the script of the page."""

from __future__ import annotations

from restack.report import words
from restack.report.html import Markup, tag
from restack.studies.findings import Column, Entry, Number, Table

PUBLISHED = "\u25c6"  # the mark of published values, in charts too
_WITHOUT_FILTER = 8
_TALL = 24
_NARROW = 3  # columns that would lie far apart over the whole width


def table(kinds: Kinds, anchor: str) -> Markup:
    """The table with its tools; `anchor` is unique in the page."""
    found = kinds.table
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
        tag("tr", *(_cell(kinds, place, entry) for place, entry in enumerate(row)))
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
    narrow = "narrow" if len(found.columns) <= _NARROW else None
    inner = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body), cls=narrow)
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


class Kinds:
    """A table with what the entries of each column have in common."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.columns = table.columns
        entries = [[row[place] for row in table.rows] for place in range(len(table.columns))]
        pairs = list(zip(table.columns, entries, strict=True))
        self.digits = [words.column_digits(column, some) for column, some in pairs]
        self.numeric = [
            column.kind == "number"
            or (any(some) and all(words.numeric(e) is not None for e in some if e is not None))
            for column, some in pairs
        ]
        self.spread = [
            any(isinstance(e, Number) and (e.low is not None or words.few(e)) for e in some)
            for some in entries
        ]
        notes = (e.note for some in entries for e in some if isinstance(e, Number) and e.note)
        self.remarks = tuple(dict.fromkeys(notes))
        self.any_published = any(
            words.is_published(entry, column) for column, some in pairs for entry in some
        )

    def classes(self, place: int) -> str | None:
        """Those of the cells of a column."""
        column = self.columns[place]
        align = column.align or ("right" if self.numeric[place] else "left")
        names = [
            *([align] if align != "left" else []),
            *(["plan"] if column.kind == "plan" else []),
        ]
        return " ".join(names) or None

    def remark(self, entry: Entry) -> str:
        """The number of what is to be said of an entry, below the table."""
        noted = isinstance(entry, Number) and entry.note
        return str(self.remarks.index(entry.note) + 1) if noted else ""  # type: ignore[union-attr]

    def shown(self, place: int, entry: Entry) -> tuple[bool, str, str]:
        """Whether an entry is published, its text, and its interval."""
        column, digits = self.columns[place], self.digits[place]
        return (
            words.is_published(entry, column),
            words.entry_text(entry, column, digits),
            words.entry_spread(entry, column, digits),
        )


def _cell(kinds: Kinds, place: int, entry: Entry) -> Markup:
    column = kinds.columns[place]
    published, shown, spread = kinds.shown(place, entry)
    parts: list[Markup | str] = [
        tag("span", PUBLISHED, cls="mark", aria_label="published") if published else "",
        tag("code", shown) if column.kind == "plan" and shown else shown,
        tag("sup", kinds.remark(entry), cls="mark") if kinds.remark(entry) else "",
        tag("span", spread, cls="pm") if kinds.spread[place] else "",
    ]
    attributes: dict[str, str] = {}
    value = words.numeric(entry)
    if value is not None:
        attributes["data_v"] = _exact(value, column)
    if isinstance(entry, Number):
        attributes |= _beside(entry, column)
    classes = " ".join(filter(None, [kinds.classes(place), "published" if published else None]))
    return tag("td", *parts, cls=classes or None, **attributes)


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
