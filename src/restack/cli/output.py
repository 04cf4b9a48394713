"""What commands print: one JSON document, or tables for people; progress goes to standard error."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

_SILENCE = 30.0  # seconds between two lines of progress in a log

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def as_json(value: Any) -> None:
    """Print one JSON document; numbers that JSON cannot write become null."""
    json.dump(_plain(value), sys.stdout, indent=2)
    sys.stdout.write("\n")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def console(*, stderr: bool = False) -> Console:
    """A console that does not break lines of tables where the output is not a terminal."""
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, width=None if terminal else 160, highlight=False, soft_wrap=False)


def show(*items: RenderableType) -> None:
    """Print to standard output."""
    out = console()
    for item in items:
        out.print(item)


def note(text: str) -> None:
    """Say something beside the result."""
    print(text, file=sys.stderr)


@contextmanager
def byte_progress(label: str) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """A progress bar in bytes on standard error: (start with a total, advance)."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn(label),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    seen = sys.stderr.isatty()  # elsewhere it would leave an empty line
    with Progress(*columns, console=console(stderr=True), transient=True, disable=not seen) as bar:
        task = bar.add_task(label, total=None)

        def start(total: int) -> None:
            bar.update(task, total=total)

        def advance(count: int) -> None:
            bar.advance(task, count)

        yield start, advance


def size(count: float) -> str:
    """Bytes for people: 1.2 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def number(count: float) -> str:
    """Counts for people: 7.1M."""
    for unit in ("", "k", "M", "B"):
        if count < 1000:
            return f"{count:.0f}" if not unit else f"{count:.1f}{unit}"
        count /= 1000
    return f"{count:.1f}T"


@contextmanager
def count_progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar with throughput and time left on standard error: advance by a count."""
    with _bar() as bar:
        task, say = bar.add_task(label, total=total), _saying(bar)

        def advance(count: int) -> None:
            bar.advance(task, count)
            say(task)

        yield advance


@contextmanager
def stage_progress(totals: Mapping[str, int] | None = None) -> Iterator[Callable[..., None]]:
    """The same for work in stages: (what, count) advances, (what, done, total) sets."""
    with _bar() as bar:
        tasks: dict[str, Any] = {}
        say = _saying(bar)

        def told(what: str, done: int, total: int | None = None, pace: float = 0.0) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total or (totals or {}).get(what))
            if total is None:
                bar.advance(tasks[what], done)
            else:
                bar.update(tasks[what], completed=done, total=total)
            say(tasks[what])

        yield told


def _saying(bar: Any) -> Callable[[Any], None]:
    """Says how far a task is, a line now and then, where no bar can be seen."""
    last = time.monotonic()

    def say(task: Any) -> None:
        nonlocal last
        if not bar.disable or time.monotonic() - last < _SILENCE:
            return
        last = time.monotonic()
        found = next(known for known in bar.tasks if known.id == task)
        parts = [f"{found.description}: {number(found.completed)}"]
        parts[0] += "" if found.total is None else f" of {number(found.total)}"
        parts += [] if found.speed is None else [f"{number(found.speed)}/s"]
        left = found.time_remaining
        parts += [] if left is None else [f"{timedelta(seconds=left)} left"]
        note(", ".join(parts))

    return say


def _bar() -> Any:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{number(speed)}/s")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
    )
    out = console(stderr=True)
    return Progress(*columns, console=out, transient=True, disable=not out.is_terminal)
