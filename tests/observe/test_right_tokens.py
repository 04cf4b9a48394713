"""Which tokens are asked for, by hand."""

from __future__ import annotations

import pytest
import torch

from restack.anatomy import models
from restack.errors import DataError, StackError
from restack.observe.right_tokens import asked_tokens, states_at
from tests.families import FAMILIES, text_pair

# [CLS] 5 6 [SEP], [CLS] 7 [SEP] and padding
IDS = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]])
SPECIAL = torch.tensor([[1, 0, 0, 1], [1, 0, 1, 1]]).bool()
PRESENT = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])


def batch(ids: torch.Tensor, present: torch.Tensor, special: torch.Tensor) -> dict:
    return {"input_ids": ids, "attention_mask": present, "special_tokens_mask": special}


def test_a_masked_model_is_asked_at_the_tokens_places() -> None:
    asked = asked_tokens(batch(IDS, PRESENT, SPECIAL), "same")
    assert asked.where.tolist() == [[False, True, True, False], [False, True, False, False]]
    assert asked.right.tolist() == [5, 6, 7]
    assert asked.first.tolist() == [True, False, True]


def test_a_causal_model_is_asked_at_the_place_before() -> None:
    asked = asked_tokens(batch(IDS, PRESENT, SPECIAL), "next")
    assert asked.where.tolist() == [[True, True, False, False], [True, False, False, False]]
    assert asked.right.tolist() == [5, 6, 7]
    assert asked.first.tolist() == [True, False, True]


@pytest.mark.parametrize("reads", ["same", "next"])
def test_padding_in_front_changes_nothing(reads: str) -> None:
    behind = asked_tokens(batch(IDS, PRESENT, SPECIAL), reads)
    front = asked_tokens(
        batch(*(torch.stack([t[0], t[1].roll(1)]) for t in (IDS, PRESENT, SPECIAL))), reads
    )
    assert front.right.tolist() == behind.right.tolist()
    assert front.first.tolist() == behind.first.tolist()
    assert torch.equal(front.where[1], behind.where[1].roll(1))


def test_without_special_tokens_nothing_stands_behind_the_first() -> None:
    special = PRESENT == 0
    same = asked_tokens(batch(IDS, PRESENT, special), "same")
    following = asked_tokens(batch(IDS, PRESENT, special), "next")
    assert same.right.tolist() == [1, 5, 6, 2, 1, 7, 2]
    assert following.right.tolist() == [5, 6, 2, 7, 2]  # nothing is behind the last one
    assert not same.first.any()
    assert not following.first.any()


def test_special_tokens_within_a_text_are_no_first_ones() -> None:
    ids = torch.tensor([[1, 5, 2, 6, 2]])  # [CLS] 5 [SEP] 6 [SEP]
    special = torch.tensor([[1, 0, 1, 0, 1]]).bool()
    asked = asked_tokens(batch(ids, torch.ones_like(ids), special), "same")
    assert asked.first.tolist() == [True, False]


def test_a_batch_that_does_not_mark_special_tokens() -> None:
    with pytest.raises(DataError, match="which of its tokens are special"):
        asked_tokens({"input_ids": IDS}, "same")


def test_states_are_rows_of_the_places_asked_for() -> None:
    model = FAMILIES["bert"].build()
    with torch.no_grad():
        wanted = model(input_ids=IDS, attention_mask=PRESENT, output_hidden_states=True)
    where = asked_tokens(batch(IDS, PRESENT, SPECIAL), "same").where
    rows = states_at(model, models.pick(model), batch(IDS, PRESENT, SPECIAL), where)
    for row, state in zip(rows, wanted.hidden_states, strict=True):
        assert torch.equal(row, state[where])


@pytest.mark.parametrize("layer", [0, 3])
def test_states_that_are_not_finite_name_the_layer_where_they_begin(layer: int) -> None:
    model = FAMILIES["llama"].build()
    with torch.no_grad():
        model.model.layers[layer].mlp.down_proj.weight[0, 0] = torch.nan
    with pytest.raises(DataError, match=f"layer {layer} of `model.layers` gives NaN"):
        states_at(model, models.pick(model), batch(IDS, PRESENT, SPECIAL), PRESENT.bool())


def test_embeddings_that_are_not_finite() -> None:
    model = FAMILIES["bert"].build()
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[5] = torch.inf
    with pytest.raises(DataError, match="the embeddings give NaN"):
        states_at(model, models.pick(model), batch(IDS, PRESENT, SPECIAL), PRESENT.bool())


def test_an_encoder_with_a_decoder_is_refused() -> None:
    model = FAMILIES["t5"].build()
    with pytest.raises(StackError, match="reads one text and writes another"):
        states_at(model, models.pick(model, "decoder"), text_pair(), PRESENT.bool())
