"""Batches in pieces of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from restack.errors import DataError
from restack.observe.splitting import Pieces, TooLarge, out_of_memory, rows_of, take_rows


def batch(rows: int) -> dict[str, Any]:
    return {"input_ids": torch.arange(rows * 3).view(rows, 3), "name": "a", "scale": 2.0}


def test_rows() -> None:
    assert rows_of(batch(4)) == 4
    assert rows_of({**batch(4), "position_ids": torch.zeros(3, 4, 3)}) is None
    taken = take_rows(batch(4), [0, 3])
    assert taken["input_ids"].tolist() == [[0, 1, 2], [9, 10, 11]]
    assert (taken["name"], taken["scale"]) == ("a", 2.0)


def test_pieces_come_in_order() -> None:
    def work(piece: Any) -> list[int]:
        if len(piece["input_ids"]) > 3:
            raise TooLarge(3)
        return piece["input_ids"][:, 0].tolist()

    done = [rows for _, rows in Pieces().run(batch(7), work)]
    assert done == [[0, 3, 6], [9, 12, 15], [18]]


def test_what_did_not_fit_is_not_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    tried: list[int] = []

    def work(piece: Any) -> None:
        tried.append(len(piece["input_ids"]))
        if tried[-1] > 4:
            raise RuntimeError("CUDA error: out of memory")

    pieces = Pieces()
    for rows in (8, 6, 4):
        list(pieces.run(batch(rows), work))
    assert tried == [8, 4, 4, 6, 3, 3, 4]
    assert capsys.readouterr().err.splitlines() == [
        "out of memory with 8 rows; going on with 4",
        "out of memory with 6 rows; going on with 3",
    ]


def test_a_batch_that_cannot_be_halved() -> None:
    def work(piece: Any) -> None:
        raise torch.OutOfMemoryError

    with pytest.raises(DataError, match="single row"):
        list(Pieces().run(batch(1), work))
    with pytest.raises(DataError, match="not all of one number of rows"):
        list(Pieces().run({**batch(2), "position_ids": torch.zeros(3, 2)}, work))


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("x"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 5 GB)"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
    ],
)
def test_which_errors_are_about_memory(error: BaseException, is_memory: bool) -> None:
    assert out_of_memory(error) is is_memory
