"""The header of a safetensors file: what each tensor is and where its bytes lie.

A file is 8 bytes of header length, a JSON header, and one buffer that the tensors fill without
holes. Everything that the format forbids is a `CheckpointError` here, before a byte is copied.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from restack.anatomy.strict_json import (
    DAMAGED,
    check_printable,
    members,
    members_of_all,
    refuse_constant,
    string,
    unique,
)
from restack.errors import CheckpointError

MAX_HEADER = 100_000_000  # the format's own limit
PAGE = 4096

# All of safetensors 0.8. F4 and F6 tensors are packed: their shape counts elements, not bytes.
BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip

_DTYPES = {name: name for name in BITS}  # one string object per dtype, however many tensors
_U64 = 2**64 - 1
_ENTRY = 4096  # characters of one tensor's entry; some 100 are usual


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint: what it is, and its bytes `[start, end)` in the file `shard`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: str
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


def byte_size(dtype: str, shape: Iterable[int]) -> int:
    """Bytes of a tensor; ValueError if the dtype is unknown or the count does not fit 64 bits.

    >>> byte_size("BF16", (2, 3))
    12
    """
    if dtype not in BITS:
        raise ValueError(f"dtype {dtype!r} is unknown, expected one of {', '.join(BITS)}")
    elements = 1
    for size in shape:
        elements *= size
        if elements > _U64:
            raise ValueError("shape overflows 64 bits")
    bits = elements * BITS[dtype]
    if bits > _U64:
        raise ValueError("shape overflows 64 bits")
    if bits % 8:
        raise ValueError(f"{elements} elements of {dtype} do not fill whole bytes")
    return bits // 8


def header_size(prefix: bytes, file_size: int, where: str) -> int:
    """Length of the JSON header that the first 8 bytes of a file announce."""
    if len(prefix) < 8 or file_size < 8:
        raise CheckpointError(
            f"{where} is not a safetensors file: it has only {file_size} bytes", hint=DAMAGED
        )
    (size,) = struct.unpack("<Q", prefix[:8])
    if size > MAX_HEADER:
        raise CheckpointError(
            f"{where} announces a header of {size} bytes, the format allows {MAX_HEADER}",
            hint="It is not a safetensors file, or damaged: download it or save it again.",
        )
    if size + 8 > file_size:
        raise CheckpointError(
            f"{where} announces a header of {size} bytes, the file has {file_size}", hint=DAMAGED
        )
    return int(size)


def parse_header(
    raw: bytes, *, shard: str, file_size: int, where: str
) -> tuple[list[Tensor], dict[str, str]]:
    """Tensors in the order of their bytes, and the `__metadata__`, from a JSON header.

    `raw` is the header without its length prefix.
    """
    try:
        text = raw.decode("utf-8")
        if not text.startswith("{"):
            raise ValueError("it does not start with '{'")
        base = 8 + len(raw)
        tensors, metadata = _read(text, shard, base)
        tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
        _check_cover(tensors, base, file_size)
    except RecursionError:
        raise CheckpointError(f"Header of {where}: nested too deeply", hint=DAMAGED) from None
    except ValueError as error:
        raise CheckpointError(f"Header of {where}: {error}", hint=DAMAGED) from None
    return tensors, metadata


def format_header(
    entries: Iterable[tuple[str, str, tuple[int, ...], int]],
    metadata: Mapping[str, str],
    *,
    place_in_page: int | None = None,
) -> bytes:
    """Length prefix and header for tensors `(name, dtype, shape, nbytes)` in buffer order.

    Padded with spaces so that the buffer starts at a multiple of 8, as safetensors does, or at
    `place_in_page` (a multiple of 8) of a page.
    """
    raw = bytearray(b"{")
    if metadata:
        raw += f'"__metadata__":{_dump(dict(metadata))},'.encode()
    at = 0
    for name, dtype, shape, nbytes in entries:  # piece by piece: there may be 100,000
        entry = {"dtype": dtype, "shape": shape, "data_offsets": (at, at + nbytes)}
        raw += f"{_dump(name)}:{_dump(entry)},".encode()
        at += nbytes
    raw = raw.removesuffix(b",") + b"}"
    fill = -len(raw) % 8 if place_in_page is None else (place_in_page - 8 - len(raw)) % PAGE
    raw += b" " * fill
    if len(raw) > MAX_HEADER:
        raise CheckpointError(
            f"The tensors of one file need a header of {len(raw)} bytes, "
            f"the format allows {MAX_HEADER}",
            hint="Write several shards.",
        )
    return struct.pack("<Q", len(raw)) + raw


_dump = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def _read(text: str, shard: str, base: int) -> tuple[list[Tensor], dict[str, str]]:
    # Entry by entry: parsed as one JSON value, hostile brackets would take 30 times their size.
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
    metadata: dict[str, str] = {}

    def member(at: int, name: str) -> tuple[Tensor | None, int]:
        if name != "__metadata__":
            return _tensor(text, at, name, shard, base, shapes)
        notes, at = members(text, at, lambda at, key: string(text, at, f"__metadata__ {key!r}"))
        metadata.update(notes)
        return None, at

    found = members_of_all(text, member)
    if "\\u" in text:
        check_printable([*found, metadata])
    return [tensor for tensor in found.values() if tensor is not None], metadata


def _tensor(
    text: str,
    at: int,
    name: str,
    shard: str,
    base: int,
    shapes: dict[tuple[int, ...], tuple[int, ...]],
) -> tuple[Tensor, int]:
    end = text.find("}", at, at + _ENTRY) + 1
    if text[at : at + 1] != "{" or not end:
        raise ValueError(f"tensor {name!r} is not described by a small object")
    try:
        entry = _ENTRIES.decode(text[at:end])
        if entry.keys() != _FIELDS:
            raise ValueError(f"has the fields {sorted(entry)}, expected {sorted(_FIELDS)}")
        dtype, shape = entry["dtype"], _counts(entry["shape"], "shape")
        start, stop = _counts(entry["data_offsets"], "data_offsets", exactly=2)
        expected = byte_size(dtype, shape) if isinstance(dtype, str) else None
        if expected is None:
            raise ValueError(f"dtype {dtype!r} is not a string")
        if stop - start != expected:
            raise ValueError(
                f"{dtype} {list(shape)} takes {expected} bytes, "
                f"data_offsets {start} to {stop} hold {stop - start}"
            )
    except ValueError as error:
        raise ValueError(f"tensor {name!r}: {error}") from None
    shape = shapes.setdefault(shape, shape)
    return Tensor(name, _DTYPES[dtype], shape, shard, base + start, base + stop), end


def _counts(value: Any, field: str, exactly: int | None = None) -> tuple[int, ...]:
    # `type() is int`, for True is an int to isinstance
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise ValueError(f"{field} is not a list of integers")
    if exactly is not None and len(value) != exactly:
        raise ValueError(f"{field} has {len(value)} integers, expected {exactly}")
    return tuple(value)


def _count(digits: str) -> int:
    if digits.startswith("-") or len(digits) > 20 or int(digits) > _U64:
        raise ValueError(f"{digits[:30]} is not a count of up to 64 bits")
    return int(digits)


def _check_cover(tensors: list[Tensor], base: int, file_size: int) -> None:
    at = base
    for tensor in tensors:
        if tensor.start != at:
            problem = "overlaps the tensor before it" if tensor.start < at else "leaves a hole"
            raise ValueError(
                f"tensor {tensor.name!r} begins at byte {tensor.start - base} of the buffer, "
                f"expected {at - base}: it {problem}"
            )
        at = tensor.end
    if at != file_size:
        raise ValueError(
            f"its tensors take {at - base} bytes, the file holds {file_size - base} behind it"
        )


_FIELDS = {"dtype", "shape", "data_offsets"}
_ENTRIES = json.JSONDecoder(
    object_pairs_hook=unique, parse_int=_count, parse_constant=refuse_constant
)
