"""`restack demo`: what it refuses before it begins, and what it prints."""

from __future__ import annotations

import shlex
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest

from restack.cli import demo
from restack.demo.trials import LESS, SMALLER, TIMED, prepare
from restack.plan import Plan
from restack.studies.findings import Decoded, DecodedLayer
from tests.cli.conftest import Command


def test_places_that_hold_other_things_are_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    ran = command("demo", "-o", tmp_path)
    assert ran.code == 2
    assert "it holds notes.txt" in ran.err
    ran = command("demo", "-o", tmp_path / "notes.txt")
    assert ran.code == 2
    assert "is a file" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_full_disk_is_told_before_anything_is_done(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = namedtuple("Usage", "total used free")(100, 90, 10)
    monkeypatch.setattr("shutil.disk_usage", lambda place: full)
    ran = command("demo", "-o", tmp_path / "demo")
    assert ran.code == 2
    assert "10 B of room" in ran.err
    assert not (tmp_path / "demo").exists()


def test_an_old_broken_store_is_named_with_the_way_out(command: Command, tmp_path: Path) -> None:
    store = tmp_path / "demo" / "store"
    store.mkdir(parents=True)
    (store / "store.sqlite").write_text("junk")
    ran = command("demo", "-o", tmp_path / "demo")
    assert ran.code == 2
    assert "is not a database" in ran.err
    assert f"remove {tmp_path / 'demo'}" in ran.err


def test_a_stop_says_that_it_can_go_on(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(tour: demo.Tour) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo.Tour, "observe", stopped)
    ran = command("demo", "-o", tmp_path / "demo")
    assert ran.code == 130
    assert "the same command goes on" in ran.err


def test_there_are_six_strategies_that_leave_half_out() -> None:
    scores = SimpleNamespace(payload={"layers": [{"cls_cosine": n / 12} for n in range(12)]})
    plans = prepare().plans(scores)  # type: ignore[arg-type]
    assert len(SMALLER) == 6
    assert all(len(plans[name]) == 12 - LESS for name in SMALLER)
    assert str(plans["contribution"]) == "0-5"  # the highest cosines go
    assert len(plans["duplicate"]) == 24


def test_printed_commands_are_ones_that_the_shell_and_restack_read() -> None:
    plans = [Plan.parse(text, 12) for text in ("drop:top=6", "duplicate:each", "reinit:after=6")]
    words = shlex.split(demo._written(plans))
    assert words == ["--plan", "0-5", "--plan", "0-11x2", "--plan", "0-5,6-11@fresh"]
    assert TIMED.options == "--limit 96 --max-length 64 --batch 32"


def test_layers_that_decode_a_text_alike_share_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    layers = [DecodedLayer(0, ("a", "fox"), (False, True))]
    layers += [DecodedLayer(n, ("the", "fox"), (True, True)) for n in (1, 2, 3)]
    demo.output.show(demo._lines(Decoded("one", ("the", "fox"), tuple(layers))))
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown == [["text", "the", "fox"], ["0", "<a>", "fox"], ["1-3", "the", "fox"]]
