"""`restack probe`: its JSON, its controls, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.observe.reviews import split

FAST = ("--trials", 3, "--epochs", 5)
ROW = {"layer", "size", "mean", "std", "low", "high", "n", "trials", "losses", "rounds"}
Models = dict[str, Path]


def write(path: Path, rows: int, seed: int, label: object = None) -> None:
    made = split("x", rows, seed)
    path.parent.mkdir(exist_ok=True)
    lines = (
        json.dumps({"text": text, "label": found if label is None else label})
        for text, found in zip(made.texts, made.labels, strict=True)
    )
    path.write_text("\n".join(lines))


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    write(tmp_path / "reviews" / "train.jsonl", 60, 0)
    write(tmp_path / "reviews" / "validation.jsonl", 40, 1)
    return tmp_path / "reviews"


def test_json(command: Command, models: Models, reviews: Path) -> None:
    ran = command("probe", models["bert"], "--task", reviews, *FAST, "--json")
    found = ran.json
    assert ran.code == 0
    assert [row["layer"] for row in found["layers"]] == list(range(6))
    assert set(found["layers"][0]) == ROW
    assert all(len(row["trials"]) == row["n"] == 3 for row in found["layers"])
    assert all(row["low"] <= row["mean"] <= row["high"] for row in found["layers"])
    assert (found["task"], found["metric"], found["control"]) == ("reviews", "accuracy", None)
    assert found["layer_applications"] == 100 * 5
    # all features come from the cache now
    again = command("probe", models["bert"], "--task", reviews, *FAST, "--json").json
    assert again["layer_applications"] == 0
    assert again["layers"] == found["layers"]


@pytest.mark.parametrize(
    ("flag", "kind"), [("--also-random", "model"), ("--also-random-layers", "layers")]
)
def test_controls(command: Command, models: Models, reviews: Path, flag: str, kind: str) -> None:
    call = ("probe", models["bert"], "--task", reviews, *FAST, flag)
    found = command(*call, "--json").json
    assert found["control"] == kind
    assert [row["layer"] for row in found["control_layers"]] == list(range(6))
    same = found["control_layers"][0]["losses"] == found["layers"][0]["losses"]
    assert same == (kind == "layers")  # the embeddings are those of the model, or not
    assert "fresh" in command(*call).out


def test_the_table(command: Command, models: Models, reviews: Path) -> None:
    out = command("probe", models["bert"], "--task", reviews, *FAST, "--sizes", "20,50").out
    assert "95% interval" in out
    assert "one answer for all would score" in out
    rows = [line.split() for line in out.splitlines() if ".." in line]
    assert [row[0] for row in rows] == [*"012345"] * 2
    assert {"20", "50"} <= {cell for row in rows for cell in row}


def test_a_single_file_is_parted(command: Command, models: Models, tmp_path: Path) -> None:
    write(tmp_path / "mine.jsonl", 50, 2)
    call = ("probe", models["bert"], "--task", tmp_path / "mine.jsonl", *FAST, "--json")
    found = command(*call).json
    assert "40 of 50 rows, parted" in found["train"]
    assert "10 held out of 50 rows" in found["validation"]
    assert "20 of 40 rows drawn" in command(*call, "--limit", 20).json["train"]


def test_other_readers_poolings_layers_and_plans(
    command: Command, models: Models, reviews: Path
) -> None:
    found = command(
        "probe", models["bert"], "--task", reviews, "--trials", 2, "--solver", "exact",
        "--pooling", "cls", "--layers", "0,2", "--plan", "drop:top=3", "--standardise", "--json",
    ).json  # fmt: skip
    assert [row["layer"] for row in found["layers"]] == [0, 2]
    assert (found["settings"]["solver"], found["pooling"]) == ("exact", "cls")
    assert found["model"].endswith("(drop:top=3)")
    assert found["layer_applications"] == 100 * 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--task", "sts2"), "there is no task 'sts2'"),
        (("--task", "sst2", "--column", "x"), "--column is for labelled files"),
        (("--task", "REVIEWS", "--label", "mood"), "no column 'mood'"),
        (("--task", "REVIEWS", "--split", "test"), "no split 'test'"),
        (("--task", "REVIEWS", "--pooling", "max"), "there is no pooling 'max'"),
        (("--task", "REVIEWS", "--solver", "guess"), "there is no solver 'guess'"),
        (("--task", "REVIEWS", "--layers", "9"), "cannot be probed"),
        (("--task", "REVIEWS", "--layers", "a"), "--layers 'a'"),
        (("--task", "REVIEWS", "--sizes", "1000"), "cannot be drawn"),
        (("--task", "REVIEWS", "--also-random", "--also-random-layers"), "choose one"),
        (("--task", "REVIEWS", "--plan", "0-7"), "layer 7"),
        (("--task", "REVIEWS", "--split", "train"), "--train-split and --split are both 'train'"),
    ],
)
def test_bad_input(
    command: Command, models: Models, reviews: Path, arguments: tuple[object, ...], said: str
) -> None:
    given = [reviews if part == "REVIEWS" else part for part in arguments]
    ran = command("probe", models["bert"], *given, *FAST, "--json")
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_labels_of_one_class_and_missing_ones(
    command: Command, models: Models, tmp_path: Path
) -> None:
    write(tmp_path / "one" / "train.jsonl", 20, 0, label=1)
    ran = command("probe", models["bert"], "--task", tmp_path / "one")
    assert ran.code == 2
    assert "all rows have the label '1'" in ran.err
    for name in ("train", "validation"):
        write(tmp_path / "sst2" / f"{name}.jsonl", 20, 0, label=1)
        text = (tmp_path / "sst2" / f"{name}.jsonl").read_text()
        (tmp_path / "sst2" / f"{name}.jsonl").write_text(text.replace("text", "sentence"))
    ran = command("probe", models["bert"], "--task", "sst2", "--data", tmp_path)
    assert ran.code == 2
    assert "have the label 'positive'" in ran.err
    write(tmp_path / "none" / "train.jsonl", 20, 0, label=-1)
    text = (tmp_path / "none" / "train.jsonl").read_text().replace("text", "sentence")
    (tmp_path / "none" / "train.jsonl").write_text(text)
    ran = command("probe", models["bert"], "--task", "sst2", "--data", tmp_path / "none")
    assert ran.code == 2
    assert "hidden or missing" in ran.err
