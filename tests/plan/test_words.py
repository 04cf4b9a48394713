"""Plans in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restack.plan import Plan, describe
from restack.plan.words import spans


@pytest.mark.parametrize(
    ("text", "depth", "words"),
    [
        ("0-11", 12, "12 layers, unchanged"),
        ("drop:top=6", 12, "12 -> 6: drops 6..11"),
        ("drop:even=4", 12, "12 -> 8: drops 5 7 9 11"),
        ("duplicate:each", 12, "12 -> 24: each layer twice"),
        ("duplicate:first=3", 12, "12 -> 15: 0..2 twice"),
        ("duplicate:5x4", 12, "12 -> 15: 5 4 times"),
        ("repeat:50", 1, "1 -> 50: 0 50 times"),
        ("reverse", 12, "12 layers: in reverse order"),
        ("swap:3,7", 12, "12 layers: 3 and 7 swapped"),
        ("upscale:48", 32, "32 -> 48: 8..23 twice, in runs 0..23 8..31"),
        ("reinit:after=9", 12, "12 layers: fresh 9..11"),
        ("expand:every=4", 8, "8 -> 10: no-op 3 7"),
        ("0-3,3@tied", 4, "4 -> 5: 3 twice, tied 3"),
        ("5,3,1,4,2,0", 6, "6 layers: in a new order"),
        ("drop:bottom=6+reverse", 12, "12 -> 6: drops 0..5, in reverse order"),
    ],
)
def test_describe(text: str, depth: int, words: str) -> None:
    assert describe(Plan.parse(text, depth)) == words


@given(plan=st.from_type(Plan))
def test_every_plan_has_its_line_of_words(plan: Plan) -> None:
    words = describe(plan)
    assert "\n" not in words
    assert not words.endswith(": ")
    assert ("unchanged" in words) == plan.is_identity


def test_many_spans_are_cut_short() -> None:
    assert spans(range(0, 40, 2)).endswith("14 and 12 more")
