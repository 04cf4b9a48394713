"""What masked language modelling hides: BERT's 80, 10 and 10 per cent, drawn by place.

Whether a token is hidden is a function of seed, epoch and its place in the data, and not of the
batch that it comes in, so that a run that was interrupted hides the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from restack.errors import DataError
from restack.tune.recipe import Recipe

IGNORED = -100
"""The label of a token that is not asked for."""


@dataclass(frozen=True, slots=True)
class Masking:
    """How tokens are hidden."""

    share: float
    mask_id: int
    vocab_size: int
    seed: int

    @classmethod
    def of(cls, tokenizer: Any, recipe: Recipe, vocab_size: int | None) -> Masking:
        """For a tokenizer, which must have a mask token."""
        if tokenizer.mask_token_id is None:
            raise DataError(
                "the tokenizer has no mask token, and masked language modelling needs one",
                hint="Use causal language modelling (lm) for this model.",
            )
        size = len(tokenizer) if vocab_size is None else min(vocab_size, len(tokenizer))
        return cls(recipe.mask, tokenizer.mask_token_id, size, recipe.seed)

    def hide(
        self, ids: Tensor, special: Tensor, rows: np.ndarray, epoch: int
    ) -> tuple[Tensor, Tensor]:
        """The ids as the model sees them, and the labels: the ids that it is asked for.

        Of the hidden tokens 80% become the mask token, 10% any token, and 10% stay.
        """
        places = rows[:, None].astype(np.uint64) * np.uint64(1 << 32) + np.arange(
            ids.shape[1], dtype=np.uint64
        )
        first = _uniform(places, self.seed, epoch, 0)
        asked = torch.from_numpy(first < self.share) & ~special
        how = torch.from_numpy(_uniform(places, self.seed, epoch, 1))
        other = torch.from_numpy(
            (_uniform(places, self.seed, epoch, 2) * self.vocab_size).astype(np.int64)
        )
        seen = torch.where(asked & (how < 0.8), self.mask_id, ids)
        seen = torch.where(asked & (how >= 0.9), other, seen)
        return seen, torch.where(asked, ids, IGNORED)


def _uniform(places: np.ndarray, seed: int, epoch: int, stream: int) -> np.ndarray:
    """A number in [0, 1) for each place, by splitmix64."""
    start = np.random.SeedSequence([seed, epoch, stream]).generate_state(1, np.uint64)[0]
    with np.errstate(over="ignore"):
        z = (places + start) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) / float(1 << 53)
