"""Batches in pieces, where memory does not do for the whole."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from restack.errors import DataError
from restack.observe.running import Batch

Result = TypeVar("Result")


class TooLarge(Exception):
    """A batch needs more memory than it may take; it would do in so many pieces."""

    def __init__(self, pieces: int) -> None:
        super().__init__(pieces)
        self.pieces = pieces


class Pieces:
    """Runs batches, in pieces of rows where they do not fit; it remembers what did not."""

    def __init__(self) -> None:
        self.most: int | None = None  # cells of input of which it is known that they do not fit

    def run(self, batch: Batch, work: Callable[[Batch], Result]) -> Iterator[tuple[Batch, Result]]:
        """The batch, or pieces of it, with what `work` gave for each.

        Work that ran out of memory is done again on halves, and stderr says so.
        """
        waiting = [batch]
        while waiting:
            piece = waiting.pop()
            if self.most is not None and _cells(piece) >= self.most and (rows_of(piece) or 1) > 1:
                waiting += reversed(_split(piece, 2))
                continue
            try:
                done = work(piece)
            except TooLarge as error:
                count = error.pieces
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                count = 0
            else:
                yield piece, done
                continue
            # not in the handler: the traceback would keep what filled the memory
            waiting += reversed(_split(piece, count) if count else self._halves(piece))

    def _halves(self, batch: Batch) -> list[Batch]:
        rows = rows_of(batch)
        if rows is None or rows < 2:
            raise DataError(
                "out of memory with a single row"
                if rows
                else "out of memory, and the batch "
                "cannot be halved: its tensors are not all of one number of rows",
                hint="shorten the texts (--max-length), or take a smaller dtype or model",
            )
        self.most = _cells(batch)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        print(f"out of memory with {rows} rows; going on with {-(-rows // 2)}", file=sys.stderr)
        return _split(batch, 2)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not do."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return any(part in text for part in ("out of memory", "can't allocate", "not enough memory"))


def rows_of(batch: Batch) -> int | None:
    """The number of rows, if all tensors of a batch have the same."""
    counts = {len(value) for value in batch.values() if _has_rows(value)}
    return counts.pop() if len(counts) == 1 else None


def take_rows(batch: Batch, rows: Sequence[int] | slice) -> dict[str, Any]:
    """Some rows of a batch."""
    return {name: v[rows] if _has_rows(v) else v for name, v in batch.items()}


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray) and value.ndim > 0


def _cells(batch: Batch) -> int:
    """The size of the largest tensor, as a measure of what a batch takes."""
    return max((value.numel() for value in batch.values() if isinstance(value, Tensor)), default=0)


def _split(batch: Batch, pieces: int) -> list[Batch]:
    rows = rows_of(batch) or 1
    size = -(-rows // pieces)
    return [take_rows(batch, slice(i, i + size)) for i in range(0, rows, size)]
