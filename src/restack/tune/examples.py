"""A split as tokens and targets, and the batches that a model is trained and scored on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig

from restack.data.batches import collate, rows_by_tokens, rows_for_epoch
from restack.data.metrics import label_array
from restack.data.spans import Windows, windows
from restack.data.splits import Split
from restack.data.tokens import Tokens, blocks, length_limit, tokenize
from restack.errors import DataError
from restack.tune.masking import IGNORED, Masking
from restack.tune.recipe import Recipe

_LONGEST_WINDOW = 384
_LONGEST_BLOCK = 512
_STRIDE = Recipe().stride


@dataclass(frozen=True, slots=True)
class Batch:
    """What a model reads, what it should answer, and how many answers there are."""

    inputs: dict[str, Tensor]
    labels: Tensor
    """By kind: codes; values; rows x labels; first and last token (rows x 2); tokens, -100 where
    nothing is asked."""
    count: int
    """What a mean loss is the mean of: examples, or tokens that are asked for."""
    rows: np.ndarray

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        if device.type == "cpu":
            return self
        inputs = {name: t.to(device, non_blocking=True) for name, t in self.inputs.items()}
        return replace(self, inputs=inputs, labels=self.labels.to(device, non_blocking=True))


@dataclass(frozen=True, slots=True)
class Examples:
    """A tokenised split. Its rows are texts, windows of contexts, or blocks of running text."""

    split: Split
    tokens: Tokens
    pad_id: int
    multiple: int = 1
    targets: np.ndarray | None = None
    windows: Windows | None = None
    masking: Masking | None = None
    packing: bool = False
    types: bool = True
    """Whether the model reads token types."""

    def __len__(self) -> int:
        return len(self.tokens)

    def epoch(self, recipe: Recipe, epoch: int) -> list[np.ndarray]:
        """The rows of each update of one epoch of training, longest first within an update.

        They depend on how much one update takes in, and not on how that is cut into batches.
        """
        size, places = recipe.batch_size, recipe.batch_tokens
        return rows_for_epoch(
            self.tokens.lengths,
            seed=recipe.seed,
            epoch=epoch,
            batch_size=None if size is None else size * recipe.accumulate,
            batch_tokens=None if places is None else places * recipe.accumulate,
            window=recipe.window,
            multiple=self.multiple,
            limit=self.tokens.max_length,
        )

    def in_order(self, batch_tokens: int) -> list[np.ndarray]:
        """The rows of each batch of one pass without training, longest first."""
        return rows_by_tokens(
            self.tokens.lengths, batch_tokens, multiple=self.multiple, limit=self.tokens.max_length
        )

    def batch(self, rows: np.ndarray, *, epoch: int = 0) -> Batch:
        """One batch. What masked language modelling hides depends on the epoch and the row."""
        if self.packing:
            return self._packed(rows)
        made = collate(self.tokens, rows, multiple=self.multiple, pad_id=self.pad_id)
        special = made.pop("special_tokens_mask")
        del made["indices"]
        if not self.types:
            made.pop("token_type_ids", None)
        labels = self._labels(rows, made, special)
        if self.masking is not None:
            made["input_ids"], labels = self.masking.hide(made["input_ids"], special, rows, epoch)
        count = len(rows)
        if self.split.task.kind in ("lm", "mlm"):
            asked = labels if self.split.task.kind == "mlm" else labels[:, 1:]
            count = int((asked != IGNORED).sum())
        return Batch(made, labels, count, rows)

    def _labels(self, rows: np.ndarray, made: dict[str, Tensor], special: Tensor) -> Tensor:
        if self.windows is not None:
            # places count from the first real token, which is not the first where padding leads
            lead = np.zeros(len(rows), dtype=np.int64)
            if self.tokens.pad_left:
                lead = made["input_ids"].shape[1] - self.tokens.lengths[rows]
            ends = (self.windows.start[rows] + lead, self.windows.end[rows] + lead)
            return torch.from_numpy(np.stack(ends, axis=1).astype(np.int64))
        if self.targets is not None:
            return torch.from_numpy(self.targets[rows])
        return made["input_ids"].masked_fill(made["attention_mask"] == 0, IGNORED)

    def _packed(self, rows: np.ndarray) -> Batch:
        """Texts end to end in one row, each with positions from 0, which keep them apart."""
        ids = np.concatenate([self.tokens.row(row) for row in rows]).astype(np.int64)
        lengths = self.tokens.lengths[rows]
        starts = np.cumsum(lengths) - lengths
        labels = ids.copy()
        labels[starts] = IGNORED  # no text foretells the next one
        places = np.arange(len(ids)) - np.repeat(starts, lengths)
        inputs = {"input_ids": torch.from_numpy(ids)[None]}
        inputs["position_ids"] = torch.from_numpy(places)[None]
        return Batch(inputs, torch.from_numpy(labels)[None], len(ids) - len(rows), rows)

    def names(self, rows: Sequence[int] | np.ndarray) -> list[str | int]:
        """The ids of the examples that rows are of; of blocks, their numbers."""
        if self.windows is not None:
            rows = self.windows.example[np.asarray(rows)]
        if len(self.tokens) != len(self.split) and self.windows is None:
            return [int(row) for row in rows]
        return [self.split.ids[int(row)] for row in rows]


def prepare(
    split: Split,
    tokenizer: Any,
    config: PreTrainedConfig,
    recipe: Recipe,
    *,
    vocab_size: int | None = None,
    multiple: int = 1,
    types: bool = True,
) -> Examples:
    """Tokenise a split for a model; kept in the cache by content.

    Texts are cut at the recipe's `max_length`, or at what the model has positions for.
    """
    kind, pad_id = split.task.kind, padding_id(config, tokenizer)
    if split.lacks_labels:  # a teacher answers; what stands here is not looked at
        nothing = {"classification": 0, "regression": 0.0, "multilabel": (), "span": _NO_ANSWER}
        split = replace(split, labels=[nothing[kind]] * len(split))
    limit = length_limit(config, tokenizer, recipe.max_length)
    made = Examples(split, _NOTHING, pad_id, multiple, types=types)
    if kind == "span":
        longest = min(limit or _LONGEST_WINDOW, recipe.max_length or _LONGEST_WINDOW)
        stride = recipe.stride
        if stride == _STRIDE and longest < 2 * stride:  # as much as in windows of 384
            stride = longest // 3
        cut = windows(tokenizer, split, max_length=longest, stride=stride, vocab_size=vocab_size)
        return replace(made, tokens=cut.tokens, windows=cut)
    if kind in ("lm", "mlm"):
        tokens = _running(split, tokenizer, recipe, limit, vocab_size)
        masking = Masking.of(tokenizer, recipe, vocab_size) if kind == "mlm" else None
        packing = recipe.packing and kind == "lm"
        return replace(made, tokens=tokens, masking=masking, packing=packing)
    tokens = tokenize(tokenizer, split.texts, max_length=limit, vocab_size=vocab_size)
    targets = label_array(split.task, split.labels)
    if kind != "classification":
        targets = targets.astype(np.float32)
    return replace(made, tokens=tokens, targets=targets)


def _running(
    split: Split, tokenizer: Any, recipe: Recipe, limit: int | None, vocab_size: int | None
) -> Tokens:
    """Texts for language modelling: as blocks without padding, or one by one."""
    if not isinstance(split.texts[0], str):
        raise DataError(
            f"{split} has pairs of texts, and language modelling reads one text",
            hint="Name one column.",
        )
    if not recipe.blocks:
        tokens = tokenize(tokenizer, split.texts, max_length=limit, vocab_size=vocab_size)
        if split.task.kind == "lm" and tokens.lengths.min() < 2:
            row = int(tokens.lengths.argmin())
            raise DataError(
                f"{split}, text {row}: one token alone foretells nothing",
                hint="Leave such texts out, or train on blocks of running text.",
            )
        return tokens
    tokens = tokenize(tokenizer, split.texts, vocab_size=vocab_size)
    longest = recipe.max_length or min(limit or _LONGEST_BLOCK, _LONGEST_BLOCK)
    return blocks(tokens, longest)


def padding_id(config: PreTrainedConfig, tokenizer: Any) -> int:
    """The id to pad with: that of the config, by which some heads find the last token."""
    told = (
        config.get_text_config().pad_token_id,
        tokenizer.pad_token_id,
        tokenizer.eos_token_id,
    )
    return next((int(i) for i in told if isinstance(i, int) and i >= 0), 0)


_NO_ANSWER: dict[str, list[Any]] = {"text": [], "answer_start": []}
_NOTHING = Tokens(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.bool_), None)
