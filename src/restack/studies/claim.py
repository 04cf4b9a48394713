"""A claim of a paper as data: what it says, where it is shown, and the test that decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from restack.studies.findings import Verdict
from restack.studies.verdicts import Decision
from restack.studies.view import Unfit, Unmeasured, View

Test = Callable[[View], Decision]


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement and its test."""

    key: str
    paper: str
    statement: str
    figure: str
    """The key of the figure or table of the study that shows it."""
    published: str
    """What the paper reports for it."""
    test: Test


def judged(claims: Sequence[Claim], view: View, shown: Mapping[str, str]) -> list[Verdict]:
    """The verdict on every claim for one model; `shown` has the keys of the figures there are."""
    found = []
    for claim in claims:
        try:
            decision = claim.test(view)
        except Unfit as reason:
            decision = Decision("not applicable", str(reason))
        except Unmeasured as reason:
            decision = Decision("undecided", str(reason))
        found.append(
            Verdict(
                claim.key,
                claim.paper,
                claim.statement,
                decision.status,
                decision.why,
                shown.get(claim.figure, ""),
                claim.published,
                view.subject,
            )
        )
    return found
