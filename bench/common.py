"""What the benches share: interleaved repeats, medians, memory of child processes, claims.

Standard library only, and small: the peak memory that the system reports for a child process
starts from that of its parent at the moment of the fork, so a parent that has imported torch sees
its own size in every child.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".bench"  # ignored by git; on a real disk, which the system's /tmp need not be
Result = TypeVar("Result")
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class ChildFailed(Exception):
    """A measured command ended with an error; the text is the end of what it said."""


@dataclass(frozen=True, slots=True)
class Child:
    """A finished child process; `peak` is in bytes, of it and of all children it waited for."""

    seconds: float
    peak: int
    output: str


def run_child(
    command: Sequence[object], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Child:
    """Run a command to its end; its time includes the start of the process."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryFile() as said:  # a pipe would have to be emptied meanwhile
        start = time.perf_counter()
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            cwd=cwd,
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)  # so that nobody waits again
        said.seek(0)
        output = said.read().decode(errors="replace")
    if process.returncode:
        raise ChildFailed(f"{command[0]} ended with {process.returncode}: ...{output[-1500:]}")
    # what was a measurement of this process is none of the child
    peak = usage.ru_maxrss if usage.ru_maxrss > own else 0
    return Child(seconds, peak * _MAXRSS_UNIT, output)


def timed(action: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def alternate(ways: Mapping[str, Callable[[], Result]], repeats: int) -> dict[str, list[Result]]:
    """Run all ways in turn, `repeats` times, every other time in reverse.

    What else happens on the machine then meets all of them alike, and none is always the one
    after a certain other.
    """
    results: dict[str, list[Result]] = {name: [] for name in ways}
    for number in range(repeats):
        names = list(ways) if number % 2 == 0 else list(ways)[::-1]
        for name in names:
            results[name].append(ways[name]())
    return results


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, smallest and largest of repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 2) -> str:
        """Such as `1.02 (0.98-1.10)`."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"

    def to_json(self) -> dict[str, float]:
        return {"median": self.median, "low": self.low, "high": self.high}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Ours by theirs, for each round of `alternate`."""
    return Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement `measured <= limit`; a measurement of None means that it could not be made."""

    name: str
    measured: float | None
    limit: float
    unit: str = "x"

    @property
    def mark(self) -> str:
        if self.measured is None:
            return "not measured"
        return "pass" if self.measured <= self.limit else "MISSED"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "measured": self.measured,
            "limit": self.limit,
            "unit": self.unit,
            "result": self.mark,
        }


def claim_table(claims: Sequence[Claim]) -> str:
    """The claims, one in a line, with their marks."""
    rows = [
        (
            claim.mark,
            claim.name,
            "-" if claim.measured is None else f"{claim.measured:.3g} {claim.unit}",
            f"at most {claim.limit:.3g} {claim.unit}",
        )
        for claim in claims
    ]
    return table(("", "claim", "measured", "wanted"), rows)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first two to the left, the others to the right."""
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def add_options(parser: argparse.ArgumentParser, *, repeats: int) -> None:
    """The options that all benches have."""
    parser.add_argument("--repeats", type=int, default=repeats, help="rounds (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a claim is not met")


def finish(
    options: argparse.Namespace, text: str, values: dict[str, Any], claims: Sequence[Claim]
) -> int:
    """Print the results; the exit code. With --check, what could not be measured is not met."""
    if options.json:
        print(json.dumps(values | {"claims": [claim.to_json() for claim in claims]}, indent=2))
    else:
        print(f"{text}\n\n{claim_table(claims)}")
    met = all(claim.mark == "pass" for claim in claims)
    return 1 if options.check and not met else 0


def note(text: str) -> None:
    """Say on standard error what is going on."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def work_directory(parent: Path | None) -> Iterator[Path]:
    """A new directory below `parent`, or beside the repository's files; removed at the end."""
    place = parent or CACHE
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="work-", dir=place) as work:
        yield Path(work)
