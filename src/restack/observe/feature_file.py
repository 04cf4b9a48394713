"""A mapped file that comes about row after row, and goes on where its making was interrupted."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from restack.errors import DataError

try:
    import fcntl
except ImportError:  # Windows: two processes that make one file at once get in each other's way
    fcntl = None  # type: ignore[assignment]

Progress = Callable[[str, int, int, float], None]
"""Is told what is being done, how much of how much, and how much a second."""


def read(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """The kept file, mapped; None if there is none or it is damaged."""
    try:
        # copies on writing, as torch warns of arrays that it cannot write to
        values = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return values if values.shape[:2] == shape else None


def write(
    path: Path,
    shape: tuple[int, int],
    dtype: np.dtype,
    blocks: Callable[[int], Iterable[np.ndarray]],
    progress: Progress | None,
) -> int:
    """Make the file, or the rest of it if a part is there; give the number of rows that were run.

    Rows only ever come behind each other, so the size of the part tells how many there are.
    """
    part = path.with_suffix(".part")
    begun = time.perf_counter()
    with part.open("a+b") as file:
        first = at = _kept_rows(file, shape, dtype)
        for block in blocks(first):
            if not at:
                whole = (shape[0], *block.shape[1:])
                header = {"descr": dtype.str, "fortran_order": False, "shape": whole}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(_stored(block, dtype).data)
            at += len(block)
            if progress is not None:
                pace = (at - first) / (time.perf_counter() - begun)
                progress("features", at, shape[0], pace)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    return shape[0] - first


def _kept_rows(file: BinaryIO, shape: tuple[int, int], dtype: np.dtype) -> int:
    """How many whole rows a part holds; what is behind them, or no such part, is cut off."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    rows = end = 0
    with contextlib.suppress(ValueError, EOFError):
        np.lib.format.read_magic(file)
        full, _, kind = np.lib.format.read_array_header_1_0(file)
        if full[:2] == shape and kind == dtype:
            row = dtype.itemsize * full[1] * full[2]
            rows = (size - file.tell()) // row
            end = file.tell() + rows * row if rows else 0
    file.truncate(end)
    file.seek(end)
    return rows


def _stored(block: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype == np.float16 and (largest := np.abs(block).max(axis=(0, 2))).max() > 65504:
        layer = int(largest.argmax())
        raise DataError(
            f"features of layer {layer} (0 = embeddings) go up to {largest.max():.3g}, "
            "which float16 cannot hold",
            hint="Keep them in float32.",
        )
    return np.ascontiguousarray(block, dtype=dtype)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until no other process makes this file; the disk's refusals become named errors."""
    lock = path.with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)  # the system lets go of it whatever happens
            yield
            # whoever still waits will find the finished file, and needs no lock
            lock.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"features cannot be kept in {path.parent}: {error.strerror or error}",
            hint="Name a directory with room in RESTACK_CACHE, or keep them in float16.",
        ) from error
