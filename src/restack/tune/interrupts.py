"""SIGTERM and Ctrl-C as a wish to stop, so that a run can save where it is first."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(Exception):
    """A run ended before its time because that was asked for; it has saved where it stood."""


class Wish:
    """Whether somebody asked the run to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def obey(self, said: str = "") -> None:
        """End the program as the signal would have; `said` goes to standard error before.

        Without a wish nothing happens.
        """
        if self and said:
            print(said, file=sys.stderr, flush=True)
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is not None:
            raise SystemExit(128 + self.signal)


@contextmanager
def wishes() -> Iterator[Wish]:
    """Note SIGINT, SIGTERM and SIGHUP instead of obeying; the second one is obeyed at once."""
    wish = Wish()
    before = {}

    def note(number: int, frame: FrameType | None) -> None:
        if wish:
            wish.obey()
        wish.signal = number

    if threading.current_thread() is threading.main_thread():  # others may not set handlers
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                number = getattr(signal, name)
                before[number] = signal.signal(number, note)
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
