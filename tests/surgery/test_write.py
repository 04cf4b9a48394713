"""Weight files made of pieces: right for safetensors, in little memory, refused if impossible."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from restack.anatomy.checkpoint import INDEX, SINGLE, open_checkpoint
from restack.anatomy.safetensors_header import BITS, byte_size
from restack.errors import CheckpointError
from restack.surgery.write import Made, Range, Target, Zeros, write_weights

DATA = bytes(range(256)) * 4


def source_file(directory: Path) -> Path:
    path = directory / "source"
    path.write_bytes(DATA)
    return path


def read(directory: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """All tensors as safetensors reads them."""
    found = {}
    for path in directory.glob("*.safetensors"):
        for name, view in safetensors.deserialize(path.read_bytes()):
            found[name] = (view["dtype"], tuple(view["shape"]), bytes(view["data"]))
    return found


@st.composite
def targets(draw: st.DrawFn) -> list[tuple[Target, bytes]]:
    """Targets of all kinds of source and dtype with the bytes that they must get.

    Ranges of `Path("source")` often adjoin, as the tensors of a layer do, and often repeat.
    """
    made = []
    at = 0
    for name in draw(st.lists(st.text(min_size=1, max_size=4), max_size=8, unique=True)):
        dtype = draw(st.sampled_from(["F32", "BF16", "U8", "F64", "F8_E4M3", "F4"]))
        shape = (*draw(st.lists(st.sampled_from([0, 2, 4]), max_size=2)), 2)
        size = byte_size(dtype, shape)
        start = draw(st.sampled_from([at, at, at, 0, 5])) % (len(DATA) - size)
        at = start + size
        data = DATA[start:at]
        match draw(st.sampled_from(["range", "range", "range", "zeros", "made"])):
            case "range":
                made.append((Target(name, dtype, shape, Range(Path("source"), start, at)), data))
            case "zeros":
                made.append((Target(name, dtype, shape, Zeros()), bytes(size)))
            case _:
                chunks = Made(lambda data=data: (data[i : i + 3] for i in range(0, len(data), 3)))
                made.append((Target(name, dtype, shape, chunks), data))
    return made


@settings(deadline=None)
@given(targets(), st.sampled_from([None, 1, 16, 64, 10_000]))
def test_every_tensor_gets_its_bytes(
    wanted: list[tuple[Target, bytes]], shard_size: int | None
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        source = source_file(directory)
        placed = [
            Target(t.name, t.dtype, t.shape, Range(source, t.source.start, t.source.end))
            if isinstance(t.source, Range)
            else t
            for t, _ in wanted
        ]
        counts: list[int] = []
        written = write_weights(directory, placed, shard_size=shard_size, progress=counts.append)
        expected = {t.name: (t.dtype, t.shape, data) for t, data in wanted}
        assert read(directory) == expected
        assert sum(counts) == sum(len(data) for _, data in wanted)
        for tensor in written.values():
            assert tensor.start % max(BITS[tensor.dtype] // 8, 1) == 0
        (directory / "config.json").write_text("{}")
        assert open_checkpoint(directory).tensors == written
        assert not list(directory.glob("*.part"))


def test_frameworks_read_it(tmp_path: Path) -> None:
    data = np.arange(6, dtype=np.float32)
    tensors = [
        Target("a", "U8", (3,), Made(lambda: iter([b"abc"]))),
        Target("b", "F32", (2, 3), Made(lambda: iter([memoryview(data)]))),
    ]
    write_weights(tmp_path, tensors)
    for framework in ("np", "pt"):
        with safetensors.safe_open(tmp_path / SINGLE, framework=framework) as file:
            assert file.metadata() == {"format": "pt"}
            assert file.get_tensor("b").tolist() == [[0, 1, 2], [3, 4, 5]]
            assert file.get_tensor("a").tolist() == list(b"abc")


def test_an_unchanged_checkpoint_is_written_byte_for_byte(tmp_path: Path) -> None:
    arrays = {
        f"layers.{n}.{k}": np.full((n + 1, 3), n, t)
        for n in range(12)
        for k, t in (("w", np.float32), ("n", np.float16), ("i", np.int64))
    }
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "config.json").write_text("{}")
    safetensors.numpy.save_file(arrays, tmp_path / "in" / SINGLE, {"format": "pt"})
    found = open_checkpoint(tmp_path / "in")
    copy = [
        Target(t.name, t.dtype, t.shape, Range(found.path(t.shard), t.start, t.end))
        for t in found.tensors.values()
    ]
    write_weights(tmp_path / "out", copy, metadata=found.metadata)
    assert (tmp_path / "out" / SINGLE).read_bytes() == (tmp_path / "in" / SINGLE).read_bytes()


@pytest.mark.parametrize("offset", [1000, 1001])
def test_large_pieces_keep_their_place_in_a_page(tmp_path: Path, offset: int) -> None:
    source = tmp_path / "source"
    data = np.random.default_rng(0).bytes(12 << 20)
    source.write_bytes(bytes(offset) + data)
    targets = [
        Target("small", "F32", (1000,), Zeros()),
        Target("large", "F32", (3 << 20,), Range(source, offset, offset + len(data))),
    ]
    written = write_weights(tmp_path, targets)
    assert read(tmp_path)["large"][2] == data
    start = written["large"].start
    assert start % 8 == 0
    assert offset % 8 or (start - offset) % 4096 == 0


def test_shards_and_their_index(tmp_path: Path) -> None:
    tensors = [Target(name, "F32", (4,), Zeros()) for name in "abc"]
    write_weights(tmp_path, tensors, shard_size=32, metadata={"made by": "test"})
    index = json.loads((tmp_path / INDEX).read_text())
    assert index == {
        "metadata": {"total_parameters": 12, "total_size": 48},
        "weight_map": {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00001-of-00002.safetensors",
            "c": "model-00002-of-00002.safetensors",
        },
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        INDEX,
    ]
    with safetensors.safe_open(tmp_path / index["weight_map"]["c"], framework="np") as file:
        assert file.metadata() == {"format": "pt", "made by": "test"}


def chunks(*data: bytes) -> Made:
    return Made(lambda: iter(data))


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ([Target("a", "U8", (1,), Zeros())] * 2, "'a' cannot be written twice"),
        ([Target("__metadata__", "U8", (1,), Zeros())], "'__metadata__'"),
        ([Target("a", "U8", (9,), Range(Path("s"), 0, 8))], "takes 9 bytes, its source in s has 8"),
        ([Target("a", "U8", (4,), chunks(b"abc"))], "Made 3 bytes or more for a, which takes 4"),
        ([Target("a", "U8", (4,), chunks(b"abc", b"de"))], "Made 5 bytes or more for a"),
        ([Target("a", "U8", (4,), Range(Path("/nowhere/s"), 0, 4))], "/nowhere/s does not exist"),
        ([Target("a", "U8", (2**60,), Zeros())], "the disk has"),
        ([Target("x" * 10**8, "U8", (1,), Zeros())], "header of"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, tensors: list[Target], problem: str) -> None:
    with pytest.raises(CheckpointError) as error:
        write_weights(tmp_path, tensors)
    assert problem in error.value.message
    assert not list(tmp_path.glob("*.safetensors"))


def test_unknown_types_are_no_targets() -> None:
    with pytest.raises(ValueError, match="unknown"):
        Target("a", "F128", (1,), Zeros())


def test_a_source_that_shrank(tmp_path: Path) -> None:
    source = source_file(tmp_path)
    target = Target("a", "U8", (len(DATA) + 8,), Range(source, 0, len(DATA) + 8))
    with pytest.raises(CheckpointError, match="It changed since"):
        write_weights(tmp_path, [target])


def in_a_process(code: str, *arguments: Any) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from restack.surgery.write import *
from restack.errors import CheckpointError
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # as a full quota would
try:
    write_weights(Path(sys.argv[1]), [Target("a", "U8", (200_000,), Zeros())])
except CheckpointError as error:
    print(error)
"""
    assert "too large" in in_a_process(code, tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="tells no peak memory")
def test_memory_does_not_grow_with_the_weights(tmp_path: Path) -> None:
    size = 200_000_000
    with open(tmp_path / "source", "wb") as file:
        file.truncate(size)
    # VmHWM, for ru_maxrss begins with what the parent process had
    code = """
import sys
from pathlib import Path
from restack.surgery.write import *
directory, size = Path(sys.argv[1]), int(sys.argv[2])
made = Made(lambda: (bytes(1 << 20) for _ in range(20)))
write_weights(directory, [
    Target("a", "U8", (size,), Range(directory / "source", 0, size)),
    Target("b", "U8", (20 << 20,), made),
    Target("c", "U8", (50_000_000,), Zeros()),
])
peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
print(int(peak) // 1024, *sys.modules.keys() & {"numpy"})
"""
    assert int(in_a_process(code, tmp_path, size)) < 40  # megabytes; and no numpy
