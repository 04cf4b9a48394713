"""Heads that are fitted where a model has none."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from transformers import PreTrainedModel

from restack.errors import DataError
from restack.observe.fitted_head import fit_head
from restack.observe.lens import lens
from tests.families import BERT, FAMILIES, LLAMA, Family

torch.manual_seed(2)
IDS = torch.cat([torch.ones(16, 1).long(), torch.randint(3, 23, (16, 10))], dim=1)
BATCHES = [
    {"input_ids": ids, "attention_mask": torch.ones_like(ids), "special_tokens_mask": ids < 3}
    for ids in IDS.split(4)
]
HEADLESS = {
    "bert": Family("bert", "BertModel", BERT, ()),
    "classifier": FAMILIES["roberta"],
    "narrow": Family("albert", "AlbertModel", FAMILIES["albert"].config, ()),
}


def build(family: Family) -> PreTrainedModel:
    """A tiny model whose embeddings can tell tokens apart, as those of trained models can."""
    model = family.build()
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(10)
    return model


@pytest.mark.parametrize("name", HEADLESS)
def test_it_learns_the_last_layer(name: str) -> None:
    model = build(HEADLESS[name])
    losses: list[float] = []
    head = fit_head(
        model,
        BATCHES,
        epochs=80,
        learning_rate=1e-2,
        progress=lambda what, _, loss: losses.append(loss) if what == "fitting" else None,
    )
    assert losses[-1] < 0.5 * losses[0]
    result = lens(model, BATCHES, head=head)
    assert (result.head, result.reads) == ("fitted", "same")
    assert result.layers[-1].accuracy > 0.5


def test_a_causal_model_learns_the_next_token() -> None:
    model = build(Family("llama", "LlamaModel", LLAMA, ()))
    ids = torch.arange(3, 15).repeat(8, 1)  # every token tells the one behind it
    batch = {"input_ids": ids, "special_tokens_mask": ids < 3}
    head = fit_head(model, [batch], epochs=80, learning_rate=1e-2)
    result = lens(model, [batch], head=head)
    assert result.reads == "next"
    assert result.layers[-1].accuracy > 0.9


def test_the_body_is_frozen() -> None:
    model = HEADLESS["bert"].build().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    head = fit_head(model, BATCHES, epochs=2)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, before[n]) for n, tensor in model.state_dict().items())
    assert not any(tensor.requires_grad for tensor in head.weights.values())


def test_the_seed_decides() -> None:
    model = HEADLESS["narrow"].build()
    one, again, other = (fit_head(model, BATCHES, epochs=1, seed=seed) for seed in (0, 0, 1))
    assert one.fingerprint == again.fingerprint != other.fingerprint


def test_small_chunks_learn_the_same() -> None:
    model, rows = HEADLESS["bert"].build(), torch.randn(5, 16)
    one, other = (
        fit_head(model, BATCHES, epochs=2, memory=memory) for memory in (1 << 14, 1 << 26)
    )
    with torch.no_grad():
        torch.testing.assert_close(one.logits(rows), other.logits(rows), rtol=1e-3, atol=1e-4)


def test_it_reads_no_more_tokens_than_it_may() -> None:
    told: Counter[str] = Counter()
    fit_head(
        HEADLESS["bert"].build(),
        BATCHES,
        epochs=1,
        most_tokens=50,
        progress=lambda what, tokens, _: told.update({what: tokens}),
    )
    assert told["fitting"] == 50
    assert told["states"] >= 50


def test_a_batch_that_does_not_fit_is_halved(capsys: pytest.CaptureFixture[str]) -> None:
    model = build(HEADLESS["bert"])

    def scarce(_: object, args: tuple[torch.Tensor, ...]) -> None:
        if len(args[0]) > 2 and args[0].shape[1] > 1:  # heads are run on texts of one token
            raise torch.OutOfMemoryError("CUDA out of memory")

    told: list[int] = []
    model.encoder.layer[0].register_forward_pre_hook(scarce)
    fit_head(
        model,
        BATCHES,
        epochs=1,
        progress=lambda what, count, _: told.append(count) if what == "states" else None,
    )
    assert told == [20] * 8
    assert "out of memory with 4 rows; going on with 2" in capsys.readouterr().err


def test_texts_without_tokens() -> None:
    ids = torch.tensor([[1, 2]])
    with pytest.raises(DataError, match="no token"):
        fit_head(HEADLESS["bert"].build(), [{"input_ids": ids, "special_tokens_mask": ids < 3}])
