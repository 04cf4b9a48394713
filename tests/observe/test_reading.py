"""Which tokens count, which stand for their texts, and how stacks read."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from restack.anatomy import models
from restack.errors import DataError
from restack.observe.reading import Reading, anchors, pieces, pool, reading_of, real_tokens
from tests.families import FAMILIES

NAMES = ["what enters layer 0", "what leaves layer 0", "what leaves layer 1", "the last"]


@pytest.mark.parametrize(
    ("name", "stack", "expected"),
    [
        ("bert", None, Reading(False, "first")),
        ("modernbert", None, Reading(False, "first")),
        ("xlnet", None, Reading(False, "last")),  # its class token is the last
        ("gpt2", None, Reading(True, "last")),
        ("qwen2-sliding", None, Reading(True, "last")),
        ("t5", "encoder.block", Reading(False, "first")),
        ("t5", "decoder.block", Reading(True, "last")),
        ("vit", None, Reading(False, "first")),
    ],
)
def test_how_stacks_read(name: str, stack: str | None, expected: Reading) -> None:
    family = FAMILIES[name]
    model = family.build()
    assert reading_of(model, models.pick(model, stack), family.inputs()) == expected


def test_the_anchor_can_be_chosen() -> None:
    model = FAMILIES["gpt2"].build()
    stack, inputs = models.pick(model), FAMILIES["gpt2"].inputs()
    assert reading_of(model, stack, inputs, "first") == Reading(True, "first")
    with pytest.raises(DataError, match="no anchor 'middle'"):
        reading_of(model, stack, inputs, "middle")  # type: ignore[arg-type]


def test_real_tokens_are_those_of_the_stack() -> None:
    model = FAMILIES["t5"].build()
    batch: dict[str, Any] = {
        "attention_mask": torch.tensor([[1, 1, 1, 0]]),
        "decoder_attention_mask": torch.tensor([[1, 0]]),
    }
    encoder, decoder = (models.pick(model, f"{part}.block") for part in ("encoder", "decoder"))
    assert real_tokens(model, encoder, batch, torch.ones(1, 4, 8)).tolist() == [[1, 1, 1, 0]]
    assert real_tokens(model, decoder, batch, torch.ones(1, 2, 8)).tolist() == [[1, 0]]
    del batch["decoder_attention_mask"]
    assert real_tokens(model, decoder, batch, torch.ones(1, 2, 8)).all()
    # states that the model filled up behind the text, and masks by the sample of a sound
    assert real_tokens(model, encoder, batch, torch.ones(1, 6, 8)).sum() == 3
    assert real_tokens(model, encoder, batch, torch.ones(1, 2, 8)).all()


def test_anchors() -> None:
    real = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 1, 0]]).bool()
    assert anchors(real, "first").tolist() == [0, 1, 1]
    assert anchors(real, "last").tolist() == [1, 2, 1]
    with pytest.raises(DataError, match="row 1 of a batch has no token"):
        anchors(torch.tensor([[1, 1], [0, 0]]).bool(), "first")


def test_pieces_hold_every_real_token_once() -> None:
    """Also where there are more than one piece can hold."""
    hidden = 1 << 16  # a piece is then 64 tokens
    state = torch.arange(150.0).reshape(2, 75, 1).expand(2, 75, hidden)
    real = torch.ones(2, 75, dtype=torch.bool)
    real[1, 50:] = False
    seen = list(pieces([state, state], real, "last", NAMES))
    assert [len(x) for x, _ in seen] == [64, 61]
    tokens = torch.cat([x[:, 0, 0] for x, _ in seen])
    assert tokens.tolist() == [*range(125)]
    assert tokens[torch.cat([a for _, a in seen])].tolist() == [74, 124]


@pytest.mark.parametrize(("state", "where"), [(0, "enters layer 0"), (2, "leaves layer 1")])
def test_activations_that_are_not_finite_are_named_by_layer(state: int, where: str) -> None:
    states = [torch.ones(1, 2, 3) for _ in range(4)]
    for later in states[state:]:
        later[0, 1, 0] = math.nan
    real = torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(DataError, match=f"{where} holds"):
        list(pieces(states, real, "first", NAMES))
    real[0, 1] = False  # as padding they do no harm
    list(pieces(states, real, "first", NAMES))


def test_what_lies_in_the_padding_does_not_matter() -> None:
    states = [torch.randn(2, 4, 3) for _ in range(2)]
    real = torch.tensor([[True, True, True, True], [True, True, False, False]])
    wanted = states[1][1, :2].mean(0)
    states[1][1, 2:] = float("nan")
    assert torch.allclose(pool(states, real, "mean")[1, 1], wanted)
    # and in front
    front = [state.flip(1) for state in states]
    assert torch.equal(pool(front, real.flip(1), "cls")[1, 0], states[0][1, 1])
