"""One vector for each text at each layer, from one forward pass, in a mapped file.

The file lies in the cache, under a key of all that decides about it: weights, tokens, pooling and
number format. A pass that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from transformers import PreTrainedModel

from restack.anatomy.anatomy import Stack
from restack.anatomy.live import config_json
from restack.anatomy.models import pick
from restack.data.batches import collate, rows_by_tokens
from restack.data.cache import cache_root
from restack.data.texts import Text
from restack.data.tokens import Tokens, length_limit, tokenize
from restack.errors import DataError
from restack.observe.feature_file import Progress, alone, read, write
from restack.observe.reading import Pooling, pool
from restack.observe.running import Batch
from restack.observe.splitting import Pieces
from restack.observe.stack_run import layer_states

Format = Literal["float32", "float16"]
_VERSION = "features 1"
_SAID_ONLY = (  # what a config says without changing a state
    *("_name_or_path", "architectures", "dtype", "id2label", "label2id", "problem_type"),
    *("transformers_version", "use_cache"),
)


@dataclass(frozen=True, slots=True)
class Features:
    """The vectors of all texts, and what was done to get them."""

    values: np.ndarray
    """Rows x (depth + 1) x hidden, 0 being the embeddings; the longest text is the first row."""
    order: np.ndarray
    """The text that each row is of."""
    path: Path
    tokens: int
    cut: int
    """How many texts were longer than the limit and lost their end."""
    layer_applications: int
    """How often a layer was applied to a text; 0 where all was read back."""
    seconds: float

    @property
    def rows(self) -> np.ndarray:
        """The row of each text."""
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
    dtype: Format = "float32",
    progress: Progress | None = None,
) -> Features:
    """Run texts through a model, and keep one vector for each text and layer.

    `pooling` is the mean over all real tokens, special ones included; or the class token alone
    (the first; for XLNet the last); or the last real token. `dtype` is that of the file. The model
    runs where it is, in its own precision.
    """
    begun = time.perf_counter()
    for what, wanted, known in (
        ("pooling", pooling, get_args(Pooling)),
        ("format for features", dtype, get_args(Format)),
    ):
        if wanted not in known:
            raise DataError(f"there is no {what} {wanted!r}", hint=f"Known: {', '.join(known)}.")
    found = pick(model, stack)
    embeddings = model.get_input_embeddings()
    limit = length_limit(model.config, tokenizer, max_length)
    tokens = tokenize(
        tokenizer, texts, max_length=limit, vocab_size=getattr(embeddings, "num_embeddings", None)
    )
    if not tokens.lengths.all():
        raise DataError(
            f"text {int(tokens.lengths.argmin())} has no tokens and cannot be run",
            hint="Leave out empty texts.",
        )
    order = np.argsort(-tokens.lengths, kind="stable")
    shape = (len(texts), found.depth + 1)
    path = cache_root() / "features" / f"{_key(model, found, tokens, pooling, dtype)}.npy"
    values, done = read(path, shape), 0
    if values is None:
        with alone(path):
            values = read(path, shape)  # another process may have made it meanwhile
            if values is None:
                run = _Pass(model, found, tokens, order, pooling, batch_tokens)
                done = write(path, shape, np.dtype(dtype), run.blocks, progress)
                values = read(path, shape)
    assert values is not None
    seconds = time.perf_counter() - begun
    return Features(values, order, path, len(tokens.ids), tokens.cut, done * found.depth, seconds)


def weights_fingerprint(model: PreTrainedModel) -> str:
    """A hash of all weights of the model without its head, and of what its config says of them."""
    body = model.base_model
    said = {k: v for k, v in config_json(model.config).items() if k not in _SAID_ONLY}
    seen = hashlib.blake2b(json.dumps(said, sort_keys=True, default=str).encode(), digest_size=16)
    for name, tensor in body.state_dict().items():
        seen.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        seen.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return seen.hexdigest()


def _key(model: PreTrainedModel, stack: Stack, tokens: Tokens, pooling: str, dtype: str) -> str:
    seen = hashlib.blake2b(digest_size=16)
    parts = (_VERSION, weights_fingerprint(model), stack.facts.path, pooling, dtype)
    seen.update(json.dumps([*parts, tokens.pad_left]).encode())
    for array in (tokens.ids, tokens.offsets, tokens.types):
        if array is not None:
            seen.update(np.ascontiguousarray(array).data)
    return seen.hexdigest()


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one forward pass over all texts needs."""

    model: PreTrainedModel
    stack: Stack
    tokens: Tokens
    order: np.ndarray
    pooling: Pooling
    batch_tokens: int

    def blocks(self, start: int) -> Iterator[np.ndarray]:
        """The vectors in the order of the file, from a row on: texts x layers x hidden."""
        pieces, rest = Pieces(), self.order[start:]
        for rows in rows_by_tokens(self.tokens.lengths[rest], self.batch_tokens):
            # A stand-in serves where there is no padding token: the mask hides it.
            batch = collate(self.tokens, rest[rows], pad_id=self.tokens.pad_id or 0)
            for _, vectors in pieces.run(batch, self._vectors):
                yield vectors

    def _vectors(self, batch: Batch) -> np.ndarray:
        states = layer_states(self.model, batch, self.stack, tail=False).states
        # Where padding stands in front, the class token is the last one (see `data.tokens`).
        last = self.pooling == "cls" and self.tokens.pad_left
        pooled = pool(states, batch["attention_mask"].bool(), "last" if last else self.pooling)
        bad = (~torch.isfinite(pooled).all(-1)).nonzero()
        if len(bad):
            text, layer = min(bad.tolist(), key=lambda pair: pair[1])
            where = f"leaves layer {layer - 1}" if layer else "enters layer 0"
            raise DataError(
                f"what {where} of `{self.stack.path}` holds values that are not finite numbers, "
                f"first in text {int(batch['indices'][text])}",
                hint="Use float32 or bfloat16 if the model runs in float16; otherwise its weights "
                "are damaged.",
            )
        return pooled.cpu().numpy()
