"""Mutated checkpoints: each is refused with a CheckpointError, or read as safetensors reads it.

`python tests/fuzz_checkpoint.py 20000` tries that many and prints a summary; the test suite tries
a few hundred.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import tempfile
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from restack.anatomy.checkpoint import INDEX, SINGLE, Checkpoint, open_checkpoint
from restack.errors import CheckpointError

Files = dict[str, bytes]

# for one checkpoint of a few kilobytes, of which 1 ms and 20 kB are usual
SECONDS = 2.0
MEGABYTES = 10.0
DTYPES = [np.float64, np.float32, np.float16, np.int64, np.int8, np.uint8, np.bool_, np.complex64]

shapes = st.lists(st.integers(0, 4), max_size=3)
names = st.one_of(
    st.sampled_from(["embed.weight", "layers.0.w", "layers.1.w", "layers.10.w", "norm"]),
    st.text(max_size=5),
)
odd_values: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.sampled_from([2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, 10**5000]),
    st.floats(),
    st.sampled_from(["F4", "F6_E2M3", "F8_E4M3", "F8_E8M0", "BF16", "C64", "F128", "U8", "BOOL"]),
    st.sampled_from(
        ["../x", "/etc/passwd", "a/../../b", "", ".", SINGLE, "model\0", "sub/x", "\\"]
    ),
    st.text(max_size=4),
    st.just([[[]]]),
    st.lists(st.integers(0, 9), max_size=4),
    st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2),
)


@st.composite
def valid(draw: st.DrawFn) -> Files:
    """A sound checkpoint of a few tensors, in one file or in shards with an index."""
    tensors = {
        name: np.zeros(draw(shapes), draw(st.sampled_from(DTYPES)))
        for name in draw(st.lists(names, min_size=1, max_size=5, unique=True))
        if name != "__metadata__"
    } or {"w": np.zeros(3)}
    config = draw(st.sampled_from([{"model_type": "bert"}, {"limit": [0.0, float("inf")]}, {}]))
    files = {"config.json": json.dumps(config).encode()}
    metadata = draw(st.sampled_from([None, {"format": "pt"}, {"a": '}{"', "é": "\n"}]))
    parts = draw(st.integers(1, 3))
    if parts == 1:
        return files | {SINGLE: safetensors.numpy.save(tensors, metadata)}
    places = {}
    for part in range(parts):
        shard = f"model-{part}.safetensors"
        members = dict(list(tensors.items())[part::parts])
        places |= dict.fromkeys(members, shard)
        if members:
            files[shard] = safetensors.numpy.save(members, metadata)
    return files | {INDEX: json.dumps({"metadata": {}, "weight_map": places}).encode()}


@st.composite
def mutated(draw: st.DrawFn) -> Files:
    """A checkpoint with one to three things wrong, or changed without harm."""
    files = draw(valid())
    for _ in range(draw(st.integers(1, 3))):
        weights = [name for name in sorted(files) if name != "config.json"]
        name = draw(st.sampled_from([*weights * 4, *sorted(files)]))
        how = draw(st.sampled_from([*[_bytes] * 5, *[_json] * 10, _length, _file]))
        how(draw, files, name)
    return files


def _bytes(draw: st.DrawFn, files: Files, name: str) -> None:
    data = bytearray(files[name])
    start = min(draw(st.one_of(st.integers(0, 8), *[st.integers(8, 400)] * 4)), len(data))
    stop = min(start + draw(st.integers(0, 8)), len(data))
    new = draw(
        st.one_of(
            st.binary(max_size=6),
            st.sampled_from([b'"', b"{", b"}", b"[", b",", b"-", b"0", b"1e3", b"\\ud800", b"NaN"]),
            st.just(bytes(data[start : stop + 30])),
            st.sampled_from([b"[" * 5000, b'{"a":' * 5000, b" " * 50]),
        )
    )
    data[start:stop] = new
    cut = draw(st.sampled_from([None, None, None, stop, -1, len(data) // 2]))
    data = data[:cut] + draw(st.sampled_from([b"", b"", b"", b"\0", b"more"]))
    if draw(st.booleans()):
        data = _relength(files[name], data)
    files[name] = bytes(data)


def _relength(before: bytes, data: bytearray) -> bytearray:
    """With the length prefix that fits again after a change inside the header."""
    if len(before) < 8 or len(data) < 8 or before[8:9] != b"{":
        return data
    (size,) = struct.unpack("<Q", before[:8])
    return bytearray(struct.pack("<Q", max(size + len(data) - len(before), 0) % 2**64)) + data[8:]


def _json(draw: st.DrawFn, files: Files, name: str) -> None:
    """Change one value, key or pair of brackets of the JSON in a file."""
    binary = name.endswith(".safetensors")
    body, rest = _sections(files[name]) if binary else (files[name], b"")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return
    if not isinstance(value, dict) or not value:
        return
    inner, key = value, draw(st.sampled_from(sorted(value)))
    while isinstance(inner[key], dict) and inner[key] and draw(st.integers(0, 3)):
        inner = inner[key]
        key = draw(st.sampled_from(sorted(inner)))
    change = draw(st.sampled_from(["set", "shift", "shift", "drop", "add", "twice", "rename"]))
    if change == "set":
        inner[key] = draw(odd_values)
    elif change == "shift" and isinstance(inner[key], list) and inner[key]:  # offsets, shape
        place = draw(st.integers(0, len(inner[key]) - 1))
        inner[key][place] = draw(odd_values)
    elif change == "drop":
        del inner[key]
    elif change == "add":
        inner[draw(names)] = draw(odd_values)
    elif change == "rename":
        inner[draw(names)] = inner.pop(key)
    text = json.dumps(value, ensure_ascii=draw(st.booleans())) if _fits(value) else "{}"
    if change == "twice":
        text = text.rstrip("}") + "," + json.dumps(key) + ":" + json.dumps(inner[key]) + "}"
    body = text.encode("utf-8", "surrogatepass")
    files[name] = (struct.pack("<Q", len(body)) if binary else b"") + body + rest


def _fits(value: Any) -> bool:
    try:
        json.dumps(value)
    except ValueError:  # an integer of 5000 digits
        return False
    return True


def _sections(data: bytes) -> tuple[bytes, bytes]:
    (size,) = struct.unpack("<Q", data[:8].ljust(8, b"\0"))
    return data[8 : 8 + size], data[8 + size :]


def _length(draw: st.DrawFn, files: Files, name: str) -> None:
    sizes = st.sampled_from([0, 1, 7, 8, 100, 10**8, 10**8 + 1, 2**63, 2**64 - 1])
    files[name] = struct.pack("<Q", draw(sizes)) + files[name][8:]


def _file(draw: st.DrawFn, files: Files, name: str) -> None:
    other = draw(st.sampled_from(sorted(files)))
    change = draw(st.sampled_from(["empty", "remove", "copy", "link", "folder", "pipe"]))
    if change == "remove" and len(files) > 1:
        del files[name]
    else:
        # the marks stand for what `write` puts there instead of a file
        files[name] = {"copy": files[other], "empty": b""}.get(change, change.encode())


@dataclass
class Tally:
    """What came of all checkpoints, and the worst of them."""

    refused: int = 0
    read: int = 0
    seconds: float = 0.0
    megabytes: float = 0.0


def write(files: Files, directory: Path) -> None:
    for name, data in files.items():
        path = directory / name
        if data == b"link":
            path.symlink_to("/etc/hostname")
        elif data == b"folder":
            path.mkdir()
        elif data == b"pipe":
            os.mkfifo(path)
        else:
            path.write_bytes(data)


def agree(found: Checkpoint, directory: Path) -> None:
    """Check all that was read against safetensors and json."""
    assert found.config == json.loads((directory / "config.json").read_text("utf-8"))
    seen = set()
    for shard in found.sizes:
        data = (directory / shard).read_bytes()
        with safetensors.safe_open(directory / shard, framework="np") as file:
            metadata = file.metadata() or {}
            assert metadata.keys() <= found.metadata.keys()
            assert metadata == found.metadata or len(found.sizes) > 1
        for name, view in safetensors.deserialize(data):
            tensor = found.tensors[name]
            assert (tensor.shard, tensor.dtype) == (shard, view["dtype"])
            assert list(tensor.shape) == view["shape"]
            assert data[tensor.start : tensor.end] == bytes(view["data"])
            seen.add(name)
    assert seen == found.tensors.keys()


def check(files: Files, tally: Tally) -> None:
    directory = Path(tempfile.mkdtemp(prefix="restack-fuzz-"))
    try:
        write(files, directory)
        tracemalloc.start()
        begun = time.process_time()  # not of the clock: a busy machine is no hang
        found = None
        try:
            found = open_checkpoint(directory)
        except CheckpointError as error:
            str(error).encode()  # can be printed
        seconds, peak = time.process_time() - begun, tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        if found:
            agree(found, directory)
        assert seconds < SECONDS
        assert peak < MEGABYTES
        tally.refused += found is None
        tally.read += found is not None
        tally.seconds = max(tally.seconds, seconds)
        tally.megabytes = max(tally.megabytes, peak)
    finally:
        tracemalloc.stop()
        shutil.rmtree(directory)


def fuzz(examples: int, *, seeded: bool = True) -> Tally:
    """Try `examples` checkpoints; always the same ones if `seeded`."""
    tally = Tally()

    @settings(
        max_examples=examples,
        derandomize=seeded,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(mutated())
    def one(files: Files) -> None:
        check(files, tally)

    one()
    return tally


if __name__ == "__main__":
    begun = time.perf_counter()
    tally = fuzz(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, seeded=False)
    print(
        f"{tally.refused + tally.read} mutated checkpoints in {time.perf_counter() - begun:.0f} s: "
        f"{tally.refused} refused, {tally.read} read as safetensors reads them, nothing else. "
        f"The slowest took {tally.seconds:.3f} s, the largest {tally.megabytes:.1f} MB."
    )
