from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restack.data.batches import (
    batches,
    collate,
    padded,
    restore,
    rows_by_tokens,
    rows_for_epoch,
)
from restack.data.tokens import Tokens, tokenize
from restack.errors import DataError

lengths_of_texts = st.lists(st.integers(1, 40), min_size=1, max_size=200).map(np.array)


def width(lengths: np.ndarray, rows: np.ndarray, multiple: int = 1) -> int:
    return padded(int(lengths[rows].max()), multiple, None)


@given(lengths_of_texts, st.integers(1, 300), st.sampled_from([1, 8]))
def test_batches_by_tokens_hold_every_row_once_and_keep_the_budget(
    lengths: np.ndarray, budget: int, multiple: int
) -> None:
    found = rows_by_tokens(lengths, budget, multiple=multiple)
    assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
    assert all(len(r) == 1 or len(r) * width(lengths, r, multiple) <= budget for r in found)
    longest = [lengths[rows].max() for rows in found]
    assert longest == sorted(longest, reverse=True)


def test_batches_by_tokens_of_hand_made_lengths() -> None:
    found = rows_by_tokens(np.array([2, 5, 3, 3, 9]), 8)
    assert [rows.tolist() for rows in found] == [[4], [1], [2, 3], [0]]


@given(
    lengths_of_texts,
    st.integers(0, 5),
    st.sampled_from([{"batch_size": 7}, {"batch_tokens": 64}]),
    st.sampled_from([1, 16, 2048]),
)
def test_an_epoch_holds_every_row_once_and_is_a_function_of_seed_and_epoch(
    lengths: np.ndarray, seed: int, size: dict[str, Any], window: int
) -> None:
    found = rows_for_epoch(lengths, seed=seed, epoch=3, window=window, **size)
    assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
    again = rows_for_epoch(lengths, seed=seed, epoch=3, window=window, **size)
    assert [r.tolist() for r in found] == [r.tolist() for r in again]
    if "batch_size" in size:
        assert sum(len(rows) != 7 for rows in found) <= 1
        assert len(found) == -(-len(lengths) // 7)
    else:
        assert all(len(r) == 1 or len(r) * width(lengths, r) <= 64 for r in found)


def test_epochs_and_seeds_differ() -> None:
    lengths = np.full(100, 5)
    lists = [
        np.concatenate(rows_for_epoch(lengths, seed=s, epoch=e, batch_size=10)).tolist()
        for s, e in ((0, 0), (0, 1), (1, 0), (1, 1))
    ]
    assert all(a != b for i, a in enumerate(lists) for b in lists[:i])


def test_the_order_of_an_epoch_never_changes() -> None:
    """A checkpoint of one version is resumed by another: the order must be the same."""
    lengths = np.array([3, 1, 4, 1, 5, 9, 2, 6])
    found = rows_for_epoch(lengths, seed=1, epoch=2, batch_size=3)
    assert [rows.tolist() for rows in found] == [[2, 0, 6], [3, 1], [5, 7, 4]]


def test_windows_save_padding_and_batches_come_in_no_order_of_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 4000)

    def places(window: int) -> list[int]:
        found = rows_for_epoch(lengths, seed=0, epoch=0, batch_size=32, window=window)
        return [len(rows) * width(lengths, rows) for rows in found]

    assert sum(places(2048)) < 1.05 * lengths.sum() < 1.5 * lengths.sum() < sum(places(1))
    in_order = places(2048)
    assert abs(np.corrcoef(in_order, np.arange(len(in_order)))[0, 1]) < 0.3


def test_what_cannot_be_cut_into_batches() -> None:
    lengths = np.array([1, 2])
    with pytest.raises(DataError, match="either"):
        rows_for_epoch(lengths, seed=0, epoch=0)
    with pytest.raises(DataError, match="either"):
        rows_for_epoch(lengths, seed=0, epoch=0, batch_size=1, batch_tokens=1)
    with pytest.raises(DataError, match="batch_size is 0"):
        rows_for_epoch(lengths, seed=0, epoch=0, batch_size=0)
    with pytest.raises(DataError, match="batch_tokens is 0"):
        rows_by_tokens(lengths, 0)


def test_padding_goes_to_a_multiple_but_not_beyond_the_positions() -> None:
    assert [padded(n, 8, None) for n in (1, 8, 9)] == [8, 8, 16]
    assert padded(249, 8, 250) == 250
    assert padded(5, 1, None) == 5


TEXTS = ["the cat sat on the mat", "a dog", "the dog ran"]


def test_collate_equals_the_padding_of_the_tokenizer(tokenizer: Any) -> None:
    tokens = tokenize(tokenizer, TEXTS)
    batch = collate(tokens, [2, 0], multiple=8)
    theirs = tokenizer(
        [TEXTS[2], TEXTS[0]],
        padding=True,
        pad_to_multiple_of=8,
        return_tensors="pt",
        return_special_tokens_mask=True,
    )
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        assert torch.equal(batch[name], theirs[name]), name
    assert torch.equal(batch["special_tokens_mask"], theirs["special_tokens_mask"] == 1)
    assert batch["indices"].tolist() == [2, 0]


def test_padding_in_front(tokenizer: Any) -> None:
    tokens = replace(tokenize(tokenizer, TEXTS), pad_left=True, pad_type=3)
    batch = collate(tokens, [1, 2])
    assert batch["attention_mask"].tolist() == [[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]]
    assert batch["token_type_ids"][0].tolist() == [3, 0, 0, 0, 0]
    assert batch["input_ids"][0, 1:].tolist() == tokens.row(1).tolist()


def test_no_padding_token(bare_tokenizer: Any) -> None:
    tokens = tokenize(bare_tokenizer, TEXTS)
    with pytest.raises(DataError, match="no padding token"):
        collate(tokens, [0, 1])
    assert collate(tokens, [0, 1], pad_id=4)["input_ids"][1].tolist()[2:] == [4] * 4
    assert "token_type_ids" not in collate(tokens, [1])


def test_a_text_without_tokens_cannot_be_run(bare_tokenizer: Any) -> None:
    tokens = tokenize(bare_tokenizer, ["the cat", ""])
    with pytest.raises(DataError, match="text 1 has no tokens"):
        list(batches(tokens, 100, pad_id=0))


def test_outputs_come_back_in_the_order_of_the_texts(tokenizer: Any) -> None:
    texts = [" ".join(["cat"] * (n % 5 + 1)) for n in range(23)]
    tokens = tokenize(tokenizer, texts, max_length=7)
    outputs, indices = [], []
    for batch in batches(tokens, 20, multiple=2):
        assert batch["input_ids"].shape[1] <= 7
        outputs.append((batch["attention_mask"] * ~batch["special_tokens_mask"]).sum(1))
        indices.append(batch["indices"])
    assert len(outputs) > 3
    assert restore(outputs, indices).tolist() == [n % 5 + 1 for n in range(23)]


def test_collate_takes_blocks_of_one_length_without_a_padding_token() -> None:
    tokens = Tokens(np.arange(6), np.array([0, 3, 6]), np.zeros(6, dtype=bool), None)
    assert collate(tokens, [1, 0])["input_ids"].tolist() == [[3, 4, 5], [0, 1, 2]]
