"""Moving bytes into a file: inside the kernel where it can, always in bounded pieces."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from restack.anatomy.files import open_regular
from restack.errors import CheckpointError

PIECE = 8 << 20  # between two looks at signals and progress
_BUFFER = 256 << 10  # fits the processor's cache: half the time of 1 MiB
_ZEROS = bytes(_BUFFER)

# What a system answers when it cannot do this kind of copy between these two files at all
_TRY_ANOTHER_WAY = {
    errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.ENOTSOCK,
    errno.EPERM,
}  # fmt: skip


def copy_range(path: Path, start: int, end: int, target: int) -> Iterator[int]:
    """Write the bytes `[start, end)` of a file at the place of `target`; yields counts done."""
    ways = list(_WAYS)
    at = os.lseek(target, 0, os.SEEK_CUR)
    with open(open_regular(path), "rb", buffering=0) as file:
        source = file.fileno()
        if hasattr(os, "posix_fadvise"):  # read further ahead
            os.posix_fadvise(source, start, end - start, os.POSIX_FADV_SEQUENTIAL)
        while start < end:
            # Pieces end at multiples of their size in the target, which suits large folios
            wish = min(end - start, PIECE - at % PIECE)
            count = _attempt(ways[0], source, target, start, wish, len(ways) > 1)
            if count:
                start += count
                at += count
                yield count
            elif len(ways) > 1:
                del ways[0]
            else:
                raise CheckpointError(
                    f"{path} ends at byte {start}, expected {end}",
                    hint="It changed since its header was read: nothing else may write to it.",
                )


def write_zeros(count: int, target: int) -> Iterator[int]:
    """Write zeros, as bytes on the disk and not as a hole."""
    while count:
        done = os.write(target, _ZEROS[:count])
        count -= done
        yield done


def write_all(data: bytes | bytearray | memoryview, target: int) -> int:
    """Write all of `data`, which one `write` need not do."""
    rest = memoryview(data).cast("B")
    size = len(rest)
    while rest:
        rest = rest[os.write(target, rest[:PIECE]) :]
    return size


def start_writeback(target: int, start: int, count: int) -> None:
    """Ask the kernel to bring a range just written to the disk, without waiting for it.

    The disk then works while the next piece is copied, and the final fsync finds little to do.
    What DONTNEED is named after does not happen here: pages on their way to the disk stay cached.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(target, start, count, os.POSIX_FADV_DONTNEED)


_Way = Callable[[int, int, int, int], int]


def _attempt(way: _Way, source: int, target: int, start: int, count: int, others_left: bool) -> int:
    try:
        return way(source, target, start, count)
    except OSError as error:
        if others_left and error.errno in _TRY_ANOTHER_WAY:
            return 0
        raise


def _in_kernel(source: int, target: int, start: int, count: int) -> int:
    return os.copy_file_range(source, target, count, start)


def _by_sendfile(source: int, target: int, start: int, count: int) -> int:
    return os.sendfile(target, source, start, count)


def _by_buffer(source: int, target: int, start: int, count: int) -> int:
    return write_all(os.pread(source, min(count, _BUFFER), start), target)


_WAYS: tuple[_Way, ...] = (
    *((_in_kernel,) if hasattr(os, "copy_file_range") else ()),
    _by_sendfile,
    _by_buffer,
)
