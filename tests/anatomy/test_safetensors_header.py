"""Headers: what safetensors accepts is read the same, what it forbids is refused."""

from __future__ import annotations

import json
import struct
import tracemalloc
from typing import Any

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from restack.anatomy.safetensors_header import (
    BITS,
    MAX_HEADER,
    Tensor,
    byte_size,
    format_header,
    header_size,
    parse_header,
)
from restack.errors import CheckpointError

GOOD = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def read(header: Any, buffer: int = 24) -> tuple[list[Tensor], dict[str, str]]:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = 8 + len(raw) + buffer
    return parse_header(raw, shard="s", file_size=size, where="dir/s")


def test_places_are_absolute_and_in_the_order_of_the_bytes() -> None:
    second = {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}
    header = {"b": second, "__metadata__": {"format": "pt"}, "a": GOOD}
    tensors, metadata = read(header, 32)
    base = 8 + len(json.dumps(header))
    assert tensors == [
        Tensor("a", "F32", (2, 3), "s", base, base + 24),
        Tensor("b", "BF16", (4,), "s", base + 24, base + 32),
    ]
    assert tensors[1].nbytes == 8
    assert metadata == {"format": "pt"}


@pytest.mark.parametrize("dtype", BITS)
def test_the_dtypes_and_their_sizes_are_those_of_safetensors(dtype: str) -> None:
    size = byte_size(dtype, (4, 2))
    for stated, accepted in ((size, True), (size + 1, False)):
        raw = format_header([("t", dtype, (4, 2), stated)], {})
        data = raw + bytes(stated)
        if accepted:
            ((_, view),) = safetensors.deserialize(data)
            assert (view["dtype"], view["shape"]) == (dtype, [4, 2])
            read(raw[8:], stated)
        else:
            with pytest.raises(safetensors.SafetensorError):
                safetensors.deserialize(data)
            with pytest.raises(CheckpointError):
                read(raw[8:], stated)


def test_there_is_no_other_dtype() -> None:
    with pytest.raises(safetensors.SafetensorError, match="unknown variant") as error:
        safetensors.deserialize(format_header([("t", "F128", (), 16)], {}) + bytes(16))
    listed = str(error.value).partition("expected one of")[2]
    assert {word.strip(" `") for word in listed.split(" at ")[0].split(",")} == set(BITS)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"dtype": "F128"}, "'F128' is unknown"),
        ({"dtype": 7}, "not a string"),
        ({"dtype": "F64"}, r"F64 \[2, 3\] takes 48 bytes, data_offsets 0 to 24 hold 24"),
        ({"shape": [-2, -3]}, "-2 is not a count"),
        ({"shape": [2.0, 3]}, "not a list of integers"),
        ({"shape": [True, 6]}, "not a list of integers"),
        ({"shape": "23"}, "not a list of integers"),
        ({"shape": [2**64]}, "not a count of up to 64 bits"),
        ({"shape": [2**63, 2, 0]}, "overflows"),
        ({"shape": [2**62]}, "overflows"),
        ({"shape": [[2], 3]}, "not a list of integers"),
        ({"shape": [1] * 3000}, "not described by a small object"),
        ({"data_offsets": [0, 20]}, "takes 24 bytes"),
        ({"data_offsets": [24, 0]}, "takes 24 bytes"),
        ({"data_offsets": [0]}, "expected 2"),
        ({"data_offsets": [0, 24, 24]}, "expected 2"),
        ({"data_offsets": {"0": 24}}, "Expecting|not a list"),
        ({"data_offsets": None}, "not a list"),
        ({"data_offsets": [1, 25]}, "leaves a hole"),
        ({"extra": 1}, "fields"),
    ],
)
def test_a_tensor_that_disagrees_with_itself(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem) as error:
        read({"layer.w": GOOD | change})
    assert "dir/s" in error.value.message
    assert "layer.w" in error.value.message
    assert error.value.hint


@pytest.mark.parametrize(
    ("second", "buffer", "problem"),
    [
        ([24, 48], 48, None),
        ([20, 44], 44, "overlaps"),
        ([0, 24], 24, "overlaps"),
        ([25, 49], 49, "leaves a hole"),
        ([24, 48], 47, "take 48 bytes, the file holds 47"),
        ([24, 48], 49, "take 48 bytes, the file holds 49"),
    ],
)
def test_the_buffer_is_covered_once(second: list[int], buffer: int, problem: str | None) -> None:
    header = {"a": GOOD, "b": GOOD | {"data_offsets": second}}
    if problem is None:
        assert len(read(header, buffer)[0]) == 2
    else:
        with pytest.raises(CheckpointError, match=problem):
            read(header, buffer)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "does not start with"),
        (b" {}", "does not start with"),
        (b"[]", "does not start with"),
        (b"{", "expected a string"),
        (b"{}}", "unexpected '}'"),
        (b'{"a"}', "expected ':'"),
        (b'{"__metadata__":{"a":"b"},}', "expected a string"),
        (b'{"__metadata__":{"a":"b"} "c":1}', "expected ','"),
        (b'{"__metadata__":{"a":1}}', "__metadata__ 'a'"),
        (b'{"__metadata__":{"a":null}}', "__metadata__ 'a'"),
        (b'{"__metadata__":null}', "expected '{'"),
        (b'{"__metadata__":{"a":"","a":""}}', "'a' stands twice"),
        (b'{"__metadata__":{},"__metadata__":{}}', "'__metadata__' stands twice"),
        (b'{"__metadata__":{"a":"\\ud800"}}', "surrogates"),
        (b'{"t":[]}', "small object"),
        (b'{"t":{"a":{}}}', "tensor 't'"),
        (b'{"t":{"shape":' + b"[" * 3000 + b"}}", "nested|tensor 't'"),
        (b'{"\xff":{}}', "can't decode"),
        (b'{"t":{"dtype":"F32","shape":[],"shape":[],"data_offsets":[0,4]}}', "stands twice"),
        (b'{"t":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', "NaN"),
        (b'{"t":{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}}', "-0 is not a count"),
    ],
)
def test_headers_that_are_no_headers(raw: bytes, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        read(raw, 0)


def test_the_same_name_twice() -> None:
    pair = f'"t":{json.dumps(GOOD)}'
    with pytest.raises(CheckpointError, match="'t' stands twice"):
        read(f"{{{pair},{pair}}}".encode())


def test_padding_and_empty_tensors_are_fine() -> None:
    empty = {"dtype": "F32", "shape": [0, 5], "data_offsets": [24, 24]}
    tensors, _ = read(json.dumps({"e": empty, "a": GOOD}).encode() + b" \n\t ")
    assert [(tensor.name, tensor.nbytes) for tensor in tensors] == [("a", 24), ("e", 0)]
    assert read(b"{}", 0) == ([], {})


def test_packed_types_must_fill_bytes() -> None:
    assert byte_size("F4", (3, 2)) == 3
    assert byte_size("F6_E2M3", (4,)) == 3
    with pytest.raises(ValueError, match="whole bytes"):
        byte_size("F4", (3,))


@pytest.mark.parametrize(
    ("prefix", "file_size", "problem"),
    [
        (b"", 0, "only 0 bytes"),
        (b"\1\0\0", 3, "only 3 bytes"),
        (struct.pack("<Q", 93), 100, "announces a header of 93 bytes, the file has 100"),
        (struct.pack("<Q", MAX_HEADER + 1), 10**9, "the format allows"),
        (struct.pack("<Q", 2**64 - 1), 100, "the format allows"),
    ],
)
def test_lengths_that_cannot_be(prefix: bytes, file_size: int, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        header_size(prefix, file_size, "f")


def test_lengths_that_can_be() -> None:
    assert header_size(struct.pack("<Q", 92), 100, "f") == 92


def test_a_million_brackets_take_no_memory() -> None:
    raw = b'{"t":{"dtype":"F32","shape":[' + b"[]," * 2_000_000 + b"]}}"
    tracemalloc.start()
    with pytest.raises(CheckpointError):
        read(raw, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * len(raw)  # json.loads would take 30 times as much


entries = st.lists(
    st.tuples(
        st.text().filter(lambda name: name != "__metadata__"),
        st.sampled_from(sorted(set(BITS) - {"F4", "F6_E2M3", "F6_E3M2"})),
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
    ),
    unique_by=lambda entry: entry[0],
    max_size=5,
)


@given(entries, st.dictionaries(st.text(), st.text(), max_size=3))
def test_what_is_formatted_is_read_back_here_and_by_safetensors(
    entries: list[tuple[str, str, tuple[int, ...]]], metadata: dict[str, str]
) -> None:
    sized = [(name, dtype, shape, byte_size(dtype, shape)) for name, dtype, shape in entries]
    raw = format_header(sized, metadata)
    buffer = sum(size for *_, size in sized)
    assert len(raw) % 8 == 0
    tensors, found = read(raw[8:], buffer)
    assert found == metadata
    assert {(t.name, t.dtype, t.shape) for t in tensors} == set(entries)
    views = safetensors.deserialize(raw + bytes(buffer))
    assert {(name, v["dtype"], tuple(v["shape"])) for name, v in views} == set(entries)


@given(st.integers(0, 511).map(lambda eighth: 8 * eighth), st.text(max_size=20))
def test_a_buffer_can_begin_anywhere_in_a_page(place: int, name: str) -> None:
    raw = format_header([(name, "U8", (3,), 3)], {}, place_in_page=place)
    assert len(raw) % 4096 == place
    assert len(raw) < 4096 + 300
    assert len(safetensors.deserialize(raw + b"abc")) == 1
