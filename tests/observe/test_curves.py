"""Curves of plans, and their accuracy against rebuilt models."""

from __future__ import annotations

import pytest
import torch

from restack.errors import PlanError
from restack.observe.curves import plan_accuracy, plan_curve
from restack.observe.heads import graft_head
from restack.observe.lens import lens
from restack.plan import Plan
from restack.surgery import restack
from tests.families import BERT, FAMILIES, Family

IDS = torch.tensor([[1, 5, 6, 7, 8, 9, 2], [1, 12, 13, 2, 0, 0, 0]])
BATCH = {"input_ids": IDS, "attention_mask": (IDS != 0).long(), "special_tokens_mask": IDS < 3}


def texts(kind: str, depth: int = 3, **options: int) -> list[str]:
    return [str(plan) for plan in plan_curve(kind, depth, **options)]


def test_duplication_follows_the_rule_of_the_paper() -> None:
    plans = plan_curve("duplicate", 12)
    assert [len(plan) for plan in plans] == list(range(12, 25))
    assert str(plans[3]) == "0-2x2,3-11"
    assert str(plans[12]) == "0-11x2"


def test_the_ways_that_the_paper_found_worse() -> None:
    assert texts("duplicate-last") == ["0-2", "0-1,2x2", "0,1-2x2", "0-2x2"]
    assert texts("duplicate-one", to=5, layer=1) == ["0-2", "0,1x2,2", "0,1x3,2"]


def test_repetition_goes_to_50() -> None:
    plans = plan_curve("repeat", 12)
    assert [len(plan) for plan in plans] == list(range(12, 51))
    assert str(plan_curve("repeat:13", 12)[-1]) == "0-11,0"


@pytest.mark.parametrize(
    ("kind", "last"),
    [
        ("drop", "0"),
        ("drop-bottom", "4"),
        ("drop-even", "0,2,4"),
        ("drop-odd", "1,3"),
        ("drop-symmetric", "0,4"),
        ("drop-one", "0-3"),
        ("upscale", "0-4,0-4"),
    ],
)
def test_every_curve_begins_with_the_whole_stack(kind: str, last: str) -> None:
    found = texts(kind, 5)
    assert found[0] == "0-4"
    assert found[-1] == last
    assert len(set(found)) == len(found)


def test_an_even_stack_in_the_middle() -> None:
    assert texts("drop-symmetric", 6) == ["0-5", "0-1,4-5", "0,5"]
    assert texts("drop-symmetric", 5) == ["0-4", "0-1,3-4", "0,4"]


@pytest.mark.parametrize("kind", ["widen", "repeat:x", "duplicate:2", "duplicate:7", "drop:0"])
def test_curves_that_are_none(kind: str) -> None:
    with pytest.raises(PlanError):
        plan_curve(kind, 3)


@pytest.mark.parametrize(
    "name", ["bert", "albert", "xlnet", "llama", "gpt2", "gemma3_text", "bloom", "mixtral"]
)
def test_it_is_the_last_layer_of_a_rebuilt_model(name: str) -> None:
    model = FAMILIES[name].build()
    depth = model.config.num_hidden_layers
    with torch.no_grad():  # so that the tokens are not all wrong: shorter stacks read them better
        for parameter in model.parameters():
            parameter.mul_(0.5)
    plans = [Plan.parse(text, depth) for text in ("0-4", "0-2", "0-1x2,2", "0")]
    if name == "gemma3_text":
        plans = [Plan.parse(text, depth) for text in ("0-5", "0-3", "0-1,0-3")]

    curve = plan_accuracy(model, plans, [BATCH])

    assert curve.tokens == 7
    for found, plan in zip(curve.plans, plans, strict=True):
        assert found.plan == plan
        last = lens(restack(model, plan), [BATCH]).layers[-1]
        assert found.accuracy == last.accuracy


def test_layers_are_applied_once_for_what_plans_share() -> None:
    model = FAMILIES["bert"].build()
    curve = plan_accuracy(model, plan_curve("drop", 5), [BATCH, BATCH])
    assert (curve.edges, curve.layer_applications, curve.fallback) == (5, 10, None)


def test_another_head_reads_the_raw_states() -> None:
    source = FAMILIES["bert"].build()
    body = Family("bert", "BertForSequenceClassification", BERT, ()).build(seed=4)
    head = graft_head(body, source)
    curve = plan_accuracy(body, ["0-4", "0-2"], [BATCH], head=head)
    read = lens(body, [BATCH], head=head)
    assert [row.accuracy for row in curve.plans] == [
        read.layers[5].accuracy,
        read.layers[3].accuracy,
    ]


def test_json_of_a_plan() -> None:
    curve = plan_accuracy(FAMILIES["bert"].build(), ["0-1x2,2"], [BATCH])
    assert curve.plans[0].to_json() == {
        "plan": "0-1x2,2",
        "depth": 5,
        "accuracy": curve.plans[0].accuracy,
    }
