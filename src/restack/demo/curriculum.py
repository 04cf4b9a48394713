"""What the demo models learn from: rows of token ids out of the demo language, and batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from restack.data import language
from restack.data.batches import rows_for_epoch
from restack.data.language.dice import Dice
from restack.data.tokens import Tokens, tokenize
from restack.demo.vocabulary import POSITIONS

_HOW_MANY = (1, 1, 1, 1, 2, 2, 3, 5)  # texts in a row: mostly one, some rows to the last position


def sample(count: int) -> Iterator[str]:
    """Texts to learn a tokenizer from."""
    return (language.text("train", number) for number in range(count))


def lessons(tokenizer: Any, count: int, split: str = "train") -> Tokens:
    """Rows of one text or several; for a model with token types, half of them are pairs."""
    rows = [_row(split, number) for number in range(count)]
    if "token_type_ids" not in tokenizer.model_input_names:
        end = tokenizer.eos_token
        return tokenize(tokenizer, [" ".join(row) + end for row in rows], max_length=POSITIONS)
    half = count // 2
    single = tokenize(tokenizer, [" ".join(row) for row in rows[:half]], max_length=POSITIONS)
    pairs = tokenize(tokenizer, [_cut(row) for row in rows[half:]], max_length=POSITIONS)
    return _joined(single, pairs)


def _row(split: str, number: int) -> list[str]:
    dice = Dice("row", split, number)
    numbers = range(number * max(_HOW_MANY), (number + 1) * max(_HOW_MANY))
    return [language.text(split, which) for which in numbers[: dice.pick(_HOW_MANY)]]


def _cut(row: list[str]) -> tuple[str, str]:
    """A pair: between two texts, else at the end of a sentence."""
    if len(row) > 1:
        return row[0], " ".join(row[1:])
    first, stop, rest = row[0].partition(". ")
    return first + stop.strip(), rest or first + "."


def _joined(first: Tokens, second: Tokens) -> Tokens:
    assert first.types is not None
    assert second.types is not None
    return Tokens(
        np.concatenate([first.ids, second.ids]),
        np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]]),
        np.concatenate([first.special, second.special]),
        np.concatenate([first.types, second.types]),
        first.cut + second.cut,
        first.max_length,
        first.pad_id,
    )


def schedule(tokens: Tokens, steps: int, batch_tokens: int, seed: int) -> list[np.ndarray]:
    """The rows of each step, no row twice before all have been once."""
    found: list[np.ndarray] = []
    epoch = 0
    while len(found) < steps:
        found += rows_for_epoch(
            tokens.lengths, seed=seed, epoch=epoch, batch_tokens=batch_tokens, multiple=8
        )
        epoch += 1
    return found[:steps]
