"""What a model answered to a split: its outputs in the split's order, kept in one file.

Outputs are kept as they leave the head, so that probabilities, answers and thresholds can all be
found later, also for several models together. Nothing here needs torch.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from restack.data import metrics, squad
from restack.data.cache import Arrays, fingerprint
from restack.data.spans import Answer, Windows, find_answers
from restack.data.splits import Split
from restack.data.tasks import Kind, Task
from restack.data.tokens import Tokens
from restack.errors import DataError

KINDS = ("classification", "regression", "multilabel", "span")
"""The kinds of tasks that have answers to keep; language modelling has a loss alone."""
_FORMAT = "restack predictions 1"


@dataclass(frozen=True, slots=True)
class Spans:
    """Scores of each token as the first or last one of the answer, and where the tokens lie.

    All windows end to end: those of window i are `offsets[i]:offsets[i + 1]`. See `Windows` for
    `example`, `context`, `chars` and `null`.
    """

    starts: np.ndarray
    ends: np.ndarray
    offsets: np.ndarray
    example: np.ndarray
    context: np.ndarray
    chars: np.ndarray
    null: np.ndarray
    tokens: str
    """A hash of the windows' tokens: members of an ensemble must speak of the same."""

    def rows(self, flat: np.ndarray) -> list[np.ndarray]:
        """Flat scores, one array a window."""
        return np.split(flat, self.offsets[1:-1])


@dataclass(frozen=True, slots=True)
class Predictions:
    """A model's outputs for the examples of one split: `logits`, or for spans `spans`."""

    task: Task
    split: str
    fingerprint: str
    """`Split.fingerprint`: which examples these are, whatever file they came from."""
    ids: tuple[str | int, ...]
    partial: str | None = None
    """What part of the official split this is, where it is not all of it."""
    logits: np.ndarray | None = None
    """Rows x outputs in float32; a regression has one output."""
    spans: Spans | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __str__(self) -> str:
        note = f" ({self.partial})" if self.partial else ""
        return f"{self.task.name}/{self.split}, {len(self):,} examples{note}"

    @property
    def kind(self) -> Kind:
        return self.task.kind

    @classmethod
    def of_rows(cls, split: Split, logits: np.ndarray) -> Predictions:
        """From a head's outputs, one row for each example."""
        if split.task.kind not in KINDS or split.task.kind == "span":
            raise DataError(f"{split} ({split.task.kind}) has no predictions of one a row")
        table = np.asarray(logits, dtype=np.float32).reshape(len(logits), -1)
        if table.shape != (len(split), split.task.outputs):
            raise DataError(
                f"{split}: outputs of {table.shape[0]:,} x {table.shape[1]} for {len(split):,} "
                f"examples and {split.task.outputs} outputs"
            )
        return cls(*_names(split), logits=table)

    @classmethod
    def of_windows(
        cls,
        split: Split,
        windows: Windows,
        starts: Sequence[np.ndarray],
        ends: Sequence[np.ndarray],
    ) -> Predictions:
        """From scores a token, one row for each window; what is behind its tokens is padding.

        Scores count from the window's first token: take off the padding that leads.
        """
        if split.task.kind != "span":
            raise DataError(f"{split} ({split.task.kind}) has no spans")
        if not len(starts) == len(ends) == len(windows):
            raise DataError(f"{split}: {len(starts):,} rows of scores, {len(windows):,} windows")
        lengths = windows.tokens.lengths
        first, last = (
            np.concatenate(
                [np.asarray(row, np.float32)[:n] for row, n in zip(rows, lengths, strict=True)]
            )
            for rows in (starts, ends)
        )
        if not len(first) == len(last) == len(windows.tokens.ids):
            raise DataError(f"{split}: rows of scores are shorter than their windows")
        spans = Spans(
            first,
            last,
            windows.tokens.offsets,
            windows.example,
            windows.context,
            windows.chars,
            windows.null,
            _hash_of(windows),
        )
        return cls(*_names(split), spans=spans)

    def probabilities(self) -> np.ndarray:
        """By kind: rows x labels that sum to 1 (multi-label: each for itself); values as they are.

        For spans 2 x tokens, flat: of being the first and the last token, summing to 1 in each
        window.
        """
        from scipy.special import expit, softmax

        if self.spans is not None:
            return np.exp(log_probabilities(self.spans))
        assert self.logits is not None
        if self.kind == "regression":
            return self.logits.astype(np.float64)
        outputs = self.logits.astype(np.float64)
        return np.asarray(
            softmax(outputs, axis=1) if self.kind == "classification" else expit(outputs)
        )

    def read(self, split: Split) -> Reading:
        """The answers, to be scored on the split or parts of it."""
        self.check(split)
        kept = (self.logits,) if self.spans is None else (self.spans.starts, self.spans.ends)
        if any(np.isnan(values).any() for values in kept if values is not None):
            raise DataError(f"{split}: there are outputs that are not numbers")
        if self.spans is None:
            assert self.logits is not None
            return Reading(split, values=metrics.predict(self.kind, self.logits))
        spans = self.spans
        answers = find_answers(
            _windows(spans), spans.rows(spans.starts), spans.rows(spans.ends), _contexts(split)
        )
        return Reading(split, answers=tuple(answers))

    def scores(self, split: Split, *, threshold: float = 0.0) -> dict[str, float]:
        """All metrics of the task, in its order.

        Where questions may have no answer, spans answer with none if it leads by more than
        `threshold`, and `best_...` are the scores at the thresholds that would have been best.
        """
        return self.read(split).scores(threshold=threshold)

    def check(self, split: Split) -> None:
        """Refuse a split that these are not the predictions for."""
        ours, theirs = self.task, split.task
        if (ours.name, ours.kind, ours.labels) != (theirs.name, theirs.kind, theirs.labels):
            raise DataError(
                f"predictions for {ours.name} ({ours.kind}) were given the data of "
                f"{theirs.name} ({theirs.kind})"
            )
        if self.fingerprint != split.fingerprint:
            raise DataError(
                f"predictions for {self} were given {len(split):,} other examples",
                hint="Give the data that the model was evaluated on.",
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one .npz, whole or not at all."""
        said: dict[str, Any] = {"format": _FORMAT, "ids": list(self.ids)}
        said["task"] = {f.name: getattr(self.task, f.name) for f in fields(Task)}
        said |= {name: getattr(self, name) for name in _SAID}
        arrays: Arrays = {} if self.logits is None else {"logits": self.logits}
        if self.spans is not None:
            parts = {f.name: getattr(self.spans, f.name) for f in fields(Spans)}
            said["tokens"] = parts.pop("tokens")
            arrays |= parts
        text = np.frombuffer(json.dumps(said).encode(), dtype=np.uint8)
        _write(Path(path), {"about": text, **arrays})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Predictions:
        """What `save` wrote."""
        path = Path(path)
        try:
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            said = json.loads(arrays.pop("about").tobytes())
            if said["format"] != _FORMAT:
                raise KeyError(said["format"])
            made = _from(said, arrays)
        except FileNotFoundError as error:
            raise DataError(f"{path}: there is no such file") from error
        except (
            *(OSError, ValueError, EOFError, KeyError, TypeError, AttributeError),
            *(zipfile.BadZipFile, zlib.error),
        ) as error:
            raise DataError(
                f"{path} holds no predictions, or is damaged",
                hint="Predictions are what `restack tune` keeps in predictions/<split>.npz.",
            ) from error
        _check_sizes(made, path)
        return made


@dataclass(frozen=True, slots=True)
class Reading:
    """Answers to a split, as its metrics take them."""

    split: Split
    values: np.ndarray | None = None
    """Codes of labels, rows x labels of bool, or numbers."""
    answers: tuple[Answer, ...] | None = None

    def scores(
        self, rows: Sequence[int] | np.ndarray | None = None, *, threshold: float = 0.0
    ) -> dict[str, float]:
        """The metrics on all rows, or on some."""
        chosen = range(len(self.split)) if rows is None else [int(row) for row in rows]
        labels = [self.split.labels[row] for row in chosen]
        if self.values is not None:
            return metrics.score(self.split.task, self.values[np.asarray(chosen)], labels)
        assert self.answers is not None
        # by place and not by id, which a file of one's own may have twice
        gold = {str(row): tuple(label["text"]) for row, label in zip(chosen, labels, strict=True)}
        texts = {str(row): self.answers[row].text for row in chosen}
        odds = {str(row): _finite(self.answers[row].no_answer) for row in chosen}
        may_lack = any(not label["text"] for label in self.split.labels)
        found = squad.evaluate(gold, texts, odds if may_lack else None, threshold=threshold)
        first = {name: found.pop(name) for name in self.split.task.metrics}
        return first | found


def log_probabilities(spans: Spans) -> np.ndarray:
    """2 x tokens: the logarithms of being the first and the last token of a window's answer."""
    both = np.stack([spans.starts, spans.ends]).astype(np.float64)
    begin = spans.offsets[:-1]
    lengths = np.diff(spans.offsets)
    both -= np.repeat(np.maximum.reduceat(both, begin, axis=1), lengths, axis=1)
    total = np.add.reduceat(np.exp(both), begin, axis=1)
    return np.asarray(both - np.repeat(np.log(total), lengths, axis=1))


_SAID = ("split", "fingerprint", "partial")


def _names(split: Split) -> tuple[Task, str, str, tuple[str | int, ...], str | None]:
    return (split.task, split.name, split.fingerprint, tuple(split.ids), split.partial)


def _contexts(split: Split) -> list[str]:
    return [text[1] for text in split.texts]


def _finite(odds: float) -> float:
    """A question without any possible answer is as sure to have none as numbers can say."""
    return odds if math.isfinite(odds) else math.copysign(1e30, odds)


def _hash_of(windows: Windows) -> str:
    tokens = windows.tokens
    return fingerprint(tokens.ids.tolist(), tokens.offsets.tolist(), windows.example.tolist())


def _windows(spans: Spans) -> Windows:
    """As much of the windows as answers are found by."""
    none = np.zeros(0, np.int32)
    tokens = Tokens(none, spans.offsets, none.astype(np.bool_), None)
    return Windows(tokens, spans.example, spans.context, spans.chars, spans.null, none, none)


def _from(said: dict[str, Any], arrays: Arrays) -> Predictions:
    lists = {name: tuple(v) for name, v in said["task"].items() if isinstance(v, list)}
    task = Task(**said["task"] | lists)
    spans = None
    if task.kind == "span":
        spans = Spans(**arrays, tokens=said["tokens"])
        arrays = {}
    values = {name: said[name] for name in _SAID}
    return Predictions(task, **values, ids=tuple(said["ids"]), spans=spans, **arrays)  # type: ignore[arg-type]


def _check_sizes(made: Predictions, path: Path) -> None:
    """Refuse a file whose parts do not belong together."""
    good = made.kind in KINDS
    if made.spans is not None:
        s = made.spans
        good = good and len(s.offsets) > 1 and bool((np.diff(s.offsets) > 0).all())
        good = good and len(s.starts) == len(s.ends) == len(s.chars) == s.offsets[-1]
        good = good and len(s.example) == len(s.context) == len(s.null) == len(s.offsets) - 1
        good = good and 0 <= s.example.min() <= s.example.max() < len(made)
    else:
        good = good and made.logits is not None and len(made.logits) == len(made)
    if not good:
        raise DataError(f"{path} is damaged: its parts do not belong together")


def _write(path: Path, arrays: Arrays) -> None:
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            part = Path(file.name)
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o644)  # temporary files are for their owner alone
        part.replace(path)
    except OSError as error:
        raise DataError(
            f"predictions cannot be written to {path}: {error.strerror or error}",
            hint="Make room, or give another directory.",
        ) from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
