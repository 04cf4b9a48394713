"""`restack score`: its JSON, the plans it gives, and what it refuses."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from transformers import BertConfig, BertForSequenceClassification

from restack.plan import Plan
from tests.cli.conftest import Command
from tests.families import BERT
from tests.observe.reviews import tokenizer

TEXTS = ("--text", "great word1 word2 dull", "--text", "warm word3 grey", "--text", "silly poor")
STATES = [
    *("cls_cosine", "token_cosine", "block_influence", "angular_distance", "relative_update"),
    "cka",
]
LOSS = ["loss_increase", "accuracy_increase", "perplexity_increase"]
Models = dict[str, Path]


def test_json_with_all_measures(command: Command, models: Models) -> None:
    ran = command("score", models["llama"], *TEXTS, "--blocks", "2,3", "--json")
    found = ran.json
    assert ran.code == 0
    assert [row["layer"] for row in found["layers"]] == list(range(5))
    names = {"layer", *STATES, *LOSS, "taylor", "accuracy_gain"}
    assert all(set(row) == names for row in found["layers"])
    spans = [(i, n) for n in (1, 2, 3) for i in range(6 - n)]
    assert [(row["start"], row["length"]) for row in found["blocks"]] == spans
    assert set(found["blocks"][-1]) == {"start", "length", *names} - {"layer"}
    assert set(found["agreement"]["measures"]) == names - {"layer"}
    assert (found["data"], found["texts"], found["tokens"]) == ("texts", 3, 15)
    assert found["plan"] is None
    lens = command("lens", models["llama"], *TEXTS, "--json").json["layers"]
    gains = [row["accuracy_gain"] for row in found["layers"]]
    assert gains == [b["accuracy"] - a["accuracy"] for a, b in pairwise(lens)]


def test_a_model_without_head_is_scored_by_its_states(command: Command, models: Models) -> None:
    found = command("score", models["body"], *TEXTS, "--json").json
    assert set(found["layers"][0]) == {"layer", *STATES}
    assert "no loss could be measured" in found["notes"][0]
    ran = command("score", models["body"], *TEXTS, "--measures", "exact")
    assert ran.code == 2
    assert "no language-modelling head" in ran.err


@pytest.mark.parametrize(
    ("option", "measure"),
    [
        ("--drop", "cls_cosine"),
        ("--drop-above", "cls_cosine"),
        ("--drop-below", "block_influence"),
        ("--drop-block", "angular_distance"),
    ],
)
def test_plans(command: Command, models: Models, option: str, measure: str) -> None:
    call = ("score", models["bert"], *TEXTS, "--measures", f"cls_cosine,{measure}")
    plain = command(*call, "--blocks", 2, "--json").json
    values = {row["layer"]: row[measure] for row in plain["layers"]}
    pairs = {row["start"]: row[measure] for row in plain["blocks"] if row["length"] == 2}
    order = sorted(values, key=values.__getitem__)
    between = (values[order[2]] + values[order[3]]) / 2
    number, gone = {
        "--drop": (2, order[-2:]),
        "--drop-above": (between, order[3:]),
        "--drop-below": (between, order[:3]),
        "--drop-block": (2, [(start := min(pairs, key=pairs.__getitem__)), start + 1]),
    }[option]
    by = ("--by", measure) if option == "--drop-below" else ()
    found = command(*call, option, number, *by, "--json").json
    assert Plan.parse(found["plan"], 5).gone == tuple(sorted(gone))
    shown = command(*call, option, number, *by).out
    assert f"without the most dispensable by {measure}:" in shown
    assert found["plan"] in shown


def test_the_loss_of_a_task(command: Command, tmp_path: Path) -> None:
    config = BertConfig(**BERT, num_labels=2)
    BertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    rows = ["sentence,label", "great word1,1", "dull word2,0", "warm,1", "cold grey,0"]
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2" / "validation.csv").write_text("\n".join(rows))
    call = ("score", tmp_path / "model", "--task", "sst2", "--data", tmp_path)
    found = command(*call, "--measures", "exact,taylor", "--json").json
    assert set(found["layers"][0]) == {"layer", "taylor", "loss_increase", "accuracy_increase"}
    assert found["data"] == "sst2/validation"
    assert found["partial"] == "4 rows, official 872"
    ran = command(*call, "--text", "dull")
    assert ran.code == 2
    assert "--text cannot be used with --task" in ran.err


@pytest.mark.parametrize("measure", ["taylor", "exact"])
@pytest.mark.parametrize("name", ["bert", "body"])
def test_a_task_needs_a_head_for_it(
    command: Command, models: Models, name: str, measure: str
) -> None:
    call = ("score", models[name], "--task", "demo/sentiment", "--limit", 4)
    ran = command(*call, "--measures", measure)
    assert (ran.code, ran.out) == (2, "")
    assert "needs a head that gives 2 numbers a row" in ran.err
    assert command(*call, "--measures", "cls_cosine", "--json").json["texts"] == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--measures", "beauty"), "there is no measure 'beauty'"),
        (("--blocks", "two"), "--blocks 'two'"),
        (("--blocks", "6"), "blocks of 6 layers: the stack has 5"),
        (("--by", "cka"), "--by says what --drop... chooses by"),
        (
            ("--drop", 2, "--by", "taylor", "--measures", "cka"),
            "by taylor, which is not among --measures",
        ),
        (("--drop", 2, "--drop-above", 0.9), "several of --drop, --drop-above"),
        (("--drop-above", 0.5, "--by", "block_influence"), "would leave out those that are needed"),
        (("--drop", 5), "5 of 5 layers cannot go"),
        (("--measures", ""), "there is no measure ''"),
        (("--task", "nonsense"), "cannot be used"),
    ],
)
def test_bad_input(
    command: Command, models: Models, arguments: tuple[object, ...], said: str
) -> None:
    ran = command("score", models["bert"], *TEXTS, *arguments, "--json")
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
