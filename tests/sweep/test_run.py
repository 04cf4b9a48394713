"""Sweeps of a small real training: resuming, failures, dependencies, a second driver."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from restack.errors import RestackError
from restack.sweep.memory import cores
from restack.sweep.opening import StoreError
from restack.sweep.run import run
from restack.sweep.status import status
from restack.sweep.store import Store
from restack.sweep.trial import Model, Trial
from tests.sweep.small import HERE, trials


def results(place: Path) -> dict[str, Any]:
    """All that a sweep gave, without times."""
    with Store.open(place) as store:
        return {
            row.key: (row.status, row.metrics, row.curve, row.artefact("weights").read_text())
            for row in store.rows()
        }


def test_a_sweep_runs_once_and_later_only_what_is_new(tmp_path: Path) -> None:
    first = run(trials(4), tmp_path, workers=2)
    assert (first.ran, first.done, first.failed, first.left) == (4, 4, 0, 0)
    again = run(trials(6), tmp_path, workers=1)
    assert (again.ran, again.done) == (2, 6)
    assert run(trials(6, steps=7), tmp_path, workers=2).ran == 6  # another recipe, other trials
    with Store.open(tmp_path) as store:
        rows = store.rows(half=1)
        assert {row.trial.seed for row in rows} == {1, 3, 5}
        assert all(row.attempts == 1 and row.status == "done" for row in rows)
        assert [point["step"] for point in rows[0].curve] == [1, 2, 3, 4, 5]
        assert rows[0].environment is not None
        assert rows[0].environment["numpy"]
        assert rows[0].metric("accuracy") > 0.8
    assert not list((tmp_path / "work").glob("*/*"))


def test_one_and_two_workers_give_the_same(tmp_path: Path) -> None:
    run(trials(5), tmp_path / "one", workers=1)
    run(trials(5), tmp_path / "two", workers=2)
    assert results(tmp_path / "one") == results(tmp_path / "two")


def test_what_measures_time_runs_while_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("restack.sweep.run.ALONE", {f"{HERE}:timed"})
    names = ["moment", "timed", "moment", "moment", "timed", "moment"]
    laid = [
        Trial(f"{HERE}:{name}", settings={"seconds": 0.2}, seed=seed)
        for seed, name in enumerate(names)
    ]
    assert run(laid, tmp_path, workers=2).done == len(laid)
    with Store.open(tmp_path) as store:
        spans = {row.key: (row.payload["from"], row.payload["to"]) for row in store.rows()}
        threads = {row.key: row.payload["threads"] for row in store.rows()}
        alone = {row.key for row in store.rows(kind=f"{HERE}:timed")}
    for one, (begun, ended) in spans.items():
        others = [span for key, span in spans.items() if key != one]
        assert threads[one] == (cores() if one in alone else None)
        if one in alone:
            assert all(to <= begun or ended <= start for start, to in others)


def test_failures_are_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    kinds = ("error", "bug", "memory", "killed", "text")
    failing = [Trial(f"{HERE}:fail", settings={"how": how}) for how in kinds]
    summary = run([*failing, *trials(2)], tmp_path, workers=2)
    assert (summary.done, summary.failed) == (2, 5)
    with Store.open(tmp_path) as store:
        told = {
            row.trial.settings["how"]: (row.error, row.attempts)
            for row in store.rows(status="failed")
        }
    assert told["error"] == ("nothing goes\nLet it be.", 1)
    assert "IndexError: list index out of range (small.py, line " in str(told["bug"][0])
    assert "out of memory" in str(told["memory"][0])
    assert "SIGKILL" in str(told["killed"][0])
    assert told["killed"][1] == 2
    assert "no number" in str(told["text"][0])
    assert run([*failing, *trials(2)], tmp_path, workers=1).ran == 0
    assert run(failing[:1], tmp_path, workers=1, retry_failed=True).failed == 1


def test_a_trial_whose_worker_was_killed_is_tried_again(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    trial = Trial(f"{HERE}:fail", settings={"how": "killed once", "mark": str(mark)})
    assert run([trial], tmp_path / "store", workers=1).done == 1
    with Store.open(tmp_path / "store") as store:
        assert store.rows()[0].attempts == 2


def test_a_full_disk_ends_the_sweep_and_no_trial(tmp_path: Path) -> None:
    full = Trial(f"{HERE}:fail", settings={"how": "full"})
    with pytest.raises(StoreError, match="No space left"):
        run([*trials(1), full], tmp_path, workers=1)
    with Store.open(tmp_path) as store:
        assert store.counts() == {"pending": 1, "running": 0, "done": 1, "failed": 0}


def test_a_damaged_file_is_found_and_made_again(tmp_path: Path) -> None:
    run(trials(3), tmp_path, workers=1)
    before = results(tmp_path)
    with Store.open(tmp_path) as store:
        one, two, _ = (row.artefact("weights") for row in store.rows())
    one.write_text(one.read_text()[:-1] + "7")
    two.unlink()
    summary = run(trials(3), tmp_path, workers=1)
    assert (summary.corrupt, summary.ran, summary.done) == (2, 2, 3)
    assert results(tmp_path) == before


def test_a_trial_reads_what_others_kept(tmp_path: Path) -> None:
    parents = trials(2)
    reader = Trial(f"{HERE}:read", inputs=tuple(trial.key for trial in parents))
    assert run([reader, *parents], tmp_path, workers=2).done == 3
    with Store.open(tmp_path) as store:
        row = store.row(reader.key[:8])
        assert row is not None
        assert len(row.payload["sums"]) == 2
    broken = Trial(f"{HERE}:fail", settings={"how": "error"})
    child = Trial(f"{HERE}:read", Model.of_trial(broken.key))
    summary = run([child, broken], tmp_path, workers=1)
    assert dict(summary.failures)[child.key].endswith("which failed")
    with pytest.raises(RestackError, match="which is nowhere"):
        run([Trial(f"{HERE}:read", inputs=("0" * 32,))], tmp_path, workers=1)


def test_stopped_trials_go_on_from_where_they_were(tmp_path: Path) -> None:
    slow = trials(2, steps=12, seconds=0.1)

    def begun() -> bool:
        return len(list((tmp_path / "work").glob("*/checkpoint.npz"))) == 2

    stopped = run(slow, tmp_path, workers=2, stop=begun)
    assert stopped.stopped
    assert stopped.left == 2
    assert len(list((tmp_path / "work").glob("*/checkpoint.npz"))) == 2
    assert run(slow, tmp_path, workers=2).done == 2
    with Store.open(tmp_path) as store:
        assert all(len(row.curve) == 12 and row.attempts == 2 for row in store.rows())


def test_a_clock_that_is_set_back_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    years = iter(range(2040, 1990, -1))  # later is earlier
    monkeypatch.setattr("restack.sweep.store.now", lambda: f"{next(years)}-01-01T00:00:00+00:00")
    monkeypatch.setattr(time, "time", lambda: float(next(years)))
    run(trials(2), tmp_path, workers=1)
    assert run(trials(4), tmp_path, workers=1).ran == 2
    with Store.open(tmp_path, write=True) as store:
        last = store.begin_session(3, "local")
        store.begin(trials(5)[0].key)
        driver = store.driver()
        assert driver is not None
        assert (driver["session"], driver["workers"]) == (last, 3)  # the latest, by no clock
        assert [row.trial.seed for row in store.rows()] == [0, 1, 2, 3]
        assert status(store).seconds_left == 0


def test_a_second_driver_says_so_and_readers_do_not_mind(tmp_path: Path) -> None:
    with Store.open(tmp_path, write=True) as writer:
        with pytest.raises(RestackError, match=f"is being written by process {os.getpid()}"):
            run(trials(1), tmp_path)
        writer.add(trials(3))
        with Store.open(tmp_path) as reader:
            assert reader.counts()["pending"] == 3
            driver = reader.driver()
            assert driver is None or driver["pid"] == os.getpid()


@pytest.mark.slow
def test_workers_end_with_a_killed_driver(tmp_path: Path) -> None:
    code = (
        "from tests.sweep.small import trials; from restack.sweep.run import run; "
        f"run(trials(2, steps=1000, seconds=0.1), {str(tmp_path)!r}, workers=2)"
    )
    path = os.pathsep.join(sys.path)
    driver = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path})
    while len(list((tmp_path / "work").glob("*/checkpoint.npz"))) < 2:
        time.sleep(0.05)
        assert driver.poll() is None
    workers = children(driver.pid)
    assert len(workers) == 2
    driver.kill()
    driver.wait()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with Store.open(tmp_path) as store:
        assert store.driver() is None
        assert store.counts()["running"] == 2  # as they were left; the next driver sees to it
        assert status(store).counts == {"pending": 2, "running": 0, "done": 0, "failed": 0}
    assert run(trials(1), tmp_path, workers=1).done == 1


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
