"""`kill -9` of driver and workers at random moments: every trial is finished once, and as it would
have been without.

`python tests/kill_sweep.py 60` runs 200 trials of a small model, kills so many times and prints a
summary; the test suite does a little of it. Before each kill the store is copied while it is
written, and the copy must be sound.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from restack.sweep.run import run
from restack.sweep.schema import MIGRATIONS
from restack.sweep.store import FILE, Store
from tests.sweep.small import trials

SETTINGS = {"steps": 8, "seconds": 0.02}
WORKERS = 2


def results(place: Path) -> dict[str, Any]:
    """All that a sweep gave, without times."""
    with Store.open(place) as store:
        return {
            row.key: (row.status, row.metrics, row.curve, row.artefact("weights").read_text())
            for row in store.rows()
        }


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for child in found]


def check_copy(place: Path, into: Path) -> int:
    """Copy the files of a store as they are; how many trials the copy has as done."""
    into.mkdir()
    for name in (FILE, f"{FILE}-wal"):
        if (place / name).exists():
            shutil.copy(place / name, into / name)
    try:
        with sqlite3.connect(into / FILE) as db:
            assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            if db.execute("PRAGMA user_version").fetchone()[0] < len(MIGRATIONS):
                return 0  # its tables are being made
        db.close()
        with Store.open(into) as store:
            done = store.rows(status="done")
            assert all(row.metrics and len(row.curve) == SETTINGS["steps"] for row in done)
        return len(done)
    finally:
        shutil.rmtree(into)


def kill(kills: int, count: int, seed: int = 0) -> Counter[str]:
    """Run so many trials while killing so often; what was killed. Raises if anything differs."""
    chance = random.Random(seed)
    place = Path(tempfile.mkdtemp(prefix="restack-sweep-"))
    killed: Counter[str] = Counter()
    copied, driver = 0, None
    try:
        run(trials(count, **SETTINGS), place / "calm", workers=WORKERS)
        store = place / "store"
        driver = start(store, count)
        while sum(killed.values()) < kills:
            while driver.poll() is None and not children(driver.pid):
                time.sleep(0.01)
            time.sleep(chance.random() * 0.8)
            if driver.poll() is not None:
                break
            if (store / FILE).exists() and chance.random() < 0.5:
                done = check_copy(store, place / "copy")
                assert done >= copied, "a copy lost trials that an earlier one had"
                copied = done
            workers = children(driver.pid)
            if chance.random() < 0.5 and workers:
                os.kill(chance.choice(workers), signal.SIGKILL)
                killed["worker"] += 1
            else:
                driver.kill()
                driver.wait()
                killed["driver"] += 1
                driver = start(store, count)
        if driver.wait():
            raise AssertionError(f"the driver ended with {driver.returncode}")
        while any(status != "done" for status, *_ in states(store)):  # killed twice: failed
            assert start(store, count).wait() == 0
        check(place, count)
        return killed
    finally:
        if driver is not None:
            driver.kill()
            driver.wait()
        shutil.rmtree(place)


def check(place: Path, count: int) -> None:
    """Every trial was finished once, and as in the sweep that nobody disturbed."""
    assert results(place / "store") == results(place / "calm")
    db = sqlite3.connect(place / "store" / FILE)
    for table in ("metrics", "artefacts"):
        assert db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] == count
    once = "SELECT COUNT(*), COUNT(DISTINCT key) FROM attempts WHERE outcome = 'done'"
    assert db.execute(once).fetchone() == (count, count)
    db.close()
    assert not [path for path in (place / "store" / "work").iterdir() if path.is_dir()]


def states(place: Path) -> list[tuple[str, ...]]:
    with Store.open(place) as store:
        return [(row.status,) for row in store.rows()]


def start(store: Path, count: int) -> subprocess.Popen[bytes]:
    """A driver in a process of its own."""
    return subprocess.Popen(
        [sys.executable, __file__, "drive", str(store), str(count)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["drive"]:
        run(trials(int(sys.argv[3]), **SETTINGS), sys.argv[2], workers=WORKERS, retry_failed=True)
    else:
        times = int(sys.argv[1]) if len(sys.argv) > 1 else 60
        begun = time.monotonic()
        found = kill(times, 200, seed=random.randrange(10**6))
        print(", ".join(f"{n} x {what} killed" for what, n in sorted(found.items())))
        print(
            f"200 trials, each finished once and as without ({time.monotonic() - begun:.0f} s); "
            "copies of the store made meanwhile were sound"
        )
