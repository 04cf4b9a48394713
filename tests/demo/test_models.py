"""The models that ship: what their cards say is so, and their layers differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from restack.anatomy.shipped import NAMES, local
from restack.demo.card import card
from restack.errors import CheckpointError
from tests.cli.conftest import Command, command

__all__ = ["command"]  # a fixture

_LIMIT = 6_000_000
READ = ("--data", "demo/text", "--limit", "40", "--json")


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_small_and_its_card_and_record_are_its_own(name: str) -> None:
    place = Path(local(name))
    assert sum(path.stat().st_size for path in place.iterdir()) < _LIMIT
    record = json.loads((place / "training.json").read_text())
    assert (place / "README.md").read_text() == card(record["schooling"]["kind"], record)
    steps = [step for step, _ in record["loss"]]
    assert steps == list(range(50, record["schooling"]["steps"] + 1, 50))
    assert record["loss"][-1][1] < record["loss"][0][1] / 2


def test_names_are_known_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="ships no model 'restack/demo-vit'"):
        local("restack/demo-vit")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "restack" / "demo-mlm").mkdir(parents=True)
    assert local("restack/demo-mlm") == "restack/demo-mlm"  # a directory of that name wins


def test_layers_of_the_masked_model_differ(command: Command) -> None:
    plans = ("--plan", "permute:seed=1", "--plan", "drop:symmetric=6", "--plan", "duplicate:each")
    found = command("lens", "restack/demo-mlm", *READ, *plans).json
    read = [layer["accuracy"] for layer in found["layers"]]
    assert len(read) == 13
    assert read[0] < read[-1] - 0.05
    assert read[-1] > 0.95
    assert all(plan["accuracy"] < read[-1] - 0.05 for plan in found["plans"])


def test_layers_of_the_causal_model_differ(command: Command) -> None:
    plans = ("--plan", "permute:seed=1", "--plan", "drop:top=6")
    found = command("lens", "restack/demo-clm", *READ, *plans).json
    read = [layer["accuracy"] for layer in found["layers"]]
    assert read[0] < 0.05
    assert read[-1] > 0.45
    shuffled, small = (plan["accuracy"] for plan in found["plans"])
    assert shuffled < 0.2
    assert small < read[-1] - 0.04
