"""Gradients through stacks, and the first-order estimate beside what really happens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from restack.anatomy import models
from restack.data.tasks import Task
from restack.errors import DataError, StackError
from restack.observe.reading import pieces, real_tokens, state_names
from restack.observe.stack_run import layer_states
from restack.observe.taylor import Gradients, Loss, Taylor, gradients, language_loss, task_loss
from restack.surgery import restack
from tests.families import BERT, FAMILIES

LANGUAGE = ("bert", "albert", "xlnet", "modernbert", "gpt2", "llama", "falcon")


def batch(**more: Any) -> dict[str, Any]:
    ids = torch.tensor([[1, 6, 7, 8, 9, 10, 2], [1, 13, 14, 2, 0, 0, 0]])
    special = (ids < 3).clone()
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "special_tokens_mask": special,
        "indices": torch.tensor([0, 1]),
        **more,
    }


def run(model: PreTrainedModel, given: dict[str, Any], loss: Loss) -> tuple[Taylor, Gradients]:
    stack = models.pick(model)
    found = gradients(model, stack, given, loss)
    taylor = Taylor(stack.depth + 1)
    taylor.count(found)
    real = real_tokens(model, stack, given, found.states[0])
    names = state_names(stack) * 2
    for x, _ in pieces([*found.states, *found.gradients], real, "first", names):
        taylor.add(x)
    return taylor, found


def shrink(model: PreTrainedModel, layer: int, scale: float) -> None:
    """Let a layer of GPT-2 add next to nothing."""
    with torch.no_grad():
        block = model.transformer.h[layer]
        for part in (block.attn.c_proj, block.mlp.c_proj):
            part.weight *= scale
            part.bias *= scale


def exact(model: PreTrainedModel, given: dict[str, Any], plan: str) -> float:
    """The mean loss of the next token in a model that is rebuilt without the layers."""
    rebuilt = restack(model, plan)
    with torch.no_grad():
        logits = rebuilt(given["input_ids"], attention_mask=given["attention_mask"]).logits
    counted = given["attention_mask"][:, 1:].bool()
    return float(
        functional.cross_entropy(logits[:, :-1][counted], given["input_ids"][:, 1:][counted])
    )


@pytest.mark.parametrize("name", LANGUAGE)
def test_gradients_are_those_of_the_model(name: str) -> None:
    """States, loss and slopes by the heads' own chunks are those of one plain backward pass."""
    model, given = FAMILIES[name].build(), batch()
    stack = models.pick(model)
    loss = language_loss(model, stack, given)
    found = gradients(model, stack, given, loss)

    plain = layer_states(model, given, stack, grad=True)
    logits = plain.output.logits
    ids, mask = given["input_ids"], given["attention_mask"].bool()
    if "next" in loss.what:
        where = mask[:, 1:]
        logits, right = logits[:, :-1][where], ids[:, 1:][where]
    else:
        where = mask & ~given["special_tokens_mask"]
        logits, right = logits[where], ids[where]
    total = functional.cross_entropy(logits, right, reduction="sum")
    assert found.count == len(right)
    assert found.loss == pytest.approx(total.item(), rel=1e-5)
    for mine, state in zip(found.states, plain.states, strict=True):
        torch.testing.assert_close(mine, state.detach())
    if name != "xlnet":  # its states are turned on the way out, and are no part of the graph
        expected = torch.autograd.grad(total, plain.states[1:])
        for mine, slope in zip(found.gradients, expected, strict=True):
            torch.testing.assert_close(mine, slope, atol=1e-5, rtol=1e-3)


def test_a_slope_is_the_change_of_the_loss() -> None:
    """Also of XLNet, whose layers take tokens x batch."""
    model, given = FAMILIES["xlnet"].build(), batch()
    stack = models.pick(model)
    loss = language_loss(model, stack, given)
    slope = gradients(model, stack, given, loss).gradients[-1].sum((0, 1))
    bias = model.transformer.layer[-1].ff.layer_norm.bias  # is added to all that leaves the layer
    losses = []
    for shift in (0.02, -0.04):
        with torch.no_grad():
            bias += shift * torch.arange(len(bias))
        losses.append(gradients(model, stack, given, loss).loss)
    expected = float(slope @ torch.arange(16.0)) * 0.04
    assert losses[0] - losses[1] == pytest.approx(expected, rel=0.02)


def test_an_identity_layer_is_worth_nothing() -> None:
    model = FAMILIES["gpt2"].build()
    shrink(model, 2, 0)
    taylor, _ = run(model, batch(), language_loss(model, models.pick(model), batch()))
    assert taylor.increase(2, 1) == 0
    assert taylor.increase(1, 1) != 0
    assert taylor.increase(1, 2) == pytest.approx(taylor.increase(1, 1), rel=1e-6)


def test_it_comes_close_to_the_exact_increase_of_layers_that_do_little() -> None:
    given = batch()
    errors = []
    for scale in (0.1, 0.01):
        model = FAMILIES["gpt2"].build().double()
        for layer in (1, 2):
            shrink(model, layer, scale)
        taylor, _ = run(model, given, language_loss(model, models.pick(model), given))
        whole = exact(model, given, "0-4")
        assert taylor.loss == pytest.approx(whole)
        for plan, span in (("0,2-4", (1, 1)), ("0-1,3-4", (2, 1)), ("0,3-4", (1, 2))):
            increase = exact(model, given, plan) - whole
            assert taylor.increase(*span) == pytest.approx(increase, rel=5 * scale)
        errors.append(abs(taylor.increase(1, 1) - (exact(model, given, "0,2-4") - whole)))
    # of second order: a tenth of the effect, a hundredth of the error
    assert errors[1] < errors[0] / 30


def test_padding_changes_nothing() -> None:
    model = FAMILIES["llama"].build()
    given, wide = batch(), batch()
    for name in ("input_ids", "attention_mask", "special_tokens_mask"):
        wide[name] = functional.pad(given[name].long(), (0, 4), value=int("mask" in name))
    wide["special_tokens_mask"] = wide["special_tokens_mask"].bool()
    wide["attention_mask"] = functional.pad(given["attention_mask"], (0, 4))
    stack = models.pick(model)
    loss = language_loss(model, stack, given)
    narrow, padded = run(model, given, loss)[0], run(model, wide, loss)[0]
    assert padded.loss == pytest.approx(narrow.loss, rel=1e-6)
    for layer in range(stack.depth):
        assert padded.increase(layer, 1) == pytest.approx(narrow.increase(layer, 1), abs=1e-6)


def test_the_model_is_left_as_it_was() -> None:
    model = FAMILIES["bert"].build().train()
    model.bert.embeddings.requires_grad_(False)
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    run(model, batch(), language_loss(model, models.pick(model), batch()))
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    assert all(p.grad is None for p in model.parameters())
    assert model.training
    assert not model.bert.encoder.layer[0]._forward_hooks


def test_a_wholly_frozen_model_has_gradients_too() -> None:
    model = FAMILIES["gpt2"].build().requires_grad_(False)
    taylor, _ = run(model, batch(), language_loss(model, models.pick(model), batch()))
    assert taylor.increase(0, 1) != 0


def test_labels_of_the_batch_count_where_there_are_any() -> None:
    model = FAMILIES["bert"].build()
    labels = torch.full((2, 7), -100)
    labels[0, 2] = 50
    given = batch(labels=labels)
    found = run(model, given, language_loss(model, models.pick(model), given))[1]
    with torch.no_grad():
        logits = model(given["input_ids"], attention_mask=given["attention_mask"]).logits
    assert found.count == 1
    assert found.loss == pytest.approx(float(-logits[0, 2].log_softmax(-1)[50]), rel=1e-5)


def test_texts_of_one_token() -> None:
    model = FAMILIES["gpt2"].build()
    ids = torch.tensor([[5], [6]])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    taylor, found = run(model, given, language_loss(model, models.pick(model), given))
    assert found.count == 0
    with pytest.raises(DataError, match="no token or label"):
        _ = taylor.loss
    both = batch()
    for part in (
        found,
        gradients(model, models.pick(model), both, language_loss(model, models.pick(model), both)),
    ):
        taylor.count(part)
    assert taylor.loss > 0


@pytest.mark.parametrize(
    ("kind", "labels"),
    [("classification", [2, 0]), ("regression", [0.5, -1.0]), ("multilabel", [(0, 2), ()])],
)
def test_losses_of_tasks(kind: Any, labels: list[Any]) -> None:
    """As transformers' own heads compute them."""
    names = ("a",) if kind == "regression" else ("a", "b", "c")
    task = Task("mine", kind, ("text",), "label", names if kind != "regression" else ())
    problem = {"classification": "single_label", "multilabel": "multi_label"}.get(kind)
    config = AutoConfig.for_model(
        "bert",
        **BERT,
        num_labels=len(names),
        problem_type=f"{problem}_classification" if problem else "regression",
    )
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    wanted = {
        "classification": torch.tensor([2, 0]),
        "regression": torch.tensor([0.5, -1.0]),
        "multilabel": torch.tensor([[1.0, 0, 1], [0, 0, 0]]),
    }[kind]
    taylor, found = run(model, batch(), task_loss(task, labels))
    with torch.no_grad():
        ids, mask = batch()["input_ids"], batch()["attention_mask"]
        loss = model(ids, attention_mask=mask, labels=wanted).loss
    assert taylor.loss == pytest.approx(float(loss), rel=1e-5)
    assert found.count == 2
    # the classifier reads the first token alone
    assert found.gradients[-1][:, 1:].abs().max() == 0
    assert found.gradients[-1][:, 0].abs().min() >= 0 < found.gradients[-1][:, 0].abs().max()


def test_bad_losses() -> None:
    with pytest.raises(DataError, match=r"squad \(span\) has no one label"):
        task_loss(Task("squad", "span", ("q", "c"), "answers"), [])
    model = FAMILIES["roberta"].build()
    with pytest.raises(StackError, match="no language-modelling head"):
        language_loss(model, models.pick(model), batch())
    model = FAMILIES["t5"].build()
    with pytest.raises(DataError, match="no `labels`"):
        language_loss(model, models.pick(model, "decoder.block"), batch())
