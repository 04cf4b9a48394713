"""Chains: as composition, but fresh slots made at different places never become equal."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restack.errors import PlanError
from restack.plan import Mark, Plan, chain


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("drop:top=6+reverse", "5-0"),
        ("0-5+reverse+0-1", "5-4"),
        ("duplicate:each+reinit:after=0", "0-11x2@fresh"),
        ("duplicate:first=2+keep:1,3-13", "0@fresh,0,1@fresh,1-11"),
        # A fresh slot that stays keeps its draw; one that is made fresh again begins anew.
        ("0@fresh,0+reinit:1", "0x2@fresh"),
        ("0@fresh2,0+reinit:1", "0@fresh2,0@fresh"),
        ("0x3@fresh+reinit:0-2", "0x3@fresh"),
        # Copies of one fresh slot are equal, also in a chain.
        ("reinit:0+0x2", "0@fresh,0@fresh1"),
        ("0+0@fresh1,0@fresh1", "0@fresh,0@fresh1"),
    ],
)
def test_chains(text: str, expected: str) -> None:
    assert str(Plan.parse(text, 12)) == expected


@given(p=st.from_type(Plan), q=st.from_type(Plan))
def test_fresh_slots_are_equal_only_where_the_step_says_so(p: Plan, q: Plan) -> None:
    q = Plan(len(p), tuple(replace(slot, source=slot.source % len(p)) for slot in q))
    try:
        result = chain(p, q)
    except PlanError:
        return
    for (slot, step), (other, other_step) in combinations(zip(result, q, strict=True), 2):
        both_copied = step.mark is other_step.mark is Mark.COPY
        same_copied = both_copied and p[step.source] == p[other_step.source]
        if slot.mark is Mark.FRESH and other.mark is Mark.FRESH:
            assert (slot == other) == (step == other_step or same_copied)
    undrawn = [replace(slot, draw=1) for slot in result]
    assert undrawn == [replace(slot, draw=1) for slot in p.then(q)]


@given(p=st.from_type(Plan))
def test_reinit_of_everything_gives_every_slot_its_own_weights(p: Plan) -> None:
    result = chain(p, Plan.parse("reinit:after=0", len(p)))
    assert result.marks == {Mark.FRESH}
    assert len(set(result)) == len(result)


def test_without_fresh_slots_a_chain_is_composition() -> None:
    a, b, c = Plan.parse("drop:top=2", 6), Plan.parse("reverse", 4), Plan.parse("0x3", 4)
    assert chain(a, b, c) == a >> b >> c
    assert chain(a) == a


def test_the_depths_must_fit() -> None:
    with pytest.raises(PlanError, match="leaves 2 layers, the second is for 3"):
        chain(Plan.identity(2), Plan.parse("0-2@fresh", 3))
