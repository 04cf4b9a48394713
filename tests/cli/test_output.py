"""What is said beside the result: progress as a bar, or as lines where no bar can be seen."""

from __future__ import annotations

import pytest

from restack.cli import output


def test_without_a_terminal_progress_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with output.count_progress("texts", 2000) as advance:
        advance(500)
    assert capsys.readouterr().err == ""  # it did not take long
    monkeypatch.setattr(output, "_SILENCE", 0.0)
    with output.count_progress("texts", 2000) as advance:
        advance(500)
        advance(500)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("texts: 500 of 2.0k")
    assert second.startswith("texts: 1.0k of 2.0k, ")
    assert second.endswith(" left")
    assert "/s" in second


def test_stages_are_told_by_their_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_SILENCE", 0.0)
    with output.stage_progress({"states": 10}) as told:
        told("states", 4)
        told("features", 3, 7)
        told("exact", 1)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "states: 4 of 10",
        "features: 3 of 7",
        "exact: 1",
    ]
