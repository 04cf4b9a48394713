"""From a store to findings: each study tells its own trials, all others are told alike."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import date
from pathlib import Path

from restack.errors import RestackError
from restack.studies import generic
from restack.studies.findings import Findings, Provenance
from restack.studies.known import FINDINGS
from restack.sweep.rows import Row
from restack.sweep.store import Store


def gather(stores: Path | Sequence[Path], studies: Sequence[str] | None = None) -> list[Findings]:
    """The findings of a store or of several together, of all their studies or of some."""
    with ExitStack() as opened:  # rows read their details while the store is open
        rows: list[Row] = []
        for store in [stores] if isinstance(stores, Path) else stores:
            found = opened.enter_context(Store.open(store)).rows()
            if not found:
                raise RestackError(f"there are no trials in {store}")
            rows += found
        return findings_of(_once(rows), studies)


def _once(rows: Sequence[Row]) -> list[Row]:
    """Each trial once, though several stores may hold it: finished, if it is so in one of them."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        place = row.key, str(sorted(row.labels.items()))
        if place not in found or (row.status == "done" and found[place].status != "done"):
            found[place] = row
    return list(found.values())


def findings_of(rows: Sequence[Row], studies: Sequence[str] | None = None) -> list[Findings]:
    """The findings of rows, those of known studies first."""
    by_study: dict[str, list[Row]] = {}
    for row in rows:
        name = str(row.labels.get("study", ""))
        by_study.setdefault(name if name in FINDINGS else "", []).append(row)
    for name in studies or ():
        if name not in by_study or not name:
            there = ", ".join(filter(None, by_study)) or "none of a known study"
            raise RestackError(f"there are no trials of the study {name!r}", hint=f"Here: {there}.")
    chosen = studies or [*filter(None, by_study), *([""] if "" in by_study else [])]
    found = [
        FINDINGS[name](by_study[name])
        if name
        else generic.findings(by_study[""], "Other trials" if len(chosen) > 1 else "All trials")
        for name in dict.fromkeys(chosen)
    ]
    return [_dated(findings) for findings in found]


def _dated(findings: Findings) -> Findings:
    """With the day on which they were told, unless they say another."""
    about = findings.provenance or Provenance("")
    return replace(findings, provenance=replace(about, date=about.date or date.today().isoformat()))
