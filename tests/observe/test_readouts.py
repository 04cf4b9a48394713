"""What is read at the end of a plan: token by token, in pieces, and over batches."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from restack.data.tasks import Task
from restack.errors import DataError, StackError
from restack.observe import leaf as leaf_module
from restack.observe import readouts
from restack.observe.evaluate import evaluate
from restack.observe.readouts import Readout
from restack.plan import Plan
from tests.families import FAMILIES, text

MASKED = ["bert", "albert", "electra", "modernbert", "mpnet", "esm"]
CAUSAL = [name for name, family in FAMILIES.items() if "CausalLM" in family.cls] + ["gpt2", "xlnet"]


def marked() -> dict[str, Tensor]:
    """Two texts between special tokens, the second one padded."""
    batch = text()
    special = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    special[:, 0] = True
    special[0, 6] = special[1, 3:] = True
    return {**batch, "special_tokens_mask": special, "indices": torch.tensor([1, 0])}


def one(name: str, readout: Readout, batch: dict[str, Tensor], **more: Any) -> dict[str, Any]:
    model = FAMILIES[name].build()
    plan = Plan.identity(FAMILIES[name].config.get("num_hidden_layers", 5))
    if name in ("gpt_neo", "t5", "bart"):
        plan = Plan.identity(6 if name == "gpt_neo" else 4)
    return evaluate(model, [plan], [batch], readout, check=False, **more).results[0]


def whole_logits(name: str, batch: dict[str, Tensor]) -> Tensor:
    known = {k: v for k, v in batch.items() if k not in ("special_tokens_mask", "indices")}
    with torch.no_grad():
        return FAMILIES[name].build()(**known).logits


@pytest.mark.parametrize("name", MASKED)
def test_token_accuracy_counts_real_tokens(name: str) -> None:
    batch = marked()
    result = one(name, readouts.token_accuracy(), batch)
    right = whole_logits(name, batch).argmax(-1) == batch["input_ids"]
    real = ~batch["special_tokens_mask"]
    assert result["tokens"] == 5 + 2
    assert result["accuracy"] == right[real].sum() / 7


@pytest.mark.parametrize("name", MASKED)
def test_masked_loss_is_the_model_s_own(name: str) -> None:
    labels = torch.full((2, 7), -100)
    labels[0, 2], labels[1, 1], labels[1, 2] = 5, 6, 7
    batch = {**marked(), "labels": labels}
    result = one(name, readouts.masked_lm(), batch)
    with torch.no_grad():
        loss = FAMILIES[name].build()(**text(), labels=labels).loss.item()
    assert result["tokens"] == 3
    assert result["loss"] == pytest.approx(loss, rel=1e-5)
    assert result["perplexity"] == pytest.approx(math.exp(loss), rel=1e-4)


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_loss_is_that_of_the_next_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaf_module, "HEAD_BYTES", 1)  # pieces of 16 tokens
    ids = torch.randint(3, 99, (5, 8), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    batch["attention_mask"][4, 5:] = 0
    batch["indices"] = torch.arange(5)
    result = one(name, readouts.causal_lm(), batch)
    logits = whole_logits(name, batch)[:, :-1]
    chosen = batch["attention_mask"][:, 1:].bool()
    loss = functional.cross_entropy(logits[chosen].float(), ids[:, 1:][chosen]).item()
    assert result["tokens"] == 4 * 7 + 4
    assert result["loss"] == pytest.approx(loss, rel=1e-5)
    right = (logits.argmax(-1) == ids[:, 1:])[chosen]
    assert result["accuracy"] == pytest.approx(right.float().mean().item())


def test_padding_on_the_left() -> None:
    ids = torch.tensor([[0, 0, 5, 6, 7], [8, 9, 10, 11, 12]])
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    assert one("gpt2", readouts.causal_lm(), batch)["tokens"] == 2 + 4


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_the_labels_of_a_decoder_are_not_shifted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaf_module, "HEAD_BYTES", 1)
    labels = torch.randint(3, 99, (2, 14), generator=torch.Generator().manual_seed(0))
    labels[1, 9:] = -100
    batch = {**text(), "labels": labels}
    result = one(name, readouts.causal_lm(), batch, stack="decoder")
    with torch.no_grad():
        loss = FAMILIES[name].build()(**batch).loss.item()
    assert result["tokens"] == 14 + 9  # in two pieces
    assert result["loss"] == pytest.approx(loss, rel=1e-5)


def test_the_vocabulary_is_never_there_for_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaf_module, "HEAD_BYTES", 20 * 4 * 99)
    model = FAMILIES["bert"].build()
    sizes: list[int] = []
    decoder = model.get_output_embeddings()
    decoder.register_forward_hook(lambda module, args, output: sizes.append(output.numel() // 99))
    ids = torch.randint(3, 99, (30, 7), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    result = evaluate(model, ["0-4"], [batch], readouts.token_accuracy()).results[0]
    assert result["tokens"] == sum(sizes) == 210
    assert max(sizes) == 20


def test_means_are_over_all_batches() -> None:
    batches = [marked(), {k: v[:1] for k, v in marked().items()}]
    model = FAMILIES["bert"].build()
    run = evaluate(model, ["0-4"], batches, readouts.token_accuracy())
    apart = [one("bert", readouts.token_accuracy(), batch) for batch in batches]
    assert run.results[0]["tokens"] == 7 + 5
    right = sum(result["accuracy"] * result["tokens"] for result in apart)
    assert run.results[0]["accuracy"] == pytest.approx(right / 12)


TASK = Task("colours", "classification", ("text",), "label", ("red", "blue"), ("accuracy", "f1"))
GRADES = dataclasses.replace(TASK, kind="regression", labels=(), metrics=("pearson",))


def test_metrics_of_a_task() -> None:
    model = FAMILIES["roberta"].build()
    batches = [{k: v[[i]] for k, v in marked().items()} for i in (0, 1)]
    labels = [0, 1]
    readout = readouts.task_metrics(TASK, labels)
    result = evaluate(model, ["0-4"], batches, readout).results[0]
    with torch.no_grad():
        logits = torch.cat([model(**text_of(batch)).logits for batch in batches])
    wanted = torch.tensor([labels[1], labels[0]])  # the batches hold row 1, then row 0
    assert result["accuracy"] == (logits.argmax(-1) == wanted).float().mean()
    assert result["loss"] == pytest.approx(functional.cross_entropy(logits, wanted).item())
    assert result["rows"] == 2
    assert set(result) == {"accuracy", "f1", "loss", "rows"}


def text_of(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


@pytest.mark.parametrize(
    ("name", "readout", "drop", "error", "message"),
    [
        (
            "roberta",
            readouts.task_metrics(GRADES, [1.0, 2.0]),
            (),
            DataError,
            "gives 1 number a row",
        ),
        ("roberta", readouts.task_metrics(TASK, [0, 1]), ("indices",), DataError, "indices"),
        ("roberta", readouts.token_accuracy(), (), StackError, "no language-model head"),
        ("bert", readouts.masked_lm(), (), DataError, "labels"),
        ("clip", readouts.pooled(), (), StackError, "last hidden state"),
    ],
)
def test_what_cannot_be_read(
    name: str, readout: Readout, drop: tuple[str, ...], error: type[Exception], message: str
) -> None:
    model = FAMILIES[name].build()
    batch = marked() if name != "clip" else FAMILIES[name].inputs()
    batch = {key: value for key, value in batch.items() if key not in drop}
    stack = "vision" if name == "clip" else None
    with pytest.raises(error, match=message):
        evaluate(model, ["0-4"], [batch], readout, stack=stack)


def test_texts_of_special_tokens_only() -> None:
    batch = {**text(), "special_tokens_mask": torch.ones(2, 7, dtype=torch.bool)}
    with pytest.raises(DataError, match="no token was read"):
        one("bert", readouts.token_accuracy(), batch)


@pytest.mark.parametrize("how", ["mean", "cls", "last"])
def test_pooled_features_are_in_the_order_of_the_rows(how: Any) -> None:
    model = FAMILIES["llama"].build()
    batch = marked()
    result = evaluate(model, ["0-4"], [batch], readouts.pooled(how)).results[0]["features"]
    with torch.no_grad():
        states = model.model(**text()).last_hidden_state
    by_hand = {
        "mean": [states[0].mean(0), states[1, :4].mean(0)],
        "cls": [states[0, 0], states[1, 0]],
        "last": [states[0, 6], states[1, 3]],
    }[how]
    expected = torch.stack(by_hand[::-1]).numpy()  # the batch holds row 1, then row 0
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_pooling_without_a_mask_takes_all_tokens() -> None:
    batch = {"input_ids": text()["input_ids"][:1]}
    model = FAMILIES["bert"].build()
    found = evaluate(model, ["0-4"], [batch], readouts.pooled("last"), check=False).results[0]
    with torch.no_grad():
        state = model.bert(**batch).last_hidden_state
    np.testing.assert_allclose(found["features"], state[:, -1].numpy(), rtol=1e-5)


def test_the_class_token_of_xlnet_is_its_last() -> None:
    model, batch = FAMILIES["xlnet"].build(), {"input_ids": text()["input_ids"][:1]}
    cls, last = (
        evaluate(model, ["0-4"], [batch], readouts.pooled(how), check=False).results[0]["features"]
        for how in ("cls", "last")
    )
    assert (cls == last).all()


def test_an_unknown_way_to_pool() -> None:
    with pytest.raises(DataError, match="median"):
        readouts.pooled("median")  # type: ignore[arg-type]


def test_sums_add_up_and_rows_are_joined() -> None:
    total: dict[str, Any] = {}
    for size in (1, 2):
        rows = torch.full((size, 2), float(size))
        readouts.add(total, {"count": size, "sum": torch.tensor(0.5), "rows": rows})
    result = readouts.settle(Readout(lambda leaf: {}), total)
    assert result["count"] == 3
    assert result["sum"] == 1.0
    assert result["rows"].tolist() == [[1, 1], [2, 2], [2, 2]]
