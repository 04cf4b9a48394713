"""Long contexts as overlapping windows of tokens, and answers out of scores of start and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from restack.data.cache import Arrays, cached_arrays, fingerprint
from restack.data.splits import Split
from restack.data.tokens import Tokens, as_tokens, check_ids, tokenizer_identity
from restack.errors import DataError

_CHUNK = 512
_LONGEST_QUESTION = 64  # as BERT has it; what is longer is cut, so that the context finds room


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of questions with a part of their context each, as tokens that can be batched."""

    tokens: Tokens
    example: np.ndarray
    """For each window the place of its question in the split."""
    context: np.ndarray
    """For each window the first token of its context and the one behind its last."""
    chars: np.ndarray
    """For each token (flat, as `tokens.ids`) where it begins and ends in the context's text."""
    null: np.ndarray
    """For each window the token that stands for no answer: the class token, or the first."""
    start: np.ndarray
    """For each window the first token of the first gold answer; `null` if it is not all in it."""
    end: np.ndarray
    """The last token of it."""

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Answer:
    """The best answers to one question. Their scores are sums of a start and an end score."""

    text: str
    """The best answer that is not empty; "" only if there is none to choose."""
    score: float
    no_answer: float
    """By how much the score of no answer exceeds that of `text`."""
    best: tuple[tuple[str, float], ...]
    """The n best answers and their scores, without the one of no answer."""


def windows(
    tokenizer: Any,
    split: Split,
    *,
    max_length: int = 384,
    stride: int = 128,
    vocab_size: int | None = None,
) -> Windows:
    """Cut the contexts of a split into windows that overlap by `stride` tokens; kept in the cache.

    Only the context is cut; a question longer than 64 tokens loses its end.
    """
    if not tokenizer.is_fast:
        raise DataError(
            "spans need the places of tokens in the text, and this tokenizer does not give them",
            hint="Use a tokenizer with a tokenizer.json.",
        )
    questions = _short_questions(tokenizer, [text[0] for text in split.texts])
    contexts = [text[1] for text in split.texts]
    longest = max(len(row) for row in tokenizer(questions, add_special_tokens=False)["input_ids"])
    room = max_length - longest - tokenizer.num_special_tokens_to_add(pair=True)
    if room <= stride:
        raise DataError(
            f"max_length={max_length} leaves {room} tokens for the context, not more than the "
            f"stride of {stride}",
            hint="Give a larger max_length or a smaller stride.",
        )
    settings = [tokenizer_identity(tokenizer), max_length, stride, "windows 1"]
    arrays = cached_arrays(
        "windows",
        fingerprint(questions, contexts, split.labels, settings),
        lambda: _encode(tokenizer, questions, contexts, split.labels, max_length, stride),
    )
    tokens = as_tokens(tokenizer, arrays, max_length)
    if vocab_size is not None:
        check_ids(tokenizer, tokens, vocab_size)
    names = ("example", "context", "chars", "null", "start", "end")
    return Windows(tokens, *(arrays[name] for name in names))


def _short_questions(tokenizer: Any, questions: list[str]) -> list[str]:
    # leading spaces can leave a question with more tokens than truncation reckons with
    questions = [question.strip() for question in questions]
    out = tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True)
    return [
        question[: offsets[_LONGEST_QUESTION - 1][1]]
        if len(offsets) > _LONGEST_QUESTION
        else question
        for question, offsets in zip(questions, out["offset_mapping"], strict=True)
    ]


def _encode(
    tokenizer: Any,
    questions: list[str],
    contexts: list[str],
    answers: Sequence[Mapping[str, Any]],
    max_length: int,
    stride: int,
) -> Arrays:
    with_types = "token_type_ids" in tokenizer.model_input_names
    columns: dict[str, list[Any]] = {
        name: [] for name in ("ids", "special", "chars", "example", "context", "null")
    } | {"start": [], "end": []}
    types: list[np.ndarray] = []
    for first in range(0, len(questions), _CHUNK):
        out = tokenizer(
            questions[first : first + _CHUNK],
            contexts[first : first + _CHUNK],
            truncation="only_second",
            max_length=max_length,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for encoding, of in zip(out.encodings, out["overflow_to_sample_mapping"], strict=True):
            window = _window(tokenizer, encoding, answers[first + of])
            for name, value in window.items():
                columns[name].append(value)
            columns["example"].append(first + of)
            if with_types:
                types.append(np.array(encoding.type_ids, dtype=np.int8))
    lengths = [len(ids) for ids in columns["ids"]]
    arrays = {name: np.concatenate(columns.pop(name)) for name in ("ids", "special", "chars")}
    arrays |= {name: np.array(values, dtype=np.int32) for name, values in columns.items()}
    arrays["offsets"] = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    arrays["cut"] = np.array(0)  # windows lose nothing of a context
    return arrays | ({"types": np.concatenate(types)} if with_types else {})


def _window(tokenizer: Any, encoding: Any, answer: Mapping[str, Any]) -> dict[str, Any]:
    ids = np.array(encoding.ids, dtype=np.int32)
    chars = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
    inside = np.array([part == 1 for part in encoding.sequence_ids])
    places = np.flatnonzero(inside)
    low, high = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
    classes = np.flatnonzero(ids == tokenizer.cls_token_id)
    null = int(classes[0]) if len(classes) else 0
    start, end = _gold(chars[low:high], answer) or (null - low, null - low)
    return {
        "ids": ids,
        "special": np.array(encoding.special_tokens_mask, dtype=np.bool_),
        "chars": chars,
        "context": (low, high),
        "null": null,
        "start": start + low,
        "end": end + low,
    }


def _gold(chars: np.ndarray, answer: Mapping[str, Any]) -> tuple[int, int] | None:
    """The first and last token of the first gold answer, if all of it is in these tokens."""
    if not answer["text"] or not len(chars):
        return None
    begin = answer["answer_start"][0]
    stop = begin + len(answer["text"][0])
    if begin < chars[0, 0] or stop > chars[-1, 1]:
        return None
    first = int(np.searchsorted(chars[:, 0], begin, side="right")) - 1
    last = int(np.searchsorted(chars[:, 1], stop, side="left"))
    return (first, last) if first <= last else None


def find_answers(
    windows: Windows,
    starts: Sequence[np.ndarray],
    ends: Sequence[np.ndarray],
    contexts: Sequence[str],
    *,
    n_best: int = 20,
    max_answer_tokens: int = 30,
) -> list[Answer]:
    """The best answers to every question from the scores of its windows, one row each.

    A row of `starts` and `ends` has a score a token, and may be padded at its end. An answer
    lies in the context of one window and has at most `max_answer_tokens` tokens. The score of no
    answer is the lowest of those of the windows: the answer must be missing in all.
    """
    found: list[dict[tuple[int, int], float]] = [{} for _ in contexts]
    null = np.full(len(contexts), np.inf)
    for place in range(len(windows)):
        example = int(windows.example[place])
        start, end = np.asarray(starts[place]), np.asarray(ends[place])
        at = windows.null[place]
        null[example] = min(null[example], float(start[at]) + float(end[at]))
        low, high = windows.context[place]
        chars = windows.chars[windows.tokens.offsets[place] :][low:high]
        for i, j, score in _best_spans(start[low:high], end[low:high], n_best, max_answer_tokens):
            span = (int(chars[i, 0]), int(chars[j, 1]))
            # windows overlap: the same answer can be found in two of them
            found[example][span] = max(score, found[example].get(span, -np.inf))
    return [
        _answer(context, spans, float(none), n_best)
        for context, spans, none in zip(contexts, found, null, strict=True)
    ]


def _best_spans(
    start: np.ndarray, end: np.ndarray, n_best: int, longest: int
) -> list[tuple[int, int, float]]:
    """The n best (first, last, score), out of all spans that are not too long."""
    size = len(start)
    if not size:
        return []
    longest = min(longest, size)
    behind = np.concatenate([end, np.full(longest, -np.inf)])
    ends = np.lib.stride_tricks.sliding_window_view(behind, longest)[:size]
    scores = (start[:, None] + ends).ravel()
    count = min(n_best, len(scores))
    top = np.argpartition(-scores, count - 1)[:count]
    top = top[np.isfinite(scores[top])]
    return [(int(p // longest), int(p // longest + p % longest), float(scores[p])) for p in top]


def _answer(
    context: str, spans: Mapping[tuple[int, int], float], null: float, n_best: int
) -> Answer:
    ranked: dict[str, float] = {}
    for (begin, stop), score in sorted(spans.items(), key=lambda item: (-item[1], item[0])):
        text = context[begin:stop].strip()
        if text:
            ranked.setdefault(text, score)
    best = tuple(list(ranked.items())[:n_best])
    if not best:
        return Answer("", -np.inf, np.inf, ())
    text, score = best[0]
    return Answer(text, score, null - score, best)
