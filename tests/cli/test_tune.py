"""The `tune` command: data in, a directory out, settings from files and options, clear refusals."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForSequenceClassification

from restack.cli.settings import recipe_from
from restack.errors import RestackError
from restack.tune import Lora, Recipe
from tests.cli.conftest import Command
from tests.tune import tiny

FAST = ("--epochs", "1", "--batch-size", "8", "--rate", "3e-3", "--device", "cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and labelled files in the layout of the Hub's copies."""
    root = tmp_path_factory.mktemp("tune")
    tiny.save(tiny.bert(), root / "bert")
    (root / "data" / "sst2").mkdir(parents=True)
    for name, rows in (("train", 48), ("validation", 16)):
        split = tiny.sentiment(rows, rows, name)
        table = pa.table({"sentence": split.texts, "label": split.labels})
        pq.write_table(table, root / "data" / "sst2" / f"{name}.parquet")
    split = tiny.sentiment(40, 5)
    lines = [
        json.dumps({"text": t, "mood": "ab"[c]})
        for t, c in zip(split.texts, split.labels, strict=True)
    ]
    (root / "moods.jsonl").write_text("\n".join(lines) + "\n")
    (root / "stories.txt").write_text("\n".join(tiny.stories(60).texts) + "\n")
    tiny.save(tiny.llama(), root / "llama")
    return root


def test_a_task_of_glue(place: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "out"
    done = command(
        *("tune", place / "bert", "--task", "sst2", "--data", place / "data"),
        *("--plan", "drop:top=2", "-o", out, *FAST),
    )
    assert done.code == 0, done.err
    assert "trains on sst2/train (48 rows, official 67,349): 48 examples" in done.err
    assert "drawn anew: classifier.bias, classifier.weight" in done.err
    assert "step 6 of 6: accuracy" in done.err
    assert "5 -> 3 layers" in done.out
    assert f"written to {out}" in done.out
    model = AutoModelForSequenceClassification.from_pretrained(out)
    assert model.config.num_hidden_layers == 3
    assert model.config.id2label == {0: "negative", 1: "positive"}


def test_a_file_of_ones_own_and_json(place: Path, tmp_path: Path, command: Command) -> None:
    done = command(
        *("tune", place / "bert", "--task", place / "moods.jsonl", "--label", "mood"),
        *("--column", "text", "-o", tmp_path / "out", "--json", *FAST),
    )
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["train"]["partial"] == "36 of 40 rows, parted with seed 0"
    assert found["validation"]["validation"]["examples"] == 4
    assert set(found["metrics"]["validation"]) == {"accuracy", "f1_macro", "matthews", "loss"}
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").config.id2label == {
        0: "a",
        1: "b",
    }


def test_texts(place: Path, tmp_path: Path, command: Command) -> None:
    done = command(
        *("tune", place / "llama", "--task", "lm", "--data", place / "stories.txt"),
        *("-o", tmp_path / "out", "--packing", "--json", *FAST),
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["metrics"]["validation"]["perplexity"] > 1


def test_texts_of_the_demo_language(place: Path, tmp_path: Path, command: Command) -> None:
    done = command(
        *("tune", "restack/demo-mlm", "--task", "mlm", "--data", "demo/text", "--steps", "1"),
        *("--limit", "8", "--eval-limit", "8", "-o", tmp_path / "out", "--device", "cpu", "--json"),
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["train"]["partial"] == "8 of 20,000 rows drawn with seed 0"
    assert "base_model" not in (tmp_path / "out" / "README.md").read_text()  # it is not on the Hub


def test_spans_of_a_model_with_few_positions(tmp_path: Path, command: Command) -> None:
    done = command(
        *("tune", "restack/demo-mlm", "--task", "demo/questions", "--steps", "1"),
        *("--limit", "8", "--eval-limit", "8", "-o", tmp_path / "out", "--device", "cpu"),
    )
    assert done.code == 0, done.err
    assert "best_f1" in done.out
    assert "has_answer" not in done.out


def test_a_teacher_and_what_comes_back(place: Path, tmp_path: Path, command: Command) -> None:
    call = (
        *("tune", place / "llama", "--task", "lm", "--data", place / "stories.txt"),
        *("--plan", "drop:top=1", "--teacher", place / "llama", "--distil", "both"),
        *("--steps", "4", "--evaluate-every", "2", "--max-length", "16", *FAST[2:]),
    )
    done = command(*call, "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert f"learnt from {place / 'llama'}: its logits and states" in done.err
    rows = [line.split() for line in done.out.splitlines()]
    start = rows.index(["step", "perplexity", "regained"])
    assert [row[0] for row in rows[start + 1 : start + 5]] == ["0", "2", "4", "teacher"]
    assert rows[start + 1][2] == "0.0%"
    found = json.loads(command(*call, "-o", tmp_path / "again", "--json").out)
    assert found["teacher"]["source"] == "both"
    assert [point["step"] for point in found["recovery"]] == [0, 2, 4]
    assert found["recovery"][0]["regained"] == 0


def test_a_teacher_needs_no_labels(place: Path, tmp_path: Path, command: Command) -> None:
    texts = tiny.sentiment(24, 7).texts
    folder = tmp_path / "sst2"
    folder.mkdir()
    pq.write_table(pa.table({"sentence": texts}), folder / "more.parquet")
    (folder / "validation.parquet").write_bytes(
        (place / "data" / "sst2" / "validation.parquet").read_bytes()
    )
    whole = tmp_path / "whole"
    tuned = ("tune", place / "bert", "--task", "sst2", "--data", place / "data", "-o", whole, *FAST)
    assert command(*tuned).code == 0
    call = ("tune", whole, "--task", "sst2", "--data", folder, "--train-split", "more", *FAST)
    call = (*call, "--plan", "drop:top=1", "--unlabelled")
    alone = command(*call, "-o", tmp_path / "alone")
    assert alone.code == 2
    assert "the examples have no labels to learn from" in alone.err
    done = command(*call, "--teacher", whole, "--distil", "both", "-o", tmp_path / "out", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["train"]["partial"] == "24 rows, no official split, labels not read"
    assert [point["step"] for point in found["recovery"]] == [0, 3]


def test_rounds_drop_a_layer_each_and_are_resumed(
    place: Path, tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "out"
    call = (
        *("tune", place / "bert", "--task", "sst2", "--data", place / "data", *FAST),
        *("--plan", "drop:top=1", "--rounds", "2", "-o", out, "--json"),
    )
    done = command(*call)
    assert done.code == 0, done.err
    rounds = json.loads(done.out)["rounds"]
    assert [(r["plan"], r["depth"]) for r in rounds] == [(None, 5), ("0-3", 4), ("0-2", 3)]
    assert command(*call).code == 2
    (out / "round-2" / "tune.json").unlink()
    before = (out / "round-1" / "tune.json").stat().st_mtime_ns
    again = command(*call, "--resume")
    assert again.code == 2  # what stands in the way is named, not removed
    assert "round-2" in again.err
    for path in (out / "round-2" / "predictions").iterdir():
        path.unlink()
    (out / "round-2" / "predictions").rmdir()
    for path in (out / "round-2").iterdir():
        path.unlink()
    again = command(*call, "--resume")
    assert json.loads(again.out)["rounds"] == rounds
    assert (out / "round-1" / "tune.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--task", "sst3"], "there is no task 'sst3'"),
        (["--task", "sst2", "--data", "nowhere"], "nowhere: there is no such file or directory"),
        (["--task", "sst2", "--column", "text"], "has no column 'text'"),
        (["--task", "sst2", "--set", "rat=1"], "a recipe has no setting 'rat'"),
        (["--task", "sst2", "--rate", "0"], "rate is 0"),
        (["--task", "sst2", "--rounds", "2"], "--rounds needs a plan"),
        (["--task", "sst2", "--plan", "drop:top=9"], "drop"),
        (["--task", "sst2", "--eval-split", "test"], "has no split 'test'"),
        (["--task", "sst2", "--max-length", "100"], "more than the 64 positions"),
        (["--task", "sst2", "--freeze", "7"], "slot 7 cannot be frozen"),
        (["--task", "sst2", "--freeze", "x"], "freeze is 'x', which cannot be read"),
        (["--task", "sst2", "--tracker", "paper"], "there is no tracker 'paper'"),
        (["--task", "moods.csv", "--label", "mood"], "moods.csv: there is no such file"),
        (["--task", "squad", "--column", "question"], "squad reads two columns"),
        (["--task", "lm"], "--task lm needs texts"),
        (["--task", "sst2", "--distil", "states"], "are about a teacher"),
        (["--task", "sst2", "--teacher", "nowhere"], "nowhere cannot be loaded"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_said_and_leaves_nothing(
    arguments: list[str], said: str, place: Path, tmp_path: Path, command: Command
) -> None:
    data = [] if "--data" in arguments or "lm" in arguments else ["--data", place / "data"]
    done = command(
        "tune", place / "bert", *arguments, *data, "-o", tmp_path / "out", "--steps", "1"
    )
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


def test_labels_that_are_not_declared_are_named(
    tmp_path: Path, place: Path, command: Command
) -> None:
    folder = tmp_path / "sst2"
    folder.mkdir()
    for name in ("train", "validation"):
        (folder / f"{name}.csv").write_text("sentence,label\ngreat,1\ndull,2\n")
    done = command(
        "tune", place / "bert", "--task", "sst2", "--data", folder, "-o", tmp_path / "out"
    )
    assert done.code == 2
    assert "row 1 (counted from 0): found '2', expected one of negative, positive" in done.err


def test_every_setting_can_be_given(tmp_path: Path) -> None:
    other = Recipe(
        seed=4,
        epochs=0.5,
        steps=7,
        batch_size=None,
        batch_tokens=512,
        accumulate=2,
        freeze=(0, 2, 3),
        lora=Lora(4, 8.0, 0.1),
        betas=(0.8, 0.9),
        precision="bf16",
        head="mean-pool",
    )
    (tmp_path / "r.json").write_text(json.dumps(other.to_json()))
    assert recipe_from(tmp_path / "r.json", {}) == other
    (tmp_path / "tune.json").write_text(json.dumps({"recipe": other.to_json(), "metrics": {}}))
    assert recipe_from(tmp_path / "tune.json", {"seed": 5}, ["steps=none"]) == replace(
        other, seed=5, steps=None
    )
    (tmp_path / "r.toml").write_text("rate = 1e-3\nlora = {rank = 2}\nfreeze = [1]\n")
    assert recipe_from(tmp_path / "r.toml", {"freeze": "0-2,4"}) == Recipe(
        rate=1e-3, lora=Lora(2), freeze=(0, 1, 2, 4)
    )
    given = {"lora": "4:8:0.1", "betas": "0.8,0.9", "batch_tokens": 512, "packing": True}
    made = recipe_from(None, given)
    assert (made.lora, made.betas, made.batch_size, made.blocks) == (
        *(Lora(4, 8.0, 0.1), (0.8, 0.9), None, False),
    )
    for text in ("rate=fast", "epochs=[1]", "clip={}"):
        with pytest.raises(RestackError):
            recipe_from(None, {}, [text])
    with pytest.raises(RestackError, match=r"a recipe is a \.toml or a \.json file"):
        recipe_from(tmp_path / "r.yaml", {})


def test_the_help_has_an_option_for_each_setting(command: Command) -> None:
    said = command("tune", "--help").out
    for field in fields(Recipe):
        assert f"--{field.name.replace('_', '-')}" in said
