"""What every layer already knows of the tokens: its states through the model's own head.

Masked models are shown unmasked texts and asked for the token at each place; causal ones for the
next token. Special tokens and padding do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from restack.anatomy import models
from restack.anatomy.anatomy import Stack
from restack.errors import DataError
from restack.observe.curves import PlanAccuracy
from restack.observe.heads import MEMORY, Head, Reading, own_head, read
from restack.observe.right_tokens import Asked, Reads, asked_tokens, states_at
from restack.observe.running import Batch, retractable
from restack.observe.splitting import Pieces
from restack.observe.tuned import TunedLens

if TYPE_CHECKING:
    from rich.console import RenderableType

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class LayerScore:
    """How well the right tokens can be read from one layer; 0 is what enters the stack."""

    layer: int
    accuracy: float
    top5: float
    rank: float
    """Mean place of the right token, 1 being the first."""
    logprob: float
    """Mean log-probability of the right token."""
    agreement: float
    """How often the layer names the same token as the last one."""


@dataclass(frozen=True, slots=True)
class LensResult:
    """The lens over all layers, and over plans where these were asked for."""

    model: str
    head: str
    """`own`, `fitted`, or the checkpoint that the head was taken from."""
    reads: Reads
    """Whether the head was asked for the token at its place or for the one behind it."""
    tokens: int
    layers: tuple[LayerScore, ...]
    first_tokens: int
    """How many texts begin with a special token that a real one stands right behind."""
    after_first: tuple[float | None, ...]
    """Accuracy on those real tokens, for each layer; None if there are none."""
    tuned: LensResult | None = None
    """The same through a tuned lens."""
    plans: tuple[PlanAccuracy, ...] = ()

    def __rich__(self) -> RenderableType:
        from restack.observe.showing import lens_tables

        return lens_tables(self)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        layers = {
            "layers": [asdict(layer) for layer in self.layers],
            "after_first": list(self.after_first),
        }
        found: dict[str, Any] = {"model": self.model, "head": self.head, "reads": self.reads}
        found |= {"tokens": self.tokens, "first_tokens": self.first_tokens} | layers
        found["plans"] = [plan.to_json() for plan in self.plans]
        if self.tuned is not None:
            tuned = self.tuned.to_json()
            found["tuned"] = {name: tuned[name] for name in layers}
        return found


def lens(
    model: PreTrainedModel,
    batches: Iterable[Batch],
    *,
    stack: str | None = None,
    head: Head | None = None,
    tuned: TunedLens | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> LensResult:
    """Read the states of all layers with the model's own head, or with another one.

    Each batch is one forward pass that ends behind the stack; its states are then read layer by
    layer, in chunks whose logits take at most about `memory` bytes. A batch that does not fit into
    memory is halved. `progress` is told how many states were just read, which over all layers makes
    tokens x (layers + 1); a negative number takes back what will be done again.
    """
    found = models.pick(model, stack)
    head = head or own_head(model, stack=found.path)
    if tuned is not None:
        tuned.check(head, found.depth)
    total = _Sums.none(found.depth + 1)
    pieces = Pieces()
    for batch in batches:
        for _, sums in pieces.run(
            batch, lambda piece: _read_batch(model, found, head, tuned, piece, memory, progress)
        ):
            total = total + sums
    if not total.tokens:
        why = "they hold only special tokens" if head.reads == "same" else "none follows another"
        raise DataError(f"no token of the texts can be read: {why}", hint="give longer texts")
    name = model.config.name_or_path or type(model).__name__
    layers, after = total.scores(0)
    result = LensResult(
        name, head.label, head.reads, total.tokens, layers, total.first_tokens, after
    )
    if tuned is None:
        return result
    layers, after = total.scores(1)
    return replace(result, tuned=replace(result, layers=layers, after_first=after))


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums over tokens: plain and tuned x layers x (the five scores, right first tokens)."""

    values: Tensor
    tokens: int
    first_tokens: int

    @classmethod
    def none(cls, layers: int) -> _Sums:
        return cls(torch.zeros(2, layers, 6, dtype=torch.float64), 0, 0)

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(
            self.values + other.values,
            self.tokens + other.tokens,
            self.first_tokens + other.first_tokens,
        )

    def scores(self, which: int) -> tuple[tuple[LayerScore, ...], tuple[float | None, ...]]:
        rows = self.values[which].tolist()
        layers = (LayerScore(i, *(v / self.tokens for v in row[:5])) for i, row in enumerate(rows))
        after = (row[5] / self.first_tokens if self.first_tokens else None for row in rows)
        return tuple(layers), tuple(after)


def _read_batch(
    model: PreTrainedModel,
    stack: Stack,
    head: Head,
    tuned: TunedLens | None,
    batch: Batch,
    memory: int,
    progress: Progress | None,
) -> _Sums:
    asked = asked_tokens(batch, head.reads)
    sums = _Sums(_Sums.none(stack.depth + 1).values, len(asked.right), int(asked.first.sum()))
    if not sums.tokens:
        return sums
    states = states_at(model, stack, batch, asked.where)
    with retractable(progress) as tell:
        last = read(head, states[-1], asked.right, memory=memory)
        for layer in range(stack.depth, -1, -1):
            rows = states.pop()
            plain = last if layer == stack.depth else read(head, rows, asked.right, memory=memory)
            sums.values[0, layer] = _summed(plain, last, asked)
            if tuned is not None:
                if layer < stack.depth:
                    plain = read(head, tuned.translate(layer, rows), asked.right, memory=memory)
                sums.values[1, layer] = _summed(plain, last, asked)
            tell(len(rows))
    return sums


def _summed(reading: Reading, last: Reading, asked: Asked) -> Tensor:
    right = reading.best == asked.right
    columns = (
        right,
        reading.rank <= 5,
        reading.rank,
        reading.logprob,
        reading.best == last.best,
        right & asked.first,
    )
    return torch.stack([column.double().sum() for column in columns])
