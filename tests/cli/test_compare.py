"""`restack compare`: its JSON, re-stacked selves, and what it refuses."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command
from tests.families import FAMILIES
from tests.observe.reviews import tokenizer

TEXTS = ("--text", "great word1 word2 dull", "--text", "warm word3 grey", "--text", "silly poor")
ROW = {"layer", "source", "cls_cosine", "token_cosine", "cka", "weight_change"}
Models = dict[str, Path]


def other(models: Models, where: Path) -> Path:
    FAMILIES["bert"].build(seed=1).save_pretrained(where)
    tokenizer().save_pretrained(where)
    return where


def test_json(command: Command, models: Models, tmp_path: Path) -> None:
    second = other(models, tmp_path)
    found = command("compare", models["bert"], second, *TEXTS, "--json").json
    assert (found["a"], found["b"]) == (str(models["bert"]), str(second))
    assert set(found["entering"]) == ROW
    assert [set(row) for row in found["layers"]] == [ROW] * 5
    assert all(row["weight_change"] > 0 for row in found["layers"])
    assert found["texts"] == 3
    shown = command("compare", models["bert"], second, *TEXTS).out
    assert "weight" in shown
    assert len(shown.splitlines()) >= 8


def test_a_model_and_its_restacked_self(command: Command, models: Models, tmp_path: Path) -> None:
    built = command("compare", models["bert"], *TEXTS, "--plan", "0-1,1,4", "--json").json
    assert built["plan"] == "0,1x2,4"
    assert [row["source"] for row in built["layers"]] == [0, 1, 1, 4]
    assert [row["weight_change"] for row in built["layers"]] == [0] * 4
    assert built["b"] == f"{models['bert']} (0-1,1,4)"
    # the same from disk, where the record says the plan
    out = tmp_path / "out"
    assert command("edit", models["bert"], "0-1,1,4", "-o", out).code == 0
    stored = command("compare", models["bert"], out, *TEXTS, "--json").json
    assert stored["layers"] == built["layers"]


def test_bad_input(command: Command, models: Models) -> None:
    ran = command("compare", models["bert"], *TEXTS)
    assert (ran.code, ran.out) == (2, "")
    assert "nothing to compare with" in ran.err
    ran = command("compare", models["bert"], models["llama"], *TEXTS)
    assert ran.code == 2
    assert "not of one family" in ran.err
    ran = command("compare", models["bert"], models["short"])
    assert ran.code == 2
    assert "no texts are given" in ran.err
