"""One vector for each text at each layer, from one forward pass, in a mapped file.

The file lies in the cache, under a key of all that decides about it: weights, tokens, pooling and
number format. A pass that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from restack.anatomy.anatomy import Stack
from restack.anatomy.live import config_json
from restack.anatomy.models import pick
from restack.data.batches import collate
from restack.data.cache import cache_root
from restack.data.texts import Text
from restack.data.tokens import Tokens, length_limit, tokenize
from restack.errors import DataError
from restack.observe.stack_run import layer_states

Pooling = Literal["mean", "cls", "last"]
Progress = Callable[[str, int, int, float], None]
"""What is being done, how much of how much, and how much a second."""
_VERSION = "features 1"
_SAID_ONLY = (  # of a config: what does not change a state
    *("_name_or_path", "architectures", "dtype", "id2label", "label2id", "num_labels"),
    *("problem_type", "transformers_version", "use_cache"),
)


@dataclass(frozen=True, slots=True)
class Features:
    """The vectors of all texts, and what was done to get them."""

    values: np.ndarray
    """Rows x (depth + 1) x hidden, 0 being the embeddings. The longest text is the first row."""
    order: np.ndarray
    """The text that each row is of."""
    stack: str
    pooling: Pooling
    path: Path
    tokens: int
    cut: int
    """How many texts were longer than the limit and lost their end."""
    max_length: int | None
    layer_applications: int
    """Layers applied to a text, counted one by one; 0 where all was read back."""
    seconds: float

    @property
    def rows(self) -> np.ndarray:
        """The row of each text: the inverse of `order`."""
        return np.argsort(self.order)


def pooled_features(
    model: PreTrainedModel,
    tokenizer: Any,
    texts: Sequence[Text],
    *,
    pooling: Pooling = "mean",
    stack: str | None = None,
    max_length: int | None = None,
    batch_tokens: int = 8192,
    dtype: Literal["float32", "float16"] = "float32",
    progress: Progress | None = None,
) -> Features:
    """Run texts through a model, and keep one vector for each text and layer.

    `pooling` is the mean over all real tokens, special ones included; the state of the class
    token (the first; for XLNet the last); or that of the last real token. `dtype` is that of the
    file. The model runs where it is and in its own precision.
    """
    if pooling not in get_args(Pooling):
        raise DataError(
            f"there is no pooling {pooling!r}", hint=f"Known: {', '.join(get_args(Pooling))}."
        )
    begun = time.perf_counter()
    found = pick(model, stack)
    embeddings = model.get_input_embeddings()
    limit = length_limit(model.config, tokenizer, max_length)
    tokens = tokenize(
        tokenizer, texts, max_length=limit, vocab_size=getattr(embeddings, "num_embeddings", None)
    )
    order = np.argsort(-tokens.lengths, kind="stable")
    kind = np.dtype(dtype)
    path = cache_root() / "features" / f"{_key(model, found, tokens, pooling, kind)}.bin"
    shape = (len(texts), found.depth + 1, _width(model, found, tokens, order))
    done = 0
    size = math.prod(shape) * kind.itemsize
    if not _is_whole(path, size):
        vectors = _vectors(model, found, tokens, order, pooling, batch_tokens)
        with _refused_disk(path, size), _alone(path):
            if not _is_whole(path, size):  # another process may just have finished it
                done = _write(path, shape, kind, vectors, progress)
    values = np.memmap(path, dtype=kind, mode="c", shape=shape)
    return Features(
        values,
        order,
        found.path,
        pooling,
        path,
        len(tokens.ids),
        tokens.cut,
        limit,
        done * found.depth,
        time.perf_counter() - begun,
    )
