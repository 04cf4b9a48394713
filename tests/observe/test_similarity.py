"""Two models side by side, against values by hand."""

from __future__ import annotations

import copy
import json
import math
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import BertConfig, BertModel, PreTrainedModel

from restack.anatomy import models
from restack.errors import DataError, PlanError, StackError
from restack.observe.similarity import SimilarityResult, compare
from restack.observe.stack_run import layer_states
from restack.surgery import restack
from tests.families import BERT, FAMILIES


def batch() -> dict[str, Any]:
    ids = torch.tensor([[1, 6, 7, 8, 9, 10, 2], [1, 13, 14, 2, 0, 0, 0]])
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "special_tokens_mask": ids < 3,
        "indices": torch.tensor([0, 1]),
    }


def tuned(model: PreTrainedModel, first: int) -> PreTrainedModel:
    """A copy whose BERT layers from one on have moved by known amounts."""
    other = copy.deepcopy(model)
    torch.manual_seed(9)
    with torch.no_grad():
        for layer in list(other.base_model.encoder.layer)[first:]:
            for weight in layer.parameters():
                weight.add_(torch.randn_like(weight) * 0.1)
    return other


def values(result: SimilarityResult, name: str) -> list[Any]:
    return [getattr(row, name) for row in result.layers]


@pytest.mark.parametrize(
    ("name", "stack"), [("bert", None), ("gpt2", None), ("xlnet", None), ("t5", "decoder.block")]
)
def test_a_model_is_like_itself(name: str, stack: str | None) -> None:
    family = FAMILIES[name]
    model = family.build()
    result = compare(model, model, [family.inputs()], stack=stack)
    assert len(result.layers) == models.pick(model, stack).depth
    for row in (result.entering, *result.layers):
        assert row.weight_change == 0
        assert row.cls_cosine == pytest.approx(1, abs=1e-12)
        assert row.token_cosine == pytest.approx(1, abs=1e-12)
        assert row.cka == pytest.approx(1, abs=1e-12)


def test_only_the_layers_that_moved_differ() -> None:
    model = FAMILIES["bert"].build()
    result = compare(model, tuned(model, 3), [batch()])
    assert values(result, "token_cosine")[:3] == pytest.approx([1] * 3, abs=1e-12)
    assert values(result, "weight_change")[:3] == [0] * 3
    assert max(values(result, "token_cosine")[3:]) < 0.999
    assert min(values(result, "weight_change")[3:]) > 0.1
    assert values(result, "layer") == values(result, "source") == [*range(5)]
    assert (result.texts, result.tokens, result.anchor) == (2, 11, "first")


def test_values_by_the_definitions() -> None:
    model = FAMILIES["bert"].build()
    other, given = tuned(model, 0), batch()
    result = compare(model, other, [given])
    mask = given["attention_mask"].bool()
    states = [layer_states(m, given, models.pick(m), tail=False).states[3] for m in (model, other)]
    cosine = functional.cosine_similarity(*states, dim=-1)
    assert result.layers[2].cls_cosine == pytest.approx(float(cosine[:, 0].mean()), abs=1e-6)
    assert result.layers[2].token_cosine == pytest.approx(float(cosine[mask].mean()), abs=1e-6)
    mine, yours = (
        torch.cat([p.detach().flatten() for p in m.bert.encoder.layer[2].parameters()])
        for m in (model, other)
    )
    change = float((mine - yours).norm() / mine.norm())
    assert result.layers[2].weight_change == pytest.approx(change, rel=1e-5)


def test_padding_and_batches_change_nothing() -> None:
    model = FAMILIES["gpt2"].build()
    other, given = FAMILIES["gpt2"].build(seed=1), batch()
    singles = [{k: v[i : i + 1] for k, v in given.items()} for i in range(2)]
    singles[1] = {k: v[:, :4] if v.dim() == 2 else v for k, v in singles[1].items()}
    whole, split = (compare(model, other, batches) for batches in ([given], iter(singles)))
    assert split.tokens == whole.tokens
    for name in ("cls_cosine", "token_cosine", "cka", "weight_change"):
        assert values(split, name) == pytest.approx(values(whole, name), abs=1e-5)


@pytest.mark.parametrize("name", ["bert", "albert", "llama", "t5"])
def test_a_model_and_its_restacked_self(name: str) -> None:
    """Matched by the plan: until the first layer that is gone all is the same."""
    family = FAMILIES[name]
    model = family.build()
    stack = family.stacks[0]
    other = restack(model, "0-1,3-4", stack=stack)
    result = compare(model, other, [family.inputs()], stack=stack, plan="0-1,3-4")
    assert values(result, "source") == [0, 1, 3, 4]
    assert values(result, "layer") == [0, 1, 2, 3]
    assert values(result, "weight_change") == [0] * 4
    cosines = values(result, "token_cosine")
    assert cosines[:2] == pytest.approx([1, 1], abs=1e-12)
    assert max(cosines[2:]) < 1 - 1e-6
    assert result.to_json()["plan"] == "0-1,3-4"


def test_fresh_and_repeated_layers() -> None:
    model = FAMILIES["bert"].build()
    plan = "0x2,1-3,4@fresh"
    result = compare(model, restack(model, plan), [batch()], plan=plan)
    assert values(result, "source") == [0, 0, 1, 2, 3, 4]
    assert values(result, "weight_change")[:5] == [0] * 5
    assert result.layers[5].weight_change > 0.3


def test_bodies_with_other_heads_are_compared() -> None:
    """A pretrained checkpoint with its head, and its body alone: paths differ, layers do not."""
    model = FAMILIES["bert"].build()
    result = compare(model, model.bert, [batch()])
    assert values(result, "weight_change") == [0] * 5
    assert values(result, "token_cosine") == pytest.approx([1] * 5, abs=1e-12)


def test_weights_of_other_kinds_of_numbers() -> None:
    model = FAMILIES["bert"].build()
    result = compare(model, copy.deepcopy(model).bfloat16(), [batch()])
    assert 0 < result.layers[0].weight_change < 0.01
    assert 0.99 < result.layers[4].token_cosine < 1


def bert(**more: Any) -> BertModel:
    return BertModel(BertConfig(**{**BERT, **more})).eval()


@pytest.mark.parametrize(
    ("other", "error", "message"),
    [
        ({"num_hidden_layers": 3}, PlanError, r"5 and 3 layers[^$]*drop:top=2"),
        ({"num_hidden_layers": 7}, PlanError, r"5 and 7 layers[^$]*duplicate:first=2"),
        ({"hidden_size": 32}, StackError, "states of 16 and of 32 numbers"),
        ({"vocab_size": 120}, DataError, "99 and 120 embeddings"),
        ({"intermediate_size": 32}, StackError, r"layer 0 of the first model has \(24"),
    ],
)
def test_models_that_cannot_be_compared(other: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        compare(bert(), bert(**other), [batch()])


def test_bad_input() -> None:
    model = bert()
    with pytest.raises(StackError, match="not of one family"):
        compare(model, FAMILIES["gpt2"].build(), [batch()])
    with pytest.raises(PlanError, match="makes 2 layers of 5"):
        compare(model, bert(num_hidden_layers=3), [batch()], plan="0-1")
    with pytest.raises(DataError, match="no batch to compare"):
        compare(model, model, [])
    with pytest.raises(DataError, match="no anchor"):
        compare(model, model, [batch()], anchor="middle")  # type: ignore[arg-type]
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.encoder.layer[1].output.dense.bias[0] = math.inf
    with pytest.raises(DataError, match="in the second model, what leaves layer 1"):
        compare(model, broken, [batch()])


def test_texts_of_one_token() -> None:
    short = {"input_ids": torch.tensor([[5]]), "attention_mask": torch.tensor([[1]])}
    model = FAMILIES["gpt2"].build()
    result = compare(model, FAMILIES["gpt2"].build(seed=1), [short])
    assert result.layers[0].cls_cosine == result.layers[0].token_cosine
    assert result.layers[0].cka is None


class Words:
    """As much of a tokenizer as is asked for."""

    def __init__(self, **other: str) -> None:
        self.other = {int(name[1:]): word for name, word in other.items()}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [self.other.get(i, f"w{i}") for i in ids]


def test_tokenizers_must_agree_on_all_that_occurs() -> None:
    model, wider = bert(), bert(vocab_size=120)
    result = compare(model, wider, [batch()], tokenizers=(Words(), Words(_50="x")))
    assert result.entering.weight_change is None  # embeddings of two sizes
    with pytest.raises(DataError, match="token 13 is 'w13' to the first tokenizer and 'x' to"):
        compare(model, wider, [batch()], tokenizers=(Words(), Words(_13="x")))


def test_json_and_table() -> None:
    from rich.console import Console

    model = FAMILIES["bert"].build()
    result = compare(model, tuned(model, 2), [batch()])
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert [row["layer"] for row in data["layers"]] == [*range(5)]
    assert set(data["layers"][0]) == {
        *("layer", "source", "cls_cosine", "token_cosine", "cka", "weight_change")
    }
    assert data["entering"]["layer"] is None
    shown = StringIO()
    Console(width=80, no_color=True, file=shown).print(result)
    assert f"{result.layers[4].weight_change:.4g}" in shown.getvalue()


@pytest.mark.real
def test_bge_small_and_its_half(shared: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from transformers import AutoModel, AutoTokenizer

    from restack.data import TASKS, load_split
    from restack.data.batches import batches
    from restack.data.tokens import tokenize

    monkeypatch.setenv("RESTACK_CACHE", str(tmp_path))
    where = shared / "models" / "bge-small-en-12L-384"
    model = AutoModel.from_pretrained(where, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(where)
    texts = load_split(TASKS["sst2"], "validation", shared / "data", limit=30).texts
    given = list(batches(tokenize(tokenizer, texts), 1024))
    plan = "drop:even=6"
    result = compare(
        model, restack(model, plan), given, plan=plan, tokenizers=(tokenizer, tokenizer)
    )
    assert values(result, "source") == [0, 2, 4, 6, 8, 10]
    cosines = values(result, "token_cosine")
    assert cosines[0] == pytest.approx(1, abs=1e-12)
    assert 0 < cosines[5] < cosines[1] < 1
    assert all(0 < value <= 1 for value in values(result, "cka"))
