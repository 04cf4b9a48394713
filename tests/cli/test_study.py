"""`study` as a user meets it: what it refuses, and a small one from end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command

REFUSED = {
    "no store": (("shortgpt", "restack/demo-clm"), "no store is given"),
    "unknown study": (("nothing", "restack/demo-clm", "--store", "s"), "no study 'nothing'"),
    "no model": (("drop", "--store", "s"), "no model is named"),
    "no texts": (("shortgpt", "restack/demo-clm", "--store", "s"), "reads texts, and none"),
    "texts for tasks": (
        ("drop", "restack/demo-mlm", "--tasks", "sst2", "--texts", "t.txt", "--store", "s"),
        "needs tasks, not texts",
    ),
    "scale": (("drop", "restack/demo-mlm", "--scale", "huge", "--store", "s"), "no scale 'huge'"),
    "task": (("drop", "restack/demo-mlm", "--tasks", "no", "--store", "s"), "no task 'no'"),
    "split": (("drop", "restack/demo-mlm", "--split", "a=b", "--store", "s"), "--split 'a=b'"),
    "initialiser": (("reinit", "restack/demo-mlm", "--init", "no", "--store", "s"), "'no'"),
    "precision": (("drop", "restack/demo-mlm", "--precision", "fp8", "--store", "s"), "'fp8'"),
    "executor": (("drop", "restack/demo-mlm", "--executor", "no", "--store", "s"), "'no'"),
    "data": (("drop", "restack/demo-mlm", "--data", "nowhere", "--store", "s"), "nowhere"),
    "model": (("drop", "./nowhere", "--store", "s"), "nowhere"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_named_and_leaves_nothing(
    case: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("some words\n")
    arguments, said = REFUSED[case]
    ran = command("study", *arguments)
    assert ran.code == 2
    assert said in ran.err
    assert not ran.out
    assert not Path("s").exists()


@pytest.mark.slow
def test_a_study_from_end_to_end(command: Command, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("the cat sees the dog .\nthe dog sees the cat .\n" * 8)
    asked = ("study", "shortgpt", "restack/demo-clm", "--texts", texts, "--scale", "smoke")
    store = tmp_path / "store"
    foretold = command(*asked, "--store", store, "--dry-run")
    assert foretold.code == 0
    assert "to run" in foretold.err
    assert not store.exists()

    ran = command(*asked, "--store", store, "--json")
    assert ran.code == 0
    assert not ran.err  # nothing was stopped, and progress is not shown here
    assert ran.json["run"]["ran"] > 0
    assert ran.json["run"]["left"] == 0
    verdicts = ran.json["findings"]["verdicts"]
    assert {verdict["status"] for verdict in verdicts} <= {"seen", "not seen", "undecided"}

    again = command(*asked, "--store", store)
    assert again.code == 0
    assert "least influence against" in " ".join(again.out.split())
    assert command(*asked, "--store", store, "--json").json["run"]["ran"] == 0
