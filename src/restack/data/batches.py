"""Batches of texts of like length: which texts go together, and their padded tensors.

The lists of rows are pure functions of the lengths (and of seed and epoch), so that a run that
was interrupted finds its place again by counting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from restack.data.tokens import Tokens
from restack.errors import DataError

if TYPE_CHECKING:
    import torch

Rows = np.ndarray  # places of texts in their Tokens


def rows_by_tokens(
    lengths: np.ndarray, batch_tokens: int, *, multiple: int = 1, limit: int | None = None
) -> list[Rows]:
    """All rows, longest first, in batches of at most `batch_tokens` places with padding.

    The longest come first so that a lack of memory shows at once. A row that is longer than
    `batch_tokens` is a batch of its own.
    """
    if batch_tokens < 1:
        raise DataError(f"batch_tokens is {batch_tokens}", hint="Give 1 or more.")
    order = np.argsort(-lengths, kind="stable")
    found, start = [], 0
    while start < len(order):
        width = padded(int(lengths[order[start]]), multiple, limit)
        count = max(1, batch_tokens // max(1, width))
        found.append(order[start : start + count])
        start += count
    return found


def rows_for_epoch(
    lengths: np.ndarray,
    *,
    seed: int,
    epoch: int,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    window: int = 2048,
    multiple: int = 1,
    limit: int | None = None,
) -> list[Rows]:
    """All rows in random batches of like length, for one epoch of training.

    The rows are shuffled, sorted by length within windows of so many rows, cut into batches of
    `batch_size` rows or at most `batch_tokens` places, and the batches are shuffled. With
    `window=1` the order is random throughout.
    """
    if (batch_size is None) == (batch_tokens is None):
        raise DataError("give either batch_size or batch_tokens")
    if batch_size is not None:
        if batch_size < 1:
            raise DataError(f"batch_size is {batch_size}", hint="Give 1 or more.")
        window = -(-window // batch_size) * batch_size  # so that only the last batch can be short
    random = np.random.PCG64([seed, epoch])
    order = _shuffled(len(lengths), random)
    found: list[Rows] = []
    for start in range(0, len(order), window):
        rows = order[start : start + window]
        if batch_size is None:
            assert batch_tokens is not None
            within = rows_by_tokens(lengths[rows], batch_tokens, multiple=multiple, limit=limit)
            found += [rows[batch] for batch in within]
        else:
            rows = rows[np.argsort(-lengths[rows], kind="stable")]
            found += [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
    return [found[i] for i in _shuffled(len(found), random)]


def _shuffled(count: int, random: np.random.PCG64) -> np.ndarray:
    # numpy promises to keep the raw numbers of a generator, but not those of permutation()
    return np.argsort(random.random_raw(count), kind="stable")


def padded(length: int, multiple: int, limit: int | None) -> int:
    """The next multiple, but not beyond the limit (a model may have no position there)."""
    up = -(-length // multiple) * multiple
    return up if limit is None else max(length, min(up, limit))


def collate(
    tokens: Tokens, rows: Rows | Sequence[int], *, multiple: int = 1, pad_id: int | None = None
) -> dict[str, torch.Tensor]:
    """The padded tensors of some rows.

    `input_ids` and `attention_mask`, `token_type_ids` where the model reads them, and two that
    are not for the model: `special_tokens_mask` (bool, True at special tokens and padding) and
    `indices`, the rows.

    `pad_id` stands in for a padding token where the tokenizer has none.
    """
    import torch

    rows = np.asarray(rows)
    starts = tokens.offsets[rows]
    lengths = tokens.offsets[rows + 1] - starts
    if not lengths.all():
        raise DataError(
            f"text {int(rows[lengths == 0][0])} has no tokens and cannot be run",
            hint="Leave out empty texts.",
        )
    width = padded(int(lengths.max()), multiple, tokens.max_length)
    places = np.arange(width)
    mask = places < lengths[:, None]
    if tokens.pad_left:
        mask = mask[:, ::-1].copy()
    flat = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())

    def spread(values: np.ndarray, fill: int, dtype: type) -> torch.Tensor:
        out = np.full(mask.shape, fill, dtype=dtype)
        out[mask] = values[flat]
        return torch.from_numpy(out)

    pad = tokens.pad_id if pad_id is None else pad_id
    if pad is None:
        if not mask.all():
            raise DataError(
                "the tokenizer has no padding token, and texts of unequal length need one",
                hint="Give pad_id, such as the id of its end-of-text token.",
            )
        pad = 0
    batch = {
        "input_ids": spread(tokens.ids, pad, np.int64),
        "attention_mask": torch.from_numpy(mask.astype(np.int64)),
    }
    if tokens.types is not None:
        batch["token_type_ids"] = spread(tokens.types, tokens.pad_type, np.int64)
    batch["special_tokens_mask"] = spread(tokens.special, True, np.bool_)
    batch["indices"] = torch.from_numpy(rows.astype(np.int64))
    return batch


def batches(
    tokens: Tokens, batch_tokens: int, *, multiple: int = 1, pad_id: int | None = None
) -> Iterator[dict[str, torch.Tensor]]:
    """Go over all texts once, longest first; `restore` undoes the order."""
    found = rows_by_tokens(tokens.lengths, batch_tokens, multiple=multiple, limit=tokens.max_length)
    for rows in found:
        yield collate(tokens, rows, multiple=multiple, pad_id=pad_id)


def restore(outputs: Sequence[torch.Tensor], indices: Sequence[torch.Tensor]) -> torch.Tensor:
    """Outputs of batches, one row per text, in the order of the texts."""
    import torch

    joined = torch.cat(list(outputs))
    restored = torch.empty_like(joined)
    restored[torch.cat(list(indices)).to(joined.device)] = joined
    return restored
