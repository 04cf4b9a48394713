"""Findings as Markdown: the same words, numbers and tables, with the figures as files beside."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from restack.plan import Plan
from restack.plan.draw import draw
from restack.report import words
from restack.report.rows import marks
from restack.report.tables import PUBLISHED, Kinds
from restack.studies.findings import (
    STATUSES,
    Decoded,
    DrawnPlan,
    Figure,
    Findings,
    Table,
    Verdict,
)

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~#&$])")


def markdown(
    findings: Sequence[Findings], place: Callable[[Figure, Findings], str], title: str = "Findings"
) -> str:
    """The text; `place` says where the picture of a figure lies."""
    blocks: list[str] = []
    level = 1
    if len(findings) != 1:
        blocks.append(f"# {text(title)}")
        level = 2
    for found in findings:
        blocks += _blocks(found, place, level)
    return "\n\n".join(blocks) + "\n"


def text(value: str) -> str:
    """A text in which nothing is markup; on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(value.split()))


def _blocks(found: Findings, place: Callable[[Figure, Findings], str], level: int) -> Iterator[str]:
    head = "#" * level
    yield f"{head} {text(found.title)}"
    if found.lead:
        yield text(found.lead)
    said = [
        f"- **{text(line.value)}** {text(line.text)}" if line.value else f"- {text(line.text)}"
        for line in found.summary
    ]
    if said:
        yield "\n".join(said)
    if found.notes:
        yield "To bear in mind:\n\n" + "\n".join(f"- {text(note)}" for note in found.notes)
    if found.verdicts:
        yield f"{head}# Claims and verdicts"
        counts = [(sum(v.status == s for v in found.verdicts), s) for s in STATUSES]
        yield ", ".join(f"{count} {status}" for count, status in counts if count) + "."
        yield "\n".join(_verdict(verdict, found) for verdict in found.verdicts)
    for section in words.sections(found):
        yield f"{head}# {text(section or 'Results')}"
        for figure in (f for f in found.figures if f.section == section):
            yield from _figure(figure, place(figure, found), f"{head}##")
        for table in (t for t in found.tables if t.section == section):
            yield from _table(table, f"{head}##")
    if found.decoded:
        yield f"{head}# Decoded layer by layer"
        for decoded in found.decoded:
            yield from _decoded(decoded, f"{head}##")
    if found.plans:
        yield f"{head}# Plans"
        yield from (_plan(plan) for plan in found.plans)
    if found.settings or found.provenance:
        yield f"{head}# Settings and provenance"
        yield from _facts(found)


def _verdict(verdict: Verdict, found: Findings) -> str:
    titles = {figure.key: figure.title for figure in found.figures}
    titles |= {table.key: table.title for table in found.tables}
    about = ", ".join(filter(None, (verdict.paper, verdict.subject)))
    said = f"{text(verdict.statement)} ({text(about)}): {text(verdict.why).rstrip('.')}."
    parts = [f"**{verdict.status}** {said}"]
    if verdict.published:
        parts.append(f"Published: {text(verdict.published).rstrip('.')}.")
    if verdict.figure:
        parts.append(f"See: {text(titles[verdict.figure])}.")
    return "- " + " ".join(parts)


def _figure(figure: Figure, where: str, head: str) -> Iterator[str]:
    yield f"{head} {text(figure.title)}"
    yield f"![{text(figure.title)}](<{where}>)"
    if said := " ".join(filter(None, (text(figure.note), *marks(figure)))):
        yield said
    if figure.paper:
        yield f"Counterpart: {text(figure.paper)}."


def _table(table: Table, head: str) -> Iterator[str]:
    yield f"{head} {text(table.title)}"
    kinds = Kinds(table)
    titles = [text(words.column_title(column)) for column in table.columns]
    sides = ["---:" if "right" in (kinds.classes(i) or "") else "---" for i in range(len(titles))]
    lines = [[_entry(kinds, place, entry) for place, entry in enumerate(row)] for row in table.rows]
    body = "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, sides, *lines))
    if table.long:
        fold = f"<details><summary>{len(table.rows):,} rows</summary>"
        body = f"{fold}\n\n{body}\n\n</details>"
    yield body
    said = [text(table.note)] if table.note else []
    if kinds.any_published:
        said.append(f"{PUBLISHED} published.")
    said += [f"({place}) {text(remark)}." for place, remark in enumerate(kinds.remarks, 1)]
    if table.paper:
        said.append(f"Counterpart: {text(table.paper)}.")
    if said:
        yield " ".join(said)


def _entry(kinds: Kinds, place: int, entry: object) -> str:
    published, shown, spread = kinds.shown(place, entry)  # type: ignore[arg-type]
    remark = kinds.remark(entry)  # type: ignore[arg-type]
    parts = (PUBLISHED if published else "", text(shown), remark and f"({remark})", text(spread))
    return " ".join(filter(None, parts))


def _decoded(decoded: Decoded, head: str) -> Iterator[str]:
    yield f"{head} {text(decoded.title)}"
    lines = [["layer", *map(text, decoded.tokens)], ["---:", *(["---"] * len(decoded.tokens))]]
    for row in decoded.layers:
        pairs = zip(row.tokens, row.right, strict=True)
        lines.append([str(row.layer), *(text(t) if ok else f"**{text(t)}**" for t, ok in pairs)])
    yield "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    yield " ".join(filter(None, (text(decoded.note), "Bold: not the token that went in.")))


def _plan(drawn: DrawnPlan) -> str:
    shown = f"```text\n{draw(Plan.parse(drawn.plan, drawn.depth))}\n```"
    return f"{text(drawn.name)}\n\n{shown}" if drawn.name else shown


def _facts(found: Findings) -> Iterator[str]:
    if found.settings:
        yield _pairs(found.settings)
    if found.provenance:
        about = found.provenance
        models = [(f"model {name}", said) for name, said in about.models]
        yield _pairs([*words.made_with(about), *models, *words.splits(about)])
        if found.provenance.papers:
            yield "\n".join(f"- {text(paper)}" for paper in found.provenance.papers)


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    lines = [("", ""), ("---", "---"), *((text(name), text(said)) for name, said in pairs)]
    return "\n".join(f"| {name} | {said} |" for name, said in lines)
