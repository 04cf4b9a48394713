"""Texts as token ids: ragged arrays, made once and kept by content."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from restack.data.cache import Arrays, cached_arrays, fingerprint
from restack.data.texts import Text
from restack.errors import DataError

_CHUNK = 2048  # texts per call, so that the Python lists of a large set never all exist at once
_NO_LIMIT = 10**9  # tokenizers without a limit state a huge one
# These number positions from behind the padding id, so that of 514 rows 512 can be used.
_POSITIONS_BEHIND_PAD = (
    *("camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke"),
    *("markuplm", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl"),
    "xmod",
)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of many texts, end to end; those of text i are `offsets[i]:offsets[i + 1]`."""

    ids: np.ndarray
    offsets: np.ndarray
    special: np.ndarray
    """True at tokens that the tokenizer added."""
    types: np.ndarray | None
    """Token type ids, where the model reads them."""
    cut: int = 0
    """How many texts were longer than `max_length` and lost their end."""
    max_length: int | None = None
    pad_id: int | None = None
    pad_type: int = 0
    pad_left: bool = False

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def row(self, index: int) -> np.ndarray:
        """The token ids of one text."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]


def tokenize(
    tokenizer: Any,
    texts: Sequence[Text],
    *,
    max_length: int | None = None,
    add_special_tokens: bool = True,
    vocab_size: int | None = None,
) -> Tokens:
    """Tokenise texts or pairs, cutting them at `max_length`; kept in the cache by content.

    `vocab_size` is the number of rows of the model's embedding: an id beyond it means that
    the tokenizer is not the model's, and is an error.
    """
    if not texts:
        raise DataError("there are no texts to tokenise")
    key = fingerprint(
        texts, [tokenizer_identity(tokenizer), max_length, add_special_tokens, "tokens 1"]
    )
    arrays = cached_arrays(
        "tokens", key, lambda: _encode(tokenizer, texts, max_length, add_special_tokens)
    )
    tokens = as_tokens(tokenizer, arrays, max_length)
    # a length below that of the special tokens alone is not heeded by tokenizers
    uncut = max_length is not None and int(tokens.lengths.max()) > max_length
    if uncut or not np.any(~tokens.special):
        short = uncut or tokens.cut > 0
        why = f"max_length={max_length} is too short for" if short else "there are none in"
        raise DataError(
            f"no token is left besides special tokens: {why} these {len(texts):,} texts",
            hint="Give a larger max_length." if short else "Give texts that are not empty.",
        )
    if vocab_size is not None:
        check_ids(tokenizer, tokens, vocab_size)
    return tokens


def as_tokens(tokenizer: Any, arrays: Arrays, max_length: int | None) -> Tokens:
    """Tokens from cached arrays and what the tokenizer says of padding."""
    first = arrays["ids"][: arrays["offsets"][1]]
    ends_in_cls = len(first) > 0 and first[-1] == tokenizer.cls_token_id
    return Tokens(
        arrays["ids"],
        arrays["offsets"],
        arrays["special"],
        arrays.get("types"),
        int(arrays["cut"]),
        max_length,
        tokenizer.pad_token_id,
        int(getattr(tokenizer, "pad_token_type_id", 0) or 0),
        # XLNet reads its class token at the very end, so that padding must stand in front;
        # for all others it stands behind, where it moves no absolute position.
        bool(tokenizer.padding_side == "left" and ends_in_cls),
    )


def check_ids(tokenizer: Any, tokens: Tokens, vocab_size: int) -> None:
    """Refuse ids that the model has no embedding for."""
    at = int(tokens.ids.argmax())
    if (worst := int(tokens.ids[at])) >= vocab_size:
        row = int(np.searchsorted(tokens.offsets, at, side="right")) - 1
        raise DataError(
            f"text {row} has the token id {worst} ({tokenizer.convert_ids_to_tokens(worst)!r}), "
            f"and the model's vocabulary has {vocab_size:,} entries: "
            "the tokenizer does not belong to the model",
            hint="Give the tokenizer that the model was trained with.",
        )


def _encode(
    tokenizer: Any, texts: Sequence[Text], max_length: int | None, add_special_tokens: bool
) -> Arrays:
    with_types = "token_type_ids" in tokenizer.model_input_names
    ids, special, types, lengths, cut = [], [], [], [], 0
    for start in range(0, len(texts), _CHUNK):
        first, second = _columns(texts[start : start + _CHUNK])
        out = tokenizer(
            first,
            second,
            truncation=max_length is not None,
            max_length=max_length,
            add_special_tokens=add_special_tokens,
            return_special_tokens_mask=True,
            return_token_type_ids=with_types,
            return_attention_mask=False,
            verbose=False,
        )
        rows = out["input_ids"]
        lengths += [len(row) for row in rows]
        ids.append(_flat(rows, np.int32))
        special.append(_flat(out["special_tokens_mask"], np.bool_))
        if with_types:
            types.append(_flat(out["token_type_ids"], np.int8))
        if out.encodings is not None:
            cut += sum(bool(encoding.overflowing) for encoding in out.encodings)
        elif max_length is not None:  # tokenizers in Python do not tell: full counts as cut
            cut += sum(len(row) >= max_length for row in rows)
    arrays = {
        "ids": np.concatenate(ids),
        "offsets": np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        "special": np.concatenate(special),
        "cut": np.array(cut),
    }
    return arrays | ({"types": np.concatenate(types)} if with_types else {})


def _columns(texts: Sequence[Text]) -> tuple[list[str], list[str] | None]:
    if isinstance(texts[0], str):
        return list(texts), None  # type: ignore[arg-type]
    return [pair[0] for pair in texts], [pair[1] for pair in texts]


def _flat(rows: Sequence[Sequence[int]], dtype: Any) -> np.ndarray:
    return np.concatenate([np.asarray(row, dtype=dtype) for row in rows])


def tokenizer_identity(tokenizer: Any) -> str:
    """A hash of everything in a tokenizer that decides which ids it gives."""
    if tokenizer.is_fast:
        # truncation and padding are what the last call asked for, not what the tokenizer is
        said = json.loads(tokenizer.backend_tokenizer.to_str())
        said.pop("truncation", None)
        said.pop("padding", None)
    else:
        said = [tokenizer.get_vocab(), repr(sorted(tokenizer.init_kwargs.items(), key=str))]
    return fingerprint(
        [type(tokenizer).__name__, said, tokenizer.model_input_names, tokenizer.truncation_side]
    )


def length_limit(config: Any, tokenizer: Any, wanted: int | None = None) -> int | None:
    """The length to cut texts at: `wanted`, or the most that model and tokenizer allow.

    None if nothing limits it. More than the model has positions for is an error.
    """
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    positions = getattr(text_config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:  # relative positions: none, 0 or -1
        positions = None
    elif text_config.model_type in _POSITIONS_BEHIND_PAD:
        positions -= (text_config.pad_token_id or 0) + 1
    if wanted is not None:
        if positions is not None and wanted > positions:
            raise DataError(
                f"max_length={wanted} is more than the {positions} positions of the model",
                hint=f"Give a max_length of {positions} or less.",
            )
        return wanted
    stated = getattr(tokenizer, "model_max_length", None)
    known = [n for n in (positions, stated) if n is not None and n < _NO_LIMIT]
    return min(known) if known else None


def blocks(tokens: Tokens, length: int) -> Tokens:
    """All tokens end to end, cut into blocks of one length; a shorter rest is left out.

    For language modelling on running text, where no token should be padding.
    """
    count = len(tokens.ids) // length
    if count < 1:
        raise DataError(
            f"{len(tokens.ids):,} tokens do not fill one block of {length:,}",
            hint="Give more text or shorter blocks.",
        )
    end = count * length
    return Tokens(
        tokens.ids[:end],
        np.arange(count + 1, dtype=np.int64) * length,
        tokens.special[:end],
        None if tokens.types is None else tokens.types[:end],
        0,
        length,
        tokens.pad_id,
        tokens.pad_type,
        tokens.pad_left,
    )
