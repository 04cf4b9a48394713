"""The tokens that each layer decodes to, for given texts: one row a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from restack.anatomy import models
from restack.data.batches import batches
from restack.data.texts import Text
from restack.data.tokens import length_limit, tokenize
from restack.observe.heads import MEMORY, Head, own_head, read, vocabulary
from restack.observe.right_tokens import asked_tokens, states_at
from restack.observe.tuned import TunedLens

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_SURE = 0.5
_WRONG, _UNSURE = ("‹", "›"), "?"
LEGEND = f"{_WRONG[0]}wrong{_WRONG[1]}   unsure{_UNSURE} (below {_SURE:.0%})"
"""How a table says without colours what its colours say."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """One token as a layer names it."""

    token: str
    right: bool
    confidence: float


@dataclass(frozen=True, slots=True)
class DecodedText:
    """One text and what each of its layers makes of it; layer 0 is what enters the stack."""

    text: Text
    head: str
    """Whose head it is, as in `Head.label`; with `, tuned` if a tuned lens stood before it."""
    tokens: tuple[str, ...]
    """The right tokens."""
    layers: tuple[tuple[Decoded, ...], ...]

    def accuracy(self, layer: int) -> float:
        """The part of the tokens that the layer names right."""
        return sum(token.right for token in self.layers[layer]) / len(self.tokens)

    def __rich__(self) -> RenderableType:
        return table(self)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        rows = (
            {"layer": i, "accuracy": self.accuracy(i), "tokens": [asdict(t) for t in tokens]}
            for i, tokens in enumerate(self.layers)
        )
        return {
            "text": self.text,
            "head": self.head,
            "tokens": list(self.tokens),
            "layers": list(rows),
        }


def decode(
    model: PreTrainedModel,
    tokenizer: Any,
    texts: Sequence[Text],
    *,
    stack: str | None = None,
    head: Head | None = None,
    tuned: TunedLens | None = None,
    max_length: int | None = None,
    memory: int = MEMORY,
) -> list[DecodedText]:
    """What every layer decodes some texts to, through the model's own head or another one.

    Texts of which no token can be read (none that is not special, or of a causal model none that
    follows another) come back with no tokens.
    """
    found = models.pick(model, stack)
    head = head or own_head(model, stack=found.path)
    if tuned is not None:
        tuned.check(head, found.depth)
    limit = length_limit(model.config, tokenizer, max_length)
    ids = tokenize(tokenizer, texts, max_length=limit, vocab_size=vocabulary(model))
    decoded = {}
    for batch in batches(ids, 1):  # a text each, so that none is padded
        asked = asked_tokens(batch, head.reads)
        layers = []
        states = states_at(model, found, batch, asked.where) if len(asked.right) else []
        for layer, rows in enumerate(states):
            if tuned is not None and layer < found.depth:
                rows = tuned.translate(layer, rows)
            said = read(head, rows, asked.right, memory=memory)
            layers.append(_decoded(tokenizer, said.best, said.confidence, asked.right))
        number = int(batch["indices"][0])
        right = tuple(_shown(tokenizer, token) for token in asked.right.tolist())
        label = head.label if tuned is None else f"{head.label}, tuned"
        decoded[number] = DecodedText(texts[number], label, right, tuple(layers))
    return [decoded[number] for number in range(len(texts))]


def _decoded(
    tokenizer: Any, best: torch.Tensor, confidence: torch.Tensor, right: torch.Tensor
) -> tuple[Decoded, ...]:
    values = zip(best.tolist(), confidence.tolist(), right.tolist(), strict=True)
    return tuple(
        Decoded(_shown(tokenizer, token), token == wanted, sure) for token, sure, wanted in values
    )


def _shown(tokenizer: Any, token: int) -> str:
    """A token as people read it, never empty, and never breaking the line."""
    text = tokenizer.decode([token], clean_up_tokenization_spaces=False).strip(" ")
    if not text or not text.isprintable():
        text = tokenizer.convert_ids_to_tokens(token) or f"[{token}]"
    return text if text.isprintable() else repr(text)[1:-1]


def table(decoded: DecodedText) -> Table:
    """A row for each layer: right tokens green, wrong ones red and in ‹›, unsure ones dim with ?.

    It reads without colours as well. Embeddings and layers are counted as in `lens`.
    """
    from rich.table import Table
    from rich.text import Text

    said = f"decoded by the {decoded.head} head"
    shown = Table("layer", "right", said, caption=LEGEND, caption_justify="left")
    shown.columns[0].justify = shown.columns[1].justify = "right"
    shown.add_row("text", "", Text(" ".join(decoded.tokens)), end_section=True)
    for layer, tokens in enumerate(decoded.layers):
        line = Text(" ").join(Text(_plain(t), style=_style(t)) for t in tokens)
        shown.add_row(str(layer), f"{decoded.accuracy(layer):.0%}", line)
    return shown


def _plain(token: Decoded) -> str:
    text = token.token if token.right else f"{_WRONG[0]}{token.token}{_WRONG[1]}"
    return text if token.confidence >= _SURE else text + _UNSURE


def _style(token: Decoded) -> str:
    colour = "green" if token.right else "red"
    return colour if token.confidence >= _SURE else f"dim {colour}"
