"""Signals as wishes to stop."""

from __future__ import annotations

import os
import signal

import pytest

from restack.tune.interrupts import wishes


def test_without_a_wish_nothing_is_said_and_nothing_ends(capsys: pytest.CaptureFixture) -> None:
    with wishes() as wish:
        wish.obey("stopped")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "end"),
    [("SIGINT", KeyboardInterrupt), ("SIGTERM", SystemExit), ("SIGHUP", SystemExit)],
)
def test_a_wish_is_noted_and_then_obeyed(
    name: str, end: type[BaseException], capsys: pytest.CaptureFixture
) -> None:
    with wishes() as wish:
        os.kill(os.getpid(), getattr(signal, name))
        assert wish
        with pytest.raises(end):
            wish.obey("stopped")
    assert capsys.readouterr().err == "stopped\n"
