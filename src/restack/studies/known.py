"""The studies by name: how their trials are laid out and what is told of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from restack.errors import RestackError
from restack.studies import (
    drop,
    drop_findings,
    duplicate,
    duplicate_findings,
    reinit,
    reinit_findings,
    successors,
    successors_findings,
)
from restack.studies.findings import Findings
from restack.studies.subjects import PAPERS, Subject
from restack.sweep.rows import Row
from restack.sweep.trial import Data, Trial


@dataclass(frozen=True, slots=True)
class Request:
    """What a study is asked to do."""

    study: str
    subjects: tuple[Subject, ...]
    scale: str
    tasks: tuple[str, ...] | None = None
    data: Mapping[str, Data] | None = None
    texts: Data | None = None
    init: str = "paper"
    precision: str | None = None
    """Of training; None is that of the recipes, which is that of the papers."""


FINDINGS: dict[str, Callable[[Sequence[Row]], Findings]] = {
    "duplicate": duplicate_findings.findings,
    "drop": drop_findings.findings,
    "reinit": reinit_findings.findings,
    **{name: partial(successors_findings.findings, name) for name in successors.NAMES},
}
"""From the rows of a store to the findings of each study."""


def definition(request: Request, rows: Sequence[Row] = ()) -> list[Trial]:
    """The trials of a study as far as they can be laid out with what is measured already.

    Seed by seed, so that all of a study is there once before any of it is repeated.
    """
    found = _trials(request, rows)
    return sorted(found, key=lambda trial: trial.seed)


def _trials(request: Request, rows: Sequence[Row]) -> list[Trial]:
    subjects, scale, data = request.subjects, request.scale, request.data
    tasks, precision = request.tasks, request.precision
    match request.study:
        case "duplicate":
            return duplicate.definition(
                subjects, scale, data, tasks=tasks, texts=request.texts, precision=precision
            )
        case "drop":
            return drop.definition(
                subjects, scale, data, tasks=tasks, precision=precision, rows=rows
            )
        case "reinit":
            return reinit.definition(
                subjects, scale, data, tasks=tasks, init=request.init, precision=precision
            )
        case name if name in successors.NAMES:
            if request.texts is None:
                raise RestackError(
                    f"the study {name} reads texts, and none are given",
                    hint="Give --texts: a file, or a directory with a validation split.",
                )
            return successors.definition(name, subjects, scale, request.texts, rows=rows)
    raise unknown(request.study)


def unknown(study: str) -> RestackError:
    """The error for a study that there is not."""
    return RestackError(f"there is no study {study!r}", hint=f"Known: {', '.join(FINDINGS)}.")


def papers_own(study: str) -> tuple[Subject, ...]:
    """The models of the paper; empty for the successors."""
    return PAPERS.get(study, ())


def findings_in(rows: Sequence[Row]) -> list[Findings]:
    """The findings of every study that has rows here."""
    names = dict.fromkeys(str(row.labels["study"]) for row in rows if "study" in row.labels)
    return [
        FINDINGS[name]([row for row in rows if row.labels.get("study") == name])
        for name in names
        if name in FINDINGS
    ]
