"""The parts of a page, in the order in which they are read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from restack.plan import Plan, describe
from restack.plan.draw import rows as plan_rows
from restack.report import words
from restack.report.html import Markup, tag
from restack.report.rows import marks, panels
from restack.report.tables import PUBLISHED, Kinds, table
from restack.studies.findings import (
    STATUSES,
    Decoded,
    DrawnPlan,
    Figure,
    Findings,
    Provenance,
    Table,
    Verdict,
)

_SIGNS = {"seen": "\u2713", "not seen": "\u2717", "undecided": "?", "not applicable": "\u2013"}
_KINDS = {"kept": "Kept", "lost": "Lost", "saved": "Saved", "found": "Found"}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the page, and its entry in the contents."""

    title: str
    anchor: str
    body: Markup
    inner: bool = False


def parts(
    found: Findings, figures: list[Figure], numbers: Iterator[int], *, alone: bool
) -> list[Part]:
    """All parts of one study; its figures are appended to `figures`, whose places they name."""
    anchors = _Anchors(numbers)
    made = [Part(found.title, anchors.new(found.key), Markup())]
    made[0] = Part(found.title, made[0].anchor, _opening(found, made[0].anchor, alone))
    if found.verdicts:
        made.append(_claims(found, anchors))
    for section in words.sections(found):
        made.append(_section(found, section, anchors, figures))
    if found.decoded:
        anchor = anchors.new("decoded")
        body = tag("div", *map(_decoded, found.decoded), cls="cards")
        made.append(
            Part(
                "Decoded layer by layer",
                anchor,
                _titled("Decoded layer by layer", anchor, body),
                True,
            )
        )
    if found.plans:
        anchor = anchors.new("plans")
        body = tag("div", *map(_plan, found.plans), cls="plans")
        made.append(Part("Plans", anchor, _titled("Plans", anchor, body), True))
    if found.settings or found.provenance:
        anchor = anchors.new("settings")
        title = "Settings and provenance"
        made.append(Part(title, anchor, _titled(title, anchor, _facts(found)), True))
    return made


class _Anchors:
    """Names within the page: short, safe, and each only once."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._of: dict[str, str] = {}

    def new(self, key: str) -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")[:40]
        return f"{slug or 'part'}-{next(self._numbers)}"

    def of(self, key: str) -> str:
        """That of a figure or table, which others point at."""
        if key not in self._of:
            self._of[key] = self.new(key)
        return self._of[key]


def _titled(title: str, anchor: str, *body: Markup | None) -> Markup:
    return tag("section", tag("h2", title), *body, id=anchor, aria_label=title)


# --- words and claims ---------------------------------------------------------------------------


def _opening(found: Findings, anchor: str, alone: bool) -> Markup:
    about = found.provenance
    meta: list[str | None] = []
    if about:
        version = (about.versions or {}).get("restack")
        meta = [*(name for name, _ in about.models), about.date, version and f"restack {version}"]
    cards = [line for line in found.summary if line.value]
    said = [line for line in found.summary if not line.value]
    return tag(
        "section",
        tag(
            "header",
            tag("h1", found.title),
            tag("p", found.lead, cls="lead") if found.lead else None,
            tag("p", " \u00b7 ".join(filter(None, meta)), cls="meta") if any(meta) else None,
        ),
        tag(
            "ul",
            *(
                tag(
                    "li",
                    tag("span", _KINDS[line.kind], cls="kind"),
                    tag("span", line.value, cls="value"),
                    tag("span", line.text, cls="said"),
                )
                for line in cards
            ),
            cls="numbers",
        )
        if cards
        else None,
        tag("ul", *(tag("li", line.text) for line in said), cls="found") if said else None,
        tag(
            "aside",
            tag("strong", "To bear in mind"),
            tag("ul", *(tag("li", note) for note in found.notes)),
            cls="notes",
        )
        if found.notes
        else None,
        id=anchor,
        aria_label=found.title,
    )


def _claims(found: Findings, anchors: _Anchors) -> Part:
    anchor = anchors.new("claims")
    counts = Counter(verdict.status for verdict in found.verdicts)
    tally = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    figures = {figure.key: figure.title for figure in found.figures}
    titles = figures | {item.key: item.title for item in found.tables}
    items = (_verdict(verdict, titles, anchors) for verdict in found.verdicts)
    title = "Claims and verdicts"
    total = len(found.verdicts)
    said = f"{total} claim{'s' if total != 1 else ''}: {tally}."
    body = _titled(title, anchor, tag("p", said, cls="tally"), tag("ul", *items, cls="claims"))
    return Part(title, anchor, body, True)


def _verdict(verdict: Verdict, titles: dict[str, str], anchors: _Anchors) -> Markup:
    of = " \u00b7 ".join(filter(None, (verdict.paper, verdict.subject)))
    return tag(
        "li",
        tag(
            "span",
            f"{_SIGNS[verdict.status]} {verdict.status}",
            cls=f"status {verdict.status.replace(' ', '-')}",
        ),
        tag(
            "div",
            tag("p", verdict.statement, cls="statement"),
            tag("p", of, cls="of"),
            tag("p", verdict.why, cls="why"),
            tag("p", tag("span", PUBLISHED, cls="mark"), "published: ", verdict.published, cls="of")
            if verdict.published
            else None,
            tag(
                "p",
                tag("a", titles[verdict.figure], href=f"#{anchors.of(verdict.figure)}"),
                cls="of",
            )
            if verdict.figure
            else None,
        ),
    )


# --- figures and tables -------------------------------------------------------------------------


def _section(found: Findings, section: str, anchors: _Anchors, figures: list[Figure]) -> Part:
    cards = []
    for figure in (figure for figure in found.figures if figure.section == section):
        cards.append(_figure(figure, len(figures), anchors))
        figures.append(figure)
    cards += [_table(item, anchors) for item in found.tables if item.section == section]
    title = section or ("More" if len(words.sections(found)) > 1 else "Results")
    anchor = anchors.new(title)
    return Part(title, anchor, _titled(title, anchor, tag("div", *cards, cls="cards")), True)


def _top(title: str, paper: str) -> Markup:
    beside = tag("span", f"counterpart: {paper}", cls="paper") if paper else None
    return tag("div", tag("h3", title), beside, cls="top")


def _figure(figure: Figure, place: int, anchors: _Anchors) -> Markup:
    wide = len(panels(figure)) > 1 or figure.kind == "heatmap" or len(_across(figure)) > 16
    note = " ".join(filter(None, (figure.note, *marks(figure))))
    return tag(
        "figure",
        _top(figure.title, figure.paper),
        tag("div", cls="chart", data_chart=str(place), role="group", aria_label=figure.title),
        tag("noscript", tag("p", "Charts are drawn by the scripts of this page.")),
        tag("figcaption", note, cls="note") if note else None,
        tag("details", tag("summary", "Numbers"), data_numbers=str(place)),
        cls="card wide" if wide else "card",
        id=anchors.of(figure.key),
    )


def _across(figure: Figure) -> set[float | str]:
    return {point.x for series in figure.series for point in series.points}


def _table(found: Table, anchors: _Anchors) -> Markup:
    anchor = anchors.of(found.key)
    kinds = Kinds(found)
    published = kinds.any_published
    body = table(kinds, f"{anchor}-table")
    if found.long:
        body = tag("details", tag("summary", f"Show all {len(found.rows):,} rows"), body)
    key = tag("span", PUBLISHED, cls="mark") if published else None
    note = tag(
        "p",
        found.note,
        " " if published else None,
        key,
        "published" if published else None,
        cls="note",
    )
    remarks = (
        tag("p", tag("sup", str(place)), f" {remark}", cls="note")
        for place, remark in enumerate(kinds.remarks, 1)
    )
    return tag(
        "div",
        _top(found.title, found.paper),
        body,
        note if found.note or published else None,
        *remarks,
        cls="card wide",
        id=anchor,
    )


# --- sentences, plans, facts --------------------------------------------------------------------


def _decoded(decoded: Decoded) -> Markup:
    head = tag(
        "tr", tag("th", "layer", scope="col"), *(tag("th", t, scope="col") for t in decoded.tokens)
    )
    rows = (
        tag(
            "tr",
            tag("th", str(row.layer), scope="row"),
            *(
                tag("td", token, cls=None if right else "wrong")
                for token, right in zip(row.tokens, row.right, strict=True)
            ),
        )
        for row in decoded.layers
    )
    note = " ".join(filter(None, (decoded.note, "Underlined: not the token that went in.")))
    return tag(
        "div",
        _top(decoded.title, ""),
        tag(
            "div",
            tag("table", tag("thead", head), tag("tbody", *rows), cls="decoded plain"),
            cls="scroll",
            tabindex="0",
            role="region",
            aria_label=decoded.title,
        ),
        tag("p", note, cls="note"),
        cls="card wide",
    )


def _plan(drawn: DrawnPlan) -> Markup:
    plan = Plan.parse(drawn.plan, drawn.depth)
    lines = (
        tag(
            "tr",
            tag("td", row.old, cls="right"),
            tag("td", "\u2192" if row.new else ""),
            tag("td", row.new),
            tag("td", row.words, cls=f"what {row.kind}"),
        )
        for row in plan_rows(plan)
    )
    return tag(
        "div",
        tag("h3", drawn.name or str(plan)),
        tag("p", f"{plan.depth} \u2192 {len(plan)} layers ", tag("code", str(plan))),
        tag("p", describe(plan).partition(": ")[2]),
        tag("table", tag("tbody", *lines), cls="drawn"),
        cls="card",
    )


def _facts(found: Findings) -> Markup:
    cards = [_pairs("Settings", list(found.settings))]
    if found.provenance:
        cards += _provenance(found.provenance)
    return tag("div", *cards, cls="facts")


def _provenance(about: Provenance) -> list[Markup | None]:
    papers = tag(
        "div",
        tag("h3", "Papers"),
        tag("ul", *(tag("li", paper) for paper in about.papers)),
        cls="card",
    )
    return [
        _pairs("Made with", words.made_with(about)),
        _pairs("Models", list(about.models)),
        _pairs("Data", words.splits(about)),
        papers if about.papers else None,
    ]


def _pairs(title: str, pairs: list[tuple[str, str]]) -> Markup | None:
    if not pairs:
        return None
    rows = (tag("tr", tag("th", name, scope="row"), tag("td", said)) for name, said in pairs)
    return tag("div", tag("h3", title), tag("table", tag("tbody", *rows), cls="plain"), cls="card")
