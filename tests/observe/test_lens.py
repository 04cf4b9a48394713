"""The lens against its definition on whole logits, its counts, and real models."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from restack.data import load_texts
from restack.data.batches import batches
from restack.data.tokens import tokenize
from restack.errors import DataError
from restack.observe.curves import plan_accuracy, plan_curve
from restack.observe.fitted_head import fit_head
from restack.observe.heads import graft_head, own_head
from restack.observe.lens import LensResult, lens
from restack.observe.right_tokens import asked_tokens
from restack.observe.tuned import tune_lens
from tests.families import BERT, FAMILIES, Family

IDS = torch.tensor([[1, 5, 6, 7, 8, 9, 2], [1, 12, 13, 2, 0, 0, 0], [1, 20, 21, 22, 23, 2, 0]])


def batch(ids: Tensor = IDS) -> dict[str, Tensor]:
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "special_tokens_mask": ids < 3,
        "indices": torch.arange(len(ids)),
    }


def accuracies(result: LensResult) -> list[float]:
    return [layer.accuracy for layer in result.layers]


def check(result: LensResult, logits: list[Tensor], right: Tensor, first: Tensor) -> None:
    """Compare with the definitions, on the whole logits of the tokens that are asked for."""
    assert (result.tokens, result.first_tokens) == (len(right), int(first.sum()))
    assert [layer.layer for layer in result.layers] == list(range(len(logits)))
    for found, after, given in zip(result.layers, result.after_first, logits, strict=True):
        order = given.argsort(-1, descending=True)
        hit = order[:, 0] == right
        rank = (order == right[:, None]).int().argmax(-1) + 1
        logprob = given.log_softmax(-1).gather(-1, right[:, None])
        assert found.accuracy == pytest.approx(hit.double().mean().item())
        assert found.top5 == pytest.approx((rank <= 5).double().mean().item())
        assert found.rank == pytest.approx(rank.double().mean().item())
        assert found.logprob == pytest.approx(logprob.double().mean().item(), rel=1e-5)
        agree = order[:, 0] == logits[-1].argmax(-1)
        assert found.agreement == pytest.approx(agree.double().mean().item())
        assert after == pytest.approx(hit[first].double().mean().item())


def test_a_masked_model_by_definition() -> None:
    model, given = FAMILIES["bert"].build(), batch()
    with torch.no_grad():
        states = model(
            given["input_ids"], given["attention_mask"], output_hidden_states=True
        ).hidden_states
        logits = [model.cls(state)[given["input_ids"] > 2] for state in states]
    where = given["input_ids"] > 2
    first = torch.zeros_like(where)
    first[:, 1] = True
    check(lens(model, [given]), logits, given["input_ids"][where], first[where])


def test_a_causal_model_by_definition_with_its_norm_once() -> None:
    model, given = FAMILIES["llama"].build(), batch()
    ids = given["input_ids"]
    kept: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, args: kept.append(args[0]))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        last = model(ids, given["attention_mask"]).logits
        logits = [*(model.lm_head(model.model.norm(state)) for state in kept), last]
    for hook in hooks:
        hook.remove()
    where = (ids > 2)[:, 1:]
    first = torch.zeros_like(where)
    first[:, 0] = True
    rows = [given[:, :-1][where] for given in logits]
    result = lens(model, [batch()])
    assert result.reads == "next"
    check(result, rows, ids[:, 1:][where], first[where])


def test_how_texts_are_batched_does_not_matter() -> None:
    model = FAMILIES["llama"].build()
    together, apart = lens(model, [batch()]), lens(model, [batch(IDS[:1]), batch(IDS[1:, :6])])
    assert accuracies(together) == accuracies(apart)
    assert together.tokens == apart.tokens
    for one, other in zip(together.layers, apart.layers, strict=True):
        assert one.logprob == pytest.approx(other.logprob, rel=1e-5)


def test_small_chunks_give_the_same() -> None:
    model = FAMILIES["bert"].build()
    one_by_one, together = lens(model, [batch()], memory=1), lens(model, [batch()])
    assert one_by_one.after_first == together.after_first
    for one, other in zip(one_by_one.layers, together.layers, strict=True):
        # another number of rows may take another way through a matrix product
        assert asdict(one) == pytest.approx(asdict(other), rel=1e-5)


class Largest(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation makes."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.size = max(self.size, *sizes, 0) if sizes else self.size
        return result


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_tokens_by_vocabulary_are_never_held(kind: str) -> None:
    family = FAMILIES[kind]
    vocab = 5000
    model = replace(family, config={**family.config, "vocab_size": vocab}).build()
    head = own_head(model)
    given = batch(torch.randint(3, vocab, (8, 50)))
    chunk = 10  # rows of logits
    with Largest() as largest:
        lens(model, [given], head=head, memory=4 * 3 * vocab * chunk)
    assert largest.size <= max(chunk, 16) * vocab  # 16: the embeddings are as wide as that


def test_a_batch_that_does_not_fit_is_halved(capsys: pytest.CaptureFixture[str]) -> None:
    model = FAMILIES["bert"].build()
    whole, head = lens(model, [batch()]), own_head(model)

    def scarce(rows: Tensor) -> Tensor:
        if len(rows) > 6:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return head.logits(rows)

    halved = lens(model, [batch()], head=replace(head, logits=scarce))
    assert accuracies(halved) == accuracies(whole)
    assert halved.tokens == whole.tokens
    assert "out of memory" in capsys.readouterr().err


def test_progress_counts_tokens_for_each_layer() -> None:
    told: list[int] = []
    lens(FAMILIES["bert"].build(), [batch(IDS[:1]), batch(IDS[1:])], progress=told.append)
    assert told == [5] * 6 + [6] * 6


def test_batches_without_a_token_to_read_are_passed_over() -> None:
    model, empty = FAMILIES["bert"].build(), torch.tensor([[1, 2]])
    assert lens(model, [batch(empty), batch()]).tokens == 11
    with pytest.raises(DataError, match="only special tokens"):
        lens(model, [batch(empty)])
    with pytest.raises(DataError, match="no token"):
        lens(FAMILIES["llama"].build(), [])


def test_ids_beyond_the_vocabulary() -> None:
    with pytest.raises(DataError, match="not in the model's vocabulary"):
        lens(FAMILIES["bert"].build(), [batch(torch.tensor([[1, 99, 2]]))])


def test_texts_without_special_tokens_have_none_behind_the_first() -> None:
    result = lens(FAMILIES["gpt2"].build(), [batch(IDS[:, 1:3])])
    assert result.first_tokens == 0
    assert result.after_first == (None,) * 6


def test_json_has_the_published_shape() -> None:
    model = FAMILIES["bert"].build()
    tuned = tune_lens(model, [batch()], epochs=1)
    result = lens(model, [batch()], tuned=tuned)
    result = replace(result, plans=plan_accuracy(model, ["0-3"], [batch()]).plans)
    found = result.to_json()
    scores = {"layer", "accuracy", "top5", "rank", "logprob", "agreement"}
    assert found["model"] == "BertForMaskedLM"
    assert (found["head"], found["reads"], found["tokens"]) == ("own", "same", 11)
    assert [set(row) for row in found["layers"]] == [scores] * 6
    assert len(found["after_first"]) == 6
    assert found["plans"] == [{"plan": "0-3", "depth": 4, "accuracy": result.plans[0].accuracy}]
    assert set(found["tuned"]) == {"layers", "after_first"}


def test_a_tuned_lens_is_told_beside_the_plain_one() -> None:
    model = FAMILIES["llama"].build()
    plain, tuned = lens(model, [batch()]), tune_lens(model, [batch()], epochs=60)
    both = lens(model, [batch()], tuned=tuned)
    assert both.tuned is not None
    assert both.layers == plain.layers
    assert both.tuned.layers[-1] == plain.layers[-1]
    assert both.tuned.layers[1].agreement > plain.layers[1].agreement


def test_results_name_the_head() -> None:
    model, given = FAMILIES["bert"].build(), batch()
    body = Family("bert", "BertModel", BERT, ()).build()
    assert lens(body, [given], head=fit_head(body, [given], epochs=1)).head == "fitted"
    assert lens(body, [given], head=graft_head(body, model, label="there")).head == "there"


def test_a_grafted_head_reads_the_states_of_the_body() -> None:
    source = FAMILIES["bert"].build()
    body = Family("bert", "BertModel", BERT, ()).build(seed=7)
    given = batch()
    with torch.no_grad():
        states = body(
            given["input_ids"], given["attention_mask"], output_hidden_states=True
        ).hidden_states
    asked = asked_tokens(given, "same")
    logits = [source.cls(state)[asked.where] for state in states]
    check(lens(body, [given], head=graft_head(body, source)), logits, asked.right, asked.first)


def reactions(shared: Path, model: str, limit: int | None) -> tuple[Any, list[dict[str, Tensor]]]:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    place = shared / "models" / model
    texts = load_texts(shared / "data" / "reactions", split="validation", limit=limit)
    tokens = tokenize(AutoTokenizer.from_pretrained(place), texts.texts, max_length=512)
    return AutoModelForMaskedLM.from_pretrained(place).eval(), list(batches(tokens, 4096))


@pytest.mark.real
def test_albert_decodes_the_most_from_layer_1_on(shared: Path) -> None:
    model, texts = reactions(shared, "rxnmapper-albert-12L-256", 60)
    found = accuracies(lens(model, texts))
    assert 0.10 < found[0] < 0.14
    assert 0.85 < found[1] < 0.90
    assert all(0.97 < accuracy < 1 for accuracy in found[2:])


@pytest.mark.real
def test_bert_decodes_three_quarters_and_more_at_every_layer(shared: Path) -> None:
    model, texts = reactions(shared, "rxnfp-bert-12L-256", 60)
    result = lens(model, texts)
    assert all(0.76 < accuracy < 0.985 for accuracy in accuracies(result))
    assert result.layers[12].accuracy == max(accuracies(result))
    assert result.after_first[0] < 0.2
    assert result.after_first[12] > 0.95


@pytest.mark.real
def test_duplicated_and_repeated_layers_keep_four_fifths(shared: Path) -> None:
    bert, texts = reactions(shared, "rxnfp-bert-12L-256", 20)
    doubled = plan_accuracy(bert, plan_curve("duplicate", 12)[-1:], texts).plans[0]
    assert len(doubled.plan) == 24
    assert doubled.accuracy > 0.8
    albert, texts = reactions(shared, "rxnmapper-albert-12L-256", 20)
    repeated = plan_accuracy(albert, plan_curve("repeat", 12)[-1:], texts).plans[0]
    assert len(repeated.plan) == 50
    assert 0.7 < repeated.accuracy < 0.95
