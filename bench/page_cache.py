"""A known state of disk and page cache before each measurement, without special rights."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_BLOCK = 4 << 20


def settle(inputs: Iterable[Path], *, warm: bool) -> None:
    """Let the disk come to rest; then have the files below `inputs` in the cache, or out of it."""
    os.sync()  # what the one before left to be written is not for the next to wait for
    for path in _files(inputs):
        if warm:
            _read(path)
        elif hasattr(os, "posix_fadvise"):
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def room_for(count: int) -> bool:
    """Whether that many bytes would stay in the cache."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return count < 2 << 30
    values = dict(line.split(":", 1) for line in lines)
    return count < 0.6 * int(values["MemAvailable"].split()[0]) * 1024


def _files(inputs: Iterable[Path]) -> Iterator[Path]:
    for directory in inputs:
        yield from sorted(path for path in directory.rglob("*") if path.is_file())


def _read(path: Path) -> None:
    buffer = bytearray(_BLOCK)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
