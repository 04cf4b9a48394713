"""The reader: whole numbers, ranges, and carets under the right column."""

from __future__ import annotations

import pytest

from restack.errors import PlanError
from restack.plan.reader import Reader, suggestion


def test_reading_from_left_to_right() -> None:
    reader = Reader("12-0 , 7")
    assert reader.span() == (12, 0)
    reader.blank()
    assert reader.take(",")
    reader.blank()
    assert reader.span() == (7, 7)
    assert reader.at_end
    assert reader.next == ""


def test_digits_of_other_scripts_are_no_numbers() -> None:
    for digit in "٣²३":
        with pytest.raises(PlanError, match="expected a layer number"):
            Reader(digit).whole("a layer number")


def test_wide_characters_take_two_columns() -> None:
    with pytest.raises(PlanError) as caught:
        Reader("漢字x").fail("here", at=2)
    assert caught.value.message.endswith("\n  漢字x\n      ^")


def test_suggestions() -> None:
    assert suggestion("bottm", ["top", "bottom"], "none") == "did you mean 'bottom'?"
    assert suggestion("zzz", ["top", "bottom"], "none") == "none"
