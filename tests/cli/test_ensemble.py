"""`restack ensemble`: its JSON, its table, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from restack.cli import main
from tests.cli.conftest import Command
from tests.tune import tiny

CHOICE = {"chosen_on", "members", "scores", "all", "single", "examples"}
RESULT = {
    *("task", "split", "partial", "examples", "metric"),
    *("members", "all", "k", "choices", "mean"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of a tiny model, and the data that they were evaluated on."""
    root = tmp_path_factory.mktemp("ensemble")
    tiny.save(tiny.bert(), root / "bert")
    (root / "data" / "sst2").mkdir(parents=True)
    for name, rows in (("train", 24), ("validation", 16)):
        split = tiny.sentiment(rows, rows, name)
        table = pa.table({"sentence": split.texts, "label": split.labels})
        pq.write_table(table, root / "data" / "sst2" / f"{name}.parquet")
    for seed in (0, 1):
        words = ["restack", "tune", root / "bert", "--task", "sst2", "--data", root / "data"]
        words += ["--epochs", 1, "--batch-size", 8, "--seed", seed, "--device", "cpu"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RESTACK_CACHE", str(root / "cache"))
            patch.setattr(sys, "argv", [*map(str, words), "-o", str(root / f"run{seed}")])
            with pytest.raises(SystemExit) as ended:
                main()
        assert not ended.value.code
    return root


def test_json(command: Command, place: Path) -> None:
    runs = [str(place / "run0"), str(place / "run1")]
    (found,) = command("ensemble", *runs, "--data", place / "data", "--best", 1, "--json").json
    assert set(found) == RESULT
    assert (found["task"], found["split"], found["examples"]) == ("sst2", "validation", 16)
    assert (found["metric"], found["k"]) == ("accuracy", 1)
    assert list(found["members"]) == runs
    first, second = found["choices"]
    assert (first["chosen_on"], second["chosen_on"]) == ("first", "second")
    for choice in (first, second):
        assert set(choice) == CHOICE
        assert choice["examples"] == 8
        assert choice["members"][0] in runs
        assert choice["scores"] == choice["single"]
    both = (first["scores"]["accuracy"] + second["scores"]["accuracy"]) / 2
    assert found["mean"]["accuracy"] == pytest.approx(both)


def test_a_table(command: Command, place: Path) -> None:
    ran = command("ensemble", place / "run0", place / "run1", "--data", place / "data", "--best", 1)
    assert ran.code == 0, ran.err
    assert "sst2/validation: 16 examples (16 rows, official 872)" in ran.err
    assert "all 2, added up" in ran.out
    assert "best 1 by the first half, on the second" in ran.out
    assert "best 1, mean of both ways" in ran.out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("run0",), "two members or more"),
        (("run0", "run0"), "is named twice"),
        (("run0", "none"), "there is no such directory or file"),
        (("run0", "bert"), "holds no predictions/<split>.npz"),
        (("run0", "run1", "--best", "2"), "the best 2 of 2 members"),
        (("run0", "run1", "--split", "test"), "It has: validation."),
    ],
)
def test_what_it_refuses(
    command: Command,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(place)
    ran = command("ensemble", *given, "--data", "data")
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_other_data_than_those_of_the_runs(command: Command, place: Path, tmp_path: Path) -> None:
    (tmp_path / "sst2").mkdir()
    split = tiny.sentiment(16, 99, "validation")
    table = pa.table({"sentence": split.texts, "label": split.labels})
    pq.write_table(table, tmp_path / "sst2" / "validation.parquet")
    ran = command("ensemble", place / "run0", place / "run1", "--data", tmp_path)
    assert ran.code == 2
    assert "are not those that the predictions are for" in ran.err
