"""`restack bench`: its JSON, its tables, texts of a task, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command

FAST = ("--rounds", 3, "--threads", 1, "--device", "cpu")
Models = dict[str, Path]


def test_json(command: Command, models: Models) -> None:
    made_up = ("--batch", 2, "--length", 8)
    found = command("bench", models["bert"], "--plan", "drop:top=3", *made_up, *FAST, "--json").json
    assert set(found) == {"workload", "rounds", "batches", "level", "costs"}
    load = found["workload"]
    assert (load["kind"], load["batch"], load["length"], load["task"]) == ("mlm", 2, 8, None)
    assert found["rounds"] == 3
    whole, part = found["costs"]
    assert [cost["subject"]["plan"] for cost in (whole, part)] == [None, "drop:top=3"]
    assert [cost["facts"]["depth"] for cost in (whole, part)] == [5, 2]
    assert whole["ratios"]["parameters"] == 1 > part["ratios"]["parameters"]
    for cost in (whole, part):
        times = {"p50", "p95", "examples_per_second", "tokens_per_second", "rounds"}
        assert set(cost["inference"]) == set(cost["training"]) == times
        assert set(cost["ratios"]["training"]) == {"value", "low", "high"}


def test_texts_of_a_task_and_the_columns_of_a_paper(command: Command) -> None:
    ran = command(
        *("bench", "restack/demo-mlm", "--task", "demo/sentiment", "--limit", 8, "--batch", 4),
        *("--max-length", 32, "--plan", "drop:top=6", "--like", "drop", *FAST),
    )
    assert ran.code == 0, ran.err
    assert "sentiment/validation" in ran.err
    assert "the first 8 texts, batches of 4, classification head, fp32 on cpu" in ran.err
    for column in ("dropped", "parameters", "fine-tuning speed-up", "inference time"):
        assert column in ran.out
    assert "demo-mlm drop:top=6" in ran.out
    assert "BERT, published" in ran.out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--task", "demo/sentiment", "--length", 8), "--length is for made-up texts"),
        (("--limit", 8), "are for the texts of a task"),
        (("--like", "table"), "known: drop"),
        (("--kind", "words"), "known: classification"),
        (("--task", "demo/sentiment", "--kind", "span"), "is of the kind 'classification'"),
        (("--rounds", 2), "--rounds"),
        (("--plan", "drop:top=99", "--length", 8, *FAST), "99"),
    ],
)
def test_what_it_refuses(
    command: Command, models: Models, given: tuple[object, ...], said: str
) -> None:
    ran = command("bench", models["bert"], *given)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_a_model_that_is_not_there(command: Command, tmp_path: Path) -> None:
    ran = command("bench", tmp_path / "none", *FAST)
    assert (ran.code, ran.out) == (2, "")
    assert str(tmp_path / "none") in ran.err
