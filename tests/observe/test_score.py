"""Scores of layers: small models worked out by hand, and laws that hold for all."""

from __future__ import annotations

import json
import math
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from restack.anatomy import models
from restack.data.tasks import Task
from restack.errors import DataError, PlanError, StackError
from restack.observe.lens import lens
from restack.observe.score import MEASURES, ScoreResult, plan_from, score
from restack.observe.stack_run import layer_states
from restack.surgery import restack
from tests.families import BERT, FAMILIES

SENTIMENT = Task("mood", "classification", ("text",), "label", ("bad", "good"))
FAST = ("cls_cosine", "token_cosine", "block_influence", "angular_distance", "relative_update")


def batch(rows: int = 2) -> dict[str, Any]:
    ids = torch.tensor([[1, 6, 7, 8, 9, 10, 2], [1, 13, 14, 2, 0, 0, 0], [1, 30, 2, 0, 0, 0, 0]])[
        :rows
    ]
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "special_tokens_mask": ids < 3,
        "indices": torch.arange(rows),
    }


def still(model: PreTrainedModel, layer: int) -> None:
    """Make a layer of GPT-2 or LLaMA the identity."""
    stack = models.pick(model)
    with torch.no_grad():
        for name, weight in model.get_submodule(stack.path)[layer].named_parameters():
            if any(part in name for part in ("c_proj", "o_proj", "down_proj")):
                weight.zero_()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_layer_that_is_the_identity(name: str) -> None:
    model = FAMILIES[name].build()
    still(model, 3)
    result = score(model, [batch()], blocks=(1, 2))
    row, others = result.layers[3], [result.layers[i] for i in (0, 1, 2, 4)]
    assert row["cls_cosine"] == pytest.approx(1, abs=1e-12)
    assert row["token_cosine"] == pytest.approx(1, abs=1e-12)
    assert row["cka"] == pytest.approx(1, abs=1e-12)
    for measure in ("block_influence", "angular_distance", "relative_update"):
        assert row[measure] == pytest.approx(0, abs=1e-7)
    for measure in ("taylor", "loss_increase", "accuracy_increase"):
        assert row[measure] == 0
    for other in others:
        assert other["block_influence"] > 1e-4
        assert abs(other["taylor"]) > 1e-5
        assert abs(other["loss_increase"]) > 1e-5
    # a block with it is worth as much as its other layer
    for measure in ("cls_cosine", "token_cosine", "angular_distance", "taylor", "loss_increase"):
        assert result.blocks[3, 2][measure] == pytest.approx(result.layers[4][measure], rel=1e-6)
    for measure in (*FAST, "cka"):
        assert plan_from(result, measure, count=1).gone == (3,)


@pytest.mark.parametrize("name", ["bert", "gpt2", "xlnet"])
def test_values_by_the_definitions(name: str) -> None:
    """Each text by itself and unpadded, from the states with the formulas of the papers."""
    model, given = FAMILIES[name].build(), batch(3)
    stack = models.pick(model)
    result = score(model, [given], blocks=(1, 3), measures=FAST)
    first, cls, token, tail, all_angles, update = [], [], [], [], [], []
    for row in range(3):
        ids = given["input_ids"][row : row + 1, : int(given["attention_mask"][row].sum())]
        if name == "xlnet":  # would see other positions without padding
            ids = given["input_ids"][row : row + 1]
        alone = {"input_ids": ids, "attention_mask": (ids != 0).long()}
        states = layer_states(model, alone, stack, tail=False).states
        states = [s[0, : int(alone["attention_mask"].sum())].double() for s in states]
        at = 0 if name == "bert" else -1
        cosine = functional.cosine_similarity(states[1], states[2], dim=-1)
        far = functional.cosine_similarity(states[1], states[4], dim=-1).clamp(-1, 1)
        first.append(far[-1].arccos() / math.pi)
        cls.append(cosine[at])
        token += cosine
        tail += functional.cosine_similarity(states[1], states[4], dim=-1)
        all_angles += far.arccos() / math.pi
        update += (states[2] - states[1]).norm(dim=-1) / states[1].norm(dim=-1)
    row = result.layers[1]
    assert (result.texts, result.tokens) == (3, 14)
    assert row["cls_cosine"] == pytest.approx(float(sum(cls)) / 3, abs=1e-6)
    assert row["token_cosine"] == pytest.approx(float(sum(token)) / 14, abs=1e-6)
    assert row["block_influence"] == pytest.approx(1 - float(sum(token)) / 14, abs=1e-6)
    assert row["relative_update"] == pytest.approx(float(sum(update)) / 14, rel=1e-5)
    block = result.blocks[1, 3]
    assert block["block_influence"] == pytest.approx(1 - float(sum(tail)) / 14, abs=1e-6)
    if name == "gpt2":
        assert result.angles_over == "anchors"
        assert block["angular_distance"] == pytest.approx(float(sum(first)) / 3, abs=1e-6)
    else:
        assert result.angles_over == "tokens"
        assert block["angular_distance"] == pytest.approx(float(sum(all_angles)) / 14, abs=1e-6)
    assert result.anchor == ("first" if name == "bert" else "last")


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_exact_increases_are_those_of_rebuilt_models(name: str) -> None:
    model, given = FAMILIES[name].build(), batch(3)
    result = score(model, [given], blocks=(2,), measures=("exact", "taylor"))
    assert set(result.whole) == {"loss", "accuracy", "perplexity"}
    mask = given["attention_mask"].bool()

    def loss(plan: str) -> float:
        with torch.no_grad():
            ids = given["input_ids"]
            logits = restack(model, plan)(ids, attention_mask=given["attention_mask"]).logits
        if name == "bert":
            where = mask & ~given["special_tokens_mask"]
            return float(functional.cross_entropy(logits[where], ids[where]))
        where = mask[:, 1:]
        return float(functional.cross_entropy(logits[:, :-1][where], ids[:, 1:][where]))

    whole = loss("0-4")
    assert result.whole["loss"] == pytest.approx(whole, rel=1e-6)
    assert result.layers[2]["loss_increase"] == pytest.approx(loss("0-1,3-4") - whole, abs=1e-6)
    assert result.blocks[0, 2]["loss_increase"] == pytest.approx(loss("2-4") - whole, abs=1e-6)
    # the estimate is about the same loss
    alone = score(model, [given], measures=("taylor",))
    assert alone.whole["loss"] == pytest.approx(whole, rel=1e-6)
    assert alone.column("taylor") == result.column("taylor")


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2", "albert"])
def test_padding_and_batches_change_nothing(name: str) -> None:
    model, given = FAMILIES[name].build(), batch(3)
    wide = {key: value for key, value in given.items() if key != "indices"}
    wide["input_ids"] = functional.pad(given["input_ids"], (0, 5))
    wide["attention_mask"] = functional.pad(given["attention_mask"], (0, 5))
    wide["special_tokens_mask"] = functional.pad(given["special_tokens_mask"], (0, 5), value=True)
    singles = [{k: v[i : i + 1] for k, v in given.items()} for i in range(3)]
    expected = score(model, [given])
    assert set(expected.measures) > {*FAST, "cka", "taylor", "loss_increase"}
    for batches in ([wide], iter(singles)):
        found = score(model, batches)
        assert (found.texts, found.tokens) == (3, 14)
        for mine, theirs in zip(found.layers, expected.layers, strict=True):
            for measure in expected.measures:
                if "perplexity" not in measure:
                    assert mine[measure] == pytest.approx(theirs[measure], abs=2e-5), measure


def test_albert_counts_each_application_of_its_layer() -> None:
    model = FAMILIES["albert"].build()
    result = score(model, [batch()])
    assert result.depth == 5
    # whichever is left out, four applications of the same weights are left
    assert len({round(x, 6) for x in result.column("loss_increase") if x is not None}) == 1
    assert len({round(x, 6) for x in result.column("taylor") if x is not None}) == 5


def test_labels_of_a_task() -> None:
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**BERT, num_labels=2)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    labels = [1, 0, 0]
    result = score(model, [batch(3)], task=SENTIMENT, labels=labels, blocks=())
    given = {k: v for k, v in batch(3).items() if k in ("input_ids", "attention_mask")}

    def loss(plan: str) -> float:
        with torch.no_grad():
            return float(
                functional.cross_entropy(restack(model, plan)(**given).logits, torch.tensor(labels))
            )

    assert result.loss == "the labels of mood"
    assert {"accuracy", "f1_macro", "matthews", "loss"} >= set(result.whole) >= {"accuracy", "loss"}
    assert result.whole["loss"] == pytest.approx(loss("0-4"), rel=1e-5)
    for layer, plan in ((0, "1-4"), (4, "0-3")):
        expected = loss(plan) - loss("0-4")
        assert result.layers[layer]["loss_increase"] == pytest.approx(expected, abs=1e-6)
    assert result.blocks == {}


def test_a_readout_of_ones_own() -> None:
    model = FAMILIES["bert"].build()

    def read(output: Any, given: Any, plan: int) -> dict[str, float]:
        return {"mass": float(output.logits[:, 0].sum())}

    result = score(model, [batch()], readout=read, measures=("exact",))
    assert list(result.whole) == ["mass"]
    assert result.measures == ("mass_increase",)
    assert result.loss is None


def test_a_model_without_head_is_scored_without_loss() -> None:
    family = FAMILIES["dinov2"]
    result = score(family.build(), [family.inputs()])
    assert set(result.measures) == {*FAST, "cka"}
    assert result.loss is None
    assert "no language-modelling head" in result.notes[0]
    with pytest.raises(StackError, match="no language-modelling head"):
        score(family.build(), [family.inputs()], measures=("taylor",))


def test_layers_that_cannot_be_left_out_are_said_so() -> None:
    result = score(FAMILIES["modernbert"].build(), [batch()], blocks=(5,))
    assert result.layers[0]["loss_increase"] is None
    assert result.layers[1]["loss_increase"] is not None
    assert any("layer 0 cannot be left out" in note for note in result.notes)
    assert result.blocks[0, 5]["loss_increase"] is None  # no layer would be left
    with pytest.raises(PlanError, match="5 of 5 layers cannot go"):
        plan_from(result, "loss_increase", count=5)
    assert 0 not in plan_from(result, "loss_increase", count=4).gone
    assert 0 not in plan_from(result, "loss_increase", below=1e9).gone


def test_gain_of_the_own_head() -> None:
    model, given = FAMILIES["bert"].build(), batch(3)
    read = lens(model, [given])
    result = score(model, [given], lens=read, measures=("accuracy_gain",), blocks=(2,))
    accuracy = [layer.accuracy for layer in read.layers]
    assert result.column("accuracy_gain") == [b - a for a, b in pairwise(accuracy)]
    assert result.blocks[1, 2]["accuracy_gain"] == accuracy[3] - accuracy[1]
    with pytest.raises(DataError, match="needs the result of a lens"):
        score(model, [given], measures=("accuracy_gain",))
    other = restack(model, "0-2")
    with pytest.raises(DataError, match="the lens has 6 states"):
        score(other, [given], lens=read)


def test_cka_that_does_not_fit_is_for_neighbours_or_not_at_all() -> None:
    model = FAMILIES["bert"].build()
    whole = score(model, [batch()], measures=("cka",))
    assert whole.cka[0, 5] is not None
    near = score(model, [batch()], measures=("cka",), cka_memory=11 * 16 * 16 * 4)
    assert near.column("cka") == pytest.approx(whole.column("cka"))
    assert (0, 5) not in near.cka
    assert "only neighbours" in near.notes[0]
    none = score(model, [batch()], measures=("cka", "cls_cosine"), cka_memory=100)
    assert none.measures == ("cls_cosine",)
    assert "does not fit" in none.notes[0]


@pytest.mark.parametrize("measures", [("cls_cosine",), ("taylor",)])
def test_activations_that_are_not_finite(measures: tuple[str, ...]) -> None:
    model = FAMILIES["gpt2"].build()
    with torch.no_grad():
        model.transformer.h[2].mlp.c_proj.bias[3] = math.nan
    with pytest.raises(DataError, match=r"leaves layer 2 of `transformer\.h` holds"):
        score(model, [batch()], measures=measures)


def test_bad_input() -> None:
    model = FAMILIES["gpt2"].build()
    with pytest.raises(DataError, match="no batch to score"):
        score(model, [])
    with pytest.raises(PlanError, match="blocks of 6 layers"):
        score(model, [batch()], blocks=(6,))
    with pytest.raises(DataError, match="no measure 'magic'"):
        score(model, [batch()], measures=("magic",))
    with pytest.raises(DataError, match="no measure is named"):
        score(model, [batch()], measures=())
    with pytest.raises(DataError, match="a task needs labels"):
        score(model, [batch()], task=SENTIMENT)
    empty = batch()
    empty["attention_mask"][1] = 0
    with pytest.raises(DataError, match="row 1 of a batch has no token"):
        score(model, [empty], measures=("cls_cosine",))
    short = {k: v[:, :1] for k, v in batch().items() if k != "indices"}
    result = score(model, [short], measures=FAST)
    assert result.tokens == 2
    assert result.layers[0]["cls_cosine"] == result.layers[0]["token_cosine"]
    with pytest.raises(DataError, match="no token"):
        score(model, [short], measures=("taylor",))


def test_progress_is_told() -> None:
    told: list[tuple[str, int]] = []
    model = FAMILIES["gpt2"].build()
    score(model, [batch(3)], progress=lambda what, rows: told.append((what, rows)))
    assert sum(rows for what, rows in told if what == "states") == 3
    assert sum(rows for what, rows in told if what == "exact") == 3 * 6


def result_of(**columns: list[float | None]) -> ScoreResult:
    """A result of which only the values of layers matter."""
    rows = tuple(
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    )
    blocks = {(i, 1): row for i, row in enumerate(rows)}
    return ScoreResult(
        *("model", "stack", 1, 1, "first", "tokens", None, {}, rows, blocks, {}, (), None)
    )


def test_plans_from_scores() -> None:
    result = result_of(
        cls_cosine=[0.5, 0.96, 0.91, 0.94],
        block_influence=[0.5, 0.04, 0.09, 0.06],
        loss_increase=[2.0, -0.1, 0.3, 0.0],
    )
    assert plan_from(result, "cls_cosine", above=0.925).gone == (1, 3)
    assert plan_from(result, "cls_cosine", count=3).gone == (1, 2, 3)
    assert plan_from(result, "cls_cosine", above=0.99).is_identity
    assert plan_from(result, "block_influence", below=0.075).gone == (1, 3)
    assert plan_from(result, "block_influence", count=1).gone == (1,)
    assert plan_from(result, "loss_increase", below=0).gone == (1,)
    assert plan_from(result, "loss_increase", count=2).gone == (1, 3)
    assert plan_from(result, "cls_cosine", block=1).gone == (1,)


def test_plans_that_scores_cannot_give() -> None:
    result = result_of(cls_cosine=[0.5, 0.9], block_influence=[0.5, 0.1])
    with pytest.raises(PlanError, match="Give `below`"):
        plan_from(result, "block_influence", above=0.2)
    with pytest.raises(PlanError, match="Give `above`"):
        plan_from(result, "cls_cosine", below=0.2)
    with pytest.raises(PlanError, match="exactly one of above, below, count, block"):
        plan_from(result, "cls_cosine")
    with pytest.raises(DataError, match="'taylor' was not measured"):
        plan_from(result, "taylor", count=1)
    with pytest.raises(PlanError, match="2 of 2 layers cannot go"):
        plan_from(result, "cls_cosine", block=2)
    with pytest.raises(PlanError, match="2 of 2 layers cannot go"):
        plan_from(result, "cls_cosine", count=2)


def test_what_a_measure_does_not_know_is_not_chosen_by_it() -> None:
    result = result_of(loss_increase=[None, None, 0.1])
    with pytest.raises(PlanError, match=r"not known of \[0, 1\]"):
        plan_from(result, "loss_increase", count=2)
    with pytest.raises(DataError, match="Measured blocks have 1 layers"):
        plan_from(result, "loss_increase", block=2)


def test_the_best_block_is_contiguous_and_by_its_own_measure() -> None:
    model = FAMILIES["gpt2"].build()
    for layer in (1, 2):
        still(model, layer)
    result = score(model, [batch()], blocks=(2,), measures=(*FAST, "exact"))
    for measure in (*FAST, "angular_distance"):
        assert plan_from(result, measure, block=2).gone == (1, 2)


def test_agreement_turns_measures_the_same_way() -> None:
    result = result_of(
        cls_cosine=[0.5, 0.96, 0.91, 0.94],
        block_influence=[0.5, 0.04, 0.09, 0.06],
        accuracy_increase=[-0.3, 0.0, -0.1, -0.05],
        loss_increase=[0.0, 3.0, 1.0, 2.0],
        taylor=[None, 1.0, 2.0, None],
    )
    found = result.agreement()
    assert found["cls_cosine", "block_influence"].r == pytest.approx(1)
    assert found["cls_cosine", "accuracy_increase"].r == pytest.approx(1)
    assert found["cls_cosine", "loss_increase"].r == pytest.approx(-1)
    assert found["loss_increase", "cls_cosine"].r == pytest.approx(-1)
    assert found["taylor", "cls_cosine"].r is None  # two layers are too few
    assert found["taylor", "cls_cosine"].n == 2


def test_json_and_tables() -> None:
    from rich.console import Console

    result = score(FAMILIES["modernbert"].build(), [batch()], blocks=(1, 2))
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert data["layers"][2]["layer"] == 2
    assert set(data["layers"][2]) == {"layer", *result.measures}
    assert [(b["start"], b["length"]) for b in data["blocks"]][:6] == [
        *((i, 1) for i in range(5)),
        (0, 2),
    ]
    matrix = data["cka"]
    assert matrix[1][3] == matrix[3][1]
    assert matrix[0][0] == pytest.approx(1)
    assert data["agreement"]["measures"] == list(result.measures)
    shown = StringIO()
    Console(width=150, no_color=True, file=shown).print(result)
    text = shown.getvalue()
    assert "note: layer 0 cannot be left out" in text
    assert "2 layers" in text
    best = plan_from(result, "cls_cosine", count=1).gone[0]
    [line] = [li for li in text.splitlines() if li.startswith(f"{best} ")][:1]
    assert f"{result.layers[best]['cls_cosine']:.4g}*" in line


@pytest.mark.real
def test_bge_small_on_sentences(shared: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from transformers import AutoModel, AutoTokenizer

    from restack.data import TASKS, load_split
    from restack.data.batches import batches
    from restack.data.tokens import tokenize

    monkeypatch.setenv("RESTACK_CACHE", str(tmp_path))
    where = shared / "models" / "bge-small-en-12L-384"
    model = AutoModel.from_pretrained(where, dtype=torch.float32).eval()
    texts = load_split(TASKS["sst2"], "validation", shared / "data", limit=40).texts
    tokens = tokenize(AutoTokenizer.from_pretrained(where), texts)
    result = score(model, batches(tokens, 512), blocks=(1, 4))
    assert result.texts == 40
    assert result.tokens == len(tokens.ids)
    assert set(result.measures) == {*FAST, "cka"}
    for row in result.layers:
        assert 0.5 < row["token_cosine"] < 1
        assert 0 < row["angular_distance"] < 0.3
        assert 0.5 < row["cka"] <= 1
    # the whole set in one batch gives the same
    once = score(model, batches(tokens, 10**6), blocks=(1, 4))
    for mine, theirs in zip(once.layers, result.layers, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)
    assert len(plan_from(result, "cls_cosine", count=4)) == 8
    gone = plan_from(result, "angular_distance", block=4).gone
    assert gone == tuple(range(gone[0], gone[0] + 4))


def test_all_measures_are_known() -> None:
    assert set(MEASURES) == {*FAST, "cka", "taylor", "exact", "accuracy_gain"}
