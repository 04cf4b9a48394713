"""Ways to copy: each gives the same bytes, and one takes over where another cannot."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from restack.errors import CheckpointError
from restack.surgery import copying

DATA = os.urandom(1_000_000)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").write_bytes(DATA)
    return tmp_path / "source"


def copied(source: Path, start: int, end: int) -> bytes:
    target = source.with_name("target")
    with open(target, "wb", buffering=0) as file:
        file.write(b"before")
        counts = list(copying.copy_range(source, start, end, file.fileno()))
    assert sum(counts) == end - start
    found = target.read_bytes()
    assert found[:6] == b"before"
    return found[6:]


def refuse(number: int) -> copying._Way:
    def way(*_: int) -> int:
        raise OSError(number, os.strerror(number))

    return way


@pytest.mark.parametrize("way", copying._WAYS)
@pytest.mark.parametrize(("start", "end"), [(0, len(DATA)), (7, 999_991), (5, 5), (999_999, 10**6)])
def test_each_way(
    source: Path, monkeypatch: pytest.MonkeyPatch, way: copying._Way, start: int, end: int
) -> None:
    monkeypatch.setattr(copying, "_WAYS", (way,))
    monkeypatch.setattr(copying, "PIECE", 65_537)  # several pieces, at odd places
    assert copied(source, start, end) == DATA[start:end]


@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP])
def test_the_next_way_takes_over(
    source: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(copying, "_WAYS", (refuse(number), copying._by_buffer))
    assert copied(source, 3, 700_000) == DATA[3:700_000]


def test_a_way_that_stops_at_nothing_is_followed_by_the_next(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_WAYS", (lambda *_: 0, copying._by_buffer))
    assert copied(source, 3, 700_000) == DATA[3:700_000]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_real_trouble_is_not_tried_again(
    source: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(copying, "_WAYS", (refuse(number), copying._by_buffer))
    with pytest.raises(OSError, match=os.strerror(number)):
        copied(source, 0, 10)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no second file system")
def test_between_file_systems(source: Path) -> None:
    other = Path(f"/dev/shm/restack-test-{os.getpid()}")
    try:
        with open(other, "wb", buffering=0) as file:
            list(copying.copy_range(source, 0, len(DATA), file.fileno()))
        assert other.read_bytes() == DATA
    finally:
        other.unlink()


def test_a_source_that_shrank(source: Path) -> None:
    with pytest.raises(CheckpointError, match="ends at byte 1000000, expected 1000001"):
        copied(source, 10, len(DATA) + 1)


def test_zeros_are_bytes_and_no_hole(tmp_path: Path) -> None:
    with open(tmp_path / "f", "wb", buffering=0) as file:
        counts = list(copying.write_zeros(1_000_001, file.fileno()))
        os.fsync(file.fileno())
    assert sum(counts) == 1_000_001
    assert (tmp_path / "f").read_bytes() == bytes(1_000_001)
    assert (tmp_path / "f").stat().st_blocks * 512 >= 1_000_001
