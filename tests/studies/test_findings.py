"""Findings as plain data: what goes out comes back, and what is not findings is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from restack.errors import DataError
from restack.stats import mean_interval
from restack.studies.findings import Axis, Findings, Number, Point, Series, Table, Verdict
from tests.report.samples import everything


def test_json_and_back() -> None:
    findings = everything()
    text = json.dumps(findings.to_json(), allow_nan=False)
    assert Findings.from_json(json.loads(text)) == findings


def test_defaults_are_left_out_and_whole_numbers_stay() -> None:
    assert Point(3, 0.5).to_json() == {"x": 3, "y": 0.5}
    table = everything().to_json()["tables"][0]
    assert type(Table.from_json(table).rows[0][1]) is int
    assert Point.from_json({"x": "top", "y": 1}).y == 1.0


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"x": 1}, "misses the field 'y'"),
        ({"x": 1, "y": "high"}, "Point.y is 'high', not float"),
        ({"x": None, "y": 1.0}, "Point.x is 'None', not float | str"),
        ({"x": 1, "y": 1.0, "z": 2}, "no field 'z'"),
        ({"x": 1, "y": True}, "Point.y is 'True'"),
        ([1, 2], "not an object of Point"),
    ],
)
def test_what_is_not_findings_is_refused(data: Any, said: str) -> None:
    with pytest.raises(DataError, match=said.replace("|", r"\|")):
        Point.from_json(data)


def test_the_place_is_named() -> None:
    data = everything().to_json()
    data["figures"][0]["series"][1]["points"][0]["y"] = []
    with pytest.raises(DataError, match=r"Findings\.figures\[0\]\.series\[1\]\.points\[0\]\.y"):
        Findings.from_json(data)
    data = everything().to_json()
    data["verdicts"][0]["status"] = "perhaps"
    with pytest.raises(DataError, match=r"'seen' \| 'not seen'"):
        Findings.from_json(data)


def test_numbers_that_cannot_be_shown_are_refused() -> None:
    with pytest.raises(DataError, match="nan"):
        Point(1, float("nan"))
    with pytest.raises(DataError, match="inf"):
        Number(1.0, high=float("inf"))


def test_a_verdict_points_at_something() -> None:
    verdict = Verdict("c", "p", "s", "seen", "w", figure="nowhere")
    with pytest.raises(DataError, match="'nowhere'"):
        Findings("k", "t", verdicts=(verdict,))


def test_few_trials_have_no_interval() -> None:
    assert Point.of("a", mean_interval([0.5, 0.6])).low is None
    assert Number.of(mean_interval([0.5, 0.6, 0.7])).n == 3
    assert Series.of_values("s", [1, 2]).points == (Point(1.0, 0.0), Point(2.0, 0.0))
    assert Axis.layers().label == "layer (0 = embeddings)"
