"""JSON that means one thing, or an error."""

from __future__ import annotations

import math

import pytest

from restack.anatomy.strict_json import parse, parse_object
from restack.errors import CheckpointError


def test_plain_json_is_what_python_reads() -> None:
    assert parse_object(b' {"a": [1, 2.5, null, true, "\\u00e9\xc3\xa9"]} ', "f") == {
        "a": [1, 2.5, None, True, "éé"]
    }


def test_infinity_is_read_where_transformers_writes_it() -> None:
    found = parse_object(b'{"time_step_limit": [0.0, Infinity]}', "config.json", constants=True)
    assert found["time_step_limit"][1] == math.inf


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b'{"a": 1, "a": 2}', "'a' stands twice"),
        (b'{"x": {"b": 1, "c": 2, "b": 1}}', "'b' stands twice"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": -Infinity}', "-Infinity is not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "5000 digits"),
        (b'{"a": "\\ud800"}', "surrogates"),
        (b'{"\\udfff": 1}', "surrogates"),
        (b'{"a": "\xff"}', "can't decode"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b'{"a": 1} x', "Extra data"),
        (b"", "Expecting value"),
        (b'{"a":' * 60_000, "nested too deeply"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "nested too deeply"),
        (b'{"a": [' + b"[]," * 200_000 + b"1]}", "more than 200000 lists"),
    ],
)
def test_what_is_ambiguous_or_hostile_is_refused(raw: bytes, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem) as error:
        parse(raw, "dir/config.json")
    assert "dir/config.json" in error.value.message


def test_a_hundred_levels_are_read() -> None:
    assert parse(b"[" * 100 + b"]" * 100, "f")


@pytest.mark.parametrize("raw", [b"[]", b"1", b'"{}"', b"null"])
def test_what_is_not_an_object(raw: bytes) -> None:
    with pytest.raises(CheckpointError, match="not a JSON object"):
        parse_object(raw, "config.json")
