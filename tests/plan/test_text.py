"""The text form: what it means, that it can be written back, and errors that point."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from restack.errors import PlanError
from restack.plan import MAX_SLOTS, VERBS, Mark, Plan, Slot
from restack.plan.text import items


def slots(text: str, depth: int = 12) -> list[str]:
    return [str(slot) for slot in Plan.parse(text, depth)]


@given(plan=st.from_type(Plan))
@example(Plan(2, (Slot(1, Mark.FRESH, 2), Slot(1, Mark.FRESH, 1), Slot(1, Mark.FRESH, 3))))
@example(Plan(2, (Slot(1, Mark.FRESH, 1), Slot(1, Mark.FRESH, 1))))
@example(Plan(3, (Slot(1), Slot(2), Slot(1), Slot(0), Slot(0), Slot(1))))
def test_text_read_back_is_the_plan(plan: Plan) -> None:
    assert Plan.parse(str(plan), plan.depth) == plan


@given(plan=st.from_type(Plan))
def test_items_lay_out_every_slot(plan: Plan) -> None:
    assert tuple(source for item in items(plan) for source in item.sources) == plan.sources
    assert [len(item) for item in items(plan)] == [len(item.sources) for item in items(plan)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-5", "0 1 2 3 4 5"),
        ("0-2x2,3", "0 0 1 1 2 2 3"),
        ("5-3", "5 4 3"),
        ("2-1x2", "2 2 1 1"),
        ("8,9-11@fresh", "8 9@fresh 10@fresh 11@fresh"),
        ("0-1,1@noop,2", "0 1 1@noop 2"),
        ("3,3@tied", "3 3@tied"),
        ("1x3@noop", "1@noop 1@noop 1@noop"),
        (" 0 , 1\t,2\n", "0 1 2"),
        ("007", "7"),
    ],
)
def test_what_items_mean(text: str, expected: str) -> None:
    assert slots(text) == expected.split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9@fresh,9@fresh", "9@fresh 9@fresh2"),
        ("9x3@fresh", "9@fresh 9@fresh2 9@fresh3"),
        ("9@fresh,8@fresh,9@fresh", "9@fresh 8@fresh 9@fresh2"),
        ("9@fresh1,9@fresh1", "9@fresh 9@fresh"),
        ("9x2@fresh5", "9@fresh5 9@fresh5"),
        # Without a number means a draw of its own, whatever was numbered further left.
        ("9@fresh1,9@fresh", "9@fresh 9@fresh2"),
        ("9@fresh2,9@fresh,9@fresh", "9@fresh2 9@fresh 9@fresh3"),
    ],
)
def test_which_draw_a_fresh_slot_is(text: str, expected: str) -> None:
    assert slots(text) == expected.split()


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("0,1,2", "0-2"),
        ("0,0,1,1,2,2,3,4", "0-2x2,3-4"),
        ("5,4,3", "5-3"),
        ("0,1,0", "0-1,0"),
        ("0,1,1,2", "0,1x2,2"),
        ("9@fresh1,9@fresh2,9@fresh3", "9x3@fresh"),
        ("9@fresh1,9@fresh1", "9@fresh,9@fresh1"),
        ("8@fresh2,9@fresh2", "8-9@fresh2"),
        ("0-3,3@noop,4-7", "0-3,3@noop,4-7"),
        ("0-15,8-23", "0-15,8-23"),
    ],
)
def test_the_text_is_as_short_as_items_make_it(written: str, canonical: str) -> None:
    assert str(Plan.parse(written, 24)) == canonical


@pytest.mark.parametrize(
    ("text", "reason", "caret"),
    [
        ("0-3,x", "expected a layer number", "    ^"),
        ("-3", "expected a layer number or a verb", "^"),
        ("0-3,", "expected a layer number", "    ^"),
        ("0,-3", "expected a layer number", "  ^"),
        ("0..5", "expected ',', '+' or the end", " ^"),
        ("0 - 5", "expected ',', '+' or the end", "  ^"),
        ("0,٣", "expected a layer number", "  ^"),
        ("0,1²", "expected ',', '+' or the end", "   ^"),
        ("0x0", "a layer cannot stand 0 times", "^"),
        ("0x", "expected a number of times", "  ^"),
        ("3@frsh", "expected a mark", "  ^"),
        ("3@copy", "expected a mark", "  ^"),
        ("3@noop2", "only @fresh takes a number", "      ^"),
        ("3@fresh0", "expected a draw number 1..999999999", "       ^"),
        ("0-11+0,12", "slot 1 asks for layer 12, but the layers are 0..11", "       ^"),
        ("0-1,11-14", "slot 5 asks for layer 14, but the layers are 0..11", "    ^"),
        ("0-1,14-11", "slot 2 asks for layer 14, but the layers are 0..11", "    ^"),
        ("0-5+5-6", "slot 1 asks for layer 6, but the layers are 0..5", "    ^"),
        ("0+", "expected a layer number or a verb", "  ^"),
        ("drp:top=3", "unknown verb", "^"),
        ("0+drp:top=3", "unknown verb", "  ^"),
        ("drop", "drop needs an argument", "    ^"),
        ("drop:tip=3", "drop cannot be called with this", "     ^"),
        ("drop:top", "expected '=' and a number behind top", "        ^"),
        ("drop:top=", "expected a whole number", "         ^"),
        ("drop:top=1.5", "expected ',', '+' or the end", "          ^"),
        ("drop:3x2", "expected ',', '+' or the end", "      ^"),
        ("drop:top=13", "drop: top=13 is out of range: expected 0..12", "     ^"),
        ("drop:0-11", "drop: no layer is left", "     ^"),
        ("drop:3,12", "layer 12 is not there; the layers are 0..11", "       ^"),
        ("drop:3,2-4", "layer 3 is named twice", "       ^"),
        ("drop:above=x", "expected a number like 0.925", "           ^"),
        ("reverse:3", "reverse cannot be called with this", "        ^"),
        ("swap:3", "swap: expected two layers, found 1", "     ^"),
        ("duplicate:3x0", "a layer cannot stand 0 times", "          ^"),
        ("0@fresh+noop:0", "slot 0 would be @noop over 0@fresh: one plan cannot", "        ^"),
    ],
)
def test_errors_point_at_the_place(text: str, reason: str, caret: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.parse(text, 12)
    first, shown, pointer = caught.value.message.split("\n")
    assert first.startswith(f"cannot read the plan: {reason}")
    assert (shown, pointer) == (f"  {text}", f"  {caret}")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("drp:top=3", "did you mean 'drop'?"),
        ("drop:tpo=3", "did you mean 'top'?"),
        ("3@frsh", "did you mean 'fresh'?"),
        ("duplicate:eahc", "did you mean 'each'?"),
        ("qqqq", f"the verbs are {', '.join(VERBS)}"),
        ("drop", VERBS["drop"].form),
        ("0..5", "a range is written 0-5, both ends included; layers count from 0"),
        ("drop:above=0.9", "measures how alike each layer's input and output are"),
    ],
)
def test_hints_say_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.parse(text, 12)
    assert hint in str(caught.value.hint)


def test_a_long_text_is_shown_around_the_place() -> None:
    text = "0-11," * 100 + "?" + ",0-11" * 100
    with pytest.raises(PlanError) as caught:
        Plan.parse(text, 12)
    _, shown, pointer = caught.value.message.split("\n")
    assert shown[pointer.index("^")] == "?"
    assert len(shown) < 100


def test_line_breaks_do_not_displace_the_caret() -> None:
    with pytest.raises(PlanError) as caught:
        Plan.parse("0,\n\t1,q", 12)
    _, shown, pointer = caught.value.message.split("\n")
    assert shown[pointer.index("^")] == "q"


@pytest.mark.parametrize(
    "text",
    [
        "0x999999999",
        "0-999999999",
        "0-11x999999999999",
        "999999999999999999999999999999",
        "9" * 100_000,
        "0," * 100_000,
        "a" * 100_000,
        "0@" + "a" * 100_000,
        "drop:" + "a" * 100_000,
        "reverse+" * 100_000,
        "repeat:999999999",
        "duplicate:0x999999999",
        "drop:0-999999999999",
        " " * 100_000,
        "repeat:10000+" + "duplicate:each+" * 3,
    ],
)
def test_enormous_wishes_are_refused_at_once(text: str) -> None:
    start = time.process_time()
    with pytest.raises(PlanError) as caught:
        Plan.parse(text, 12)
    assert time.process_time() - start < 1
    assert len(str(caught.value)) < 500


def test_a_plan_can_be_as_deep_as_allowed() -> None:
    plan = Plan.parse(f"0x{MAX_SLOTS}@fresh", 1)
    assert len(plan) == MAX_SLOTS
    assert str(plan) == f"0x{MAX_SLOTS}@fresh"


ALPHABET = "0123456789-,x@+:=. \n²٣é漢\u0301\x00"
WORDS = [*VERBS, *Mark, "top=", "every=", "above=", "each", "0-3", "99", *ALPHABET]


@settings(max_examples=500)
@given(
    text=st.lists(st.sampled_from(WORDS), max_size=12).map("".join) | st.text(max_size=30),
    depth=st.integers(1, 12),
)
def test_any_text_is_a_plan_or_a_plan_error(text: str, depth: int) -> None:
    try:
        plan = Plan.parse(text, depth, scores=[0.5] * depth)
    except PlanError:
        return
    assert Plan.parse(str(plan), depth) == plan


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_an_empty_plan_is_called_empty(text: str) -> None:
    with pytest.raises(PlanError, match="the plan is empty"):
        Plan.parse(text, 12)
