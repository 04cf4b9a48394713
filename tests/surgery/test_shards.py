"""Shard splitting, with lists of ints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restack.errors import CheckpointError
from restack.surgery.shards import names, parse_size, split


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ([], None, [[]]),
        ([], 5, [[]]),
        ([1, 2, 3], None, [[1, 2, 3]]),
        ([1, 2, 3], 6, [[1, 2, 3]]),
        ([1, 2, 3], 5, [[1, 2], [3]]),
        ([1, 2, 3], 1, [[1], [2], [3]]),
        ([9, 1, 1], 5, [[9], [1, 1]]),
        ([1, 9, 1], 5, [[1], [9], [1]]),
        ([0, 0, 5, 0, 5], 5, [[0, 0, 5, 0], [5]]),
    ],
)
def test_split(sizes: list[int], limit: int | None, expected: list[list[int]]) -> None:
    assert [[sizes[place] for place in group] for group in split(sizes, limit)] == expected


@given(st.lists(st.integers(0, 20)), st.integers(1, 30))
def test_laws_of_split(sizes: list[int], limit: int) -> None:
    groups = split(sizes, limit)
    assert [place for group in groups for place in group] == list(range(len(sizes)))
    for group, following in zip(groups, [*groups[1:], None], strict=True):
        held = sum(sizes[place] for place in group)
        assert held <= limit or len(group) == 1
        assert group or not sizes
        if following is not None:  # no group could have taken one more
            assert held + sizes[following[0]] > limit


def test_names_are_those_of_transformers() -> None:
    assert names(1) == ["model.safetensors"]
    assert names(12)[0] == "model-00001-of-00012.safetensors"
    assert len(names(12)) == 12


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("100", 100),
        ("100B", 100),
        ("5GB", 5 * 10**9),
        ("5gb", 5 * 10**9),
        ("5G", 5 * 10**9),
        ("500 MB", 500 * 10**6),
        ("2GiB", 2 * 2**30),
        ("0.5KiB", 512),
        (" 1.5 TB ", 1_500_000_000_000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GB", "5XB", "-5GB", "5iB", "5 5GB", "1e9", "0", "0.1B", "٣GB", "9" * 400]
)
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(CheckpointError, match=r"is (not )?a size") as error:
        parse_size(text)
    assert "5GB" in str(error.value.hint)
