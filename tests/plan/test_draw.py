"""Drawings: every layer is accounted for, in plain text, in a terminal and in HTML."""

from __future__ import annotations

import re
import subprocess
import sys
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from restack.plan import Plan, draw
from restack.plan.draw import rows, slot_kinds


def numbers(span: str) -> list[int]:
    first, _, last = span.partition("-")
    a, b = int(first), int(last or first)
    return list(range(a, b + 1) if b >= a else range(a, b - 1, -1))


@given(plan=st.from_type(Plan))
def test_every_slot_and_every_gone_layer_is_drawn_once(plan: Plan) -> None:
    drawn = rows(plan)
    assert [i for row in drawn if row.new for i in numbers(row.new)] == list(range(len(plan)))
    assert tuple(i for row in drawn if not row.new for i in numbers(row.old)) == plan.gone
    for row in drawn:
        if row.new:
            sources = [plan[i].source for i in numbers(row.new)]
            assert list(dict.fromkeys(sources)) == numbers(row.old)


def test_the_drawing_says_what_happens_without_colour() -> None:
    assert draw(Plan.parse("0-3,3@noop,6,5,6x2@fresh,0@tied", 9)).split("\n") == [
        "9 -> 10 layers  0-3,3@noop,6-5,6x2@fresh,0@tied",
        "  old     new",
        "  0-3  -> 0-3  unchanged",
        "    3  -> 4    no-op copy",
        "    4          gone",
        "    6  -> 5    moved",
        "    5  -> 6    moved",
        "    6  -> 7    fresh weights",
        "    6  -> 8    fresh weights, draw 2",
        "    0  -> 9    shares its weights",
        "  7-8          gone",
    ]


@pytest.mark.parametrize(
    ("text", "most_rows"),
    [
        ("0-79", 1),
        ("drop:40", 3),
        ("reinit:after=40", 2),
        ("reverse", 1),
        ("duplicate:each", 1),
        ("upscale:120", 3),
        ("swap:3,70", 5),
    ],
)
def test_a_deep_stack_stays_readable(text: str, most_rows: int) -> None:
    assert len(rows(Plan.parse(text, 80))) <= most_rows


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("drop:0", "shifted shifted shifted"),
        ("swap:0,3", "moved unchanged unchanged moved"),
        ("duplicate:0-1", "unchanged repeated shifted repeated shifted shifted"),
        ("3,0-2", "moved moved moved moved"),
        ("0-2,0-1@noop,1@tied", "unchanged unchanged unchanged no-op no-op tied"),
    ],
)
def test_what_happens_to_each_layer(text: str, kinds: str) -> None:
    assert slot_kinds(Plan.parse(text, 4)) == kinds.split()


def printed(plan: Plan, **options: object) -> str:
    console = Console(file=StringIO(), width=100, **options)
    console.print(plan)
    return console.file.getvalue()


def test_a_terminal_shows_the_same_table() -> None:
    plan = Plan.parse("0-3,3@noop,6,5,6x2@fresh", 9)
    shown = printed(plan)
    for row in rows(plan):
        assert re.search(rf"{row.old}\s+{row.arrow}\s+{row.new}\s+{row.words}", shown)
    assert shown.startswith("9 -> 9 layers  0-3,3@noop,6-5,6x2@fresh\n")
    assert shown.isascii()
    assert "\x1b[32m" in printed(plan, force_terminal=True, color_system="standard")  # fresh: green


@given(plan=st.from_type(Plan))
def test_html_is_whole_and_stands_alone(plan: Plan) -> None:
    html = plan._repr_html_()
    assert html.count("<tr>") == html.count("</tr>") == len(rows(plan)) + 1
    assert not re.search(r"<script|<link|src=|href=|http", html)
    # Arrows in texts such as "12 -> 6" must not end a tag.
    assert "->" not in html


def test_plans_need_neither_rich_nor_yaml_until_they_are_used() -> None:
    code = (
        "import sys; from restack.plan import Plan, draw; draw(Plan.parse('drop:top=1', 3));"
        "print(*{'rich', 'yaml', 'torch', 'numpy', 'transformers'} & set(sys.modules))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == ""
