"""The store: its versions, what is asked of SQLite, rows, filters, frames, copies, garbage."""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from restack.errors import RestackError
from restack.sweep import schema
from restack.sweep.frames import columns, records
from restack.sweep.garbage import collect
from restack.sweep.kinds import Result
from restack.sweep.opening import StoreError
from restack.sweep.status import status
from restack.sweep.store import FILE, Store, digest
from restack.sweep.trial import Data, Model, Trial


def trial(seed: int, **changes: Any) -> Trial:
    values: dict[str, Any] = {
        "kind": "tune",
        "model": Model("models/bert", fingerprint="f" * 8),
        "plan": "0-5",
        "task": "rte",
        "data": Data(size=100, subsample=seed),
        "seed": seed,
    }
    return Trial(**{**values, **changes})


def finish(store: Store, one: Trial, session: int, **result: Any) -> bool:
    """Enter a result with one kept file."""
    place = store.directory / "trials" / one.key
    place.mkdir(parents=True, exist_ok=True)
    (place / "notes.txt").write_text(f"of {one.seed}")
    told = digest(place / "notes.txt")
    assert told is not None
    given = {"metrics": {"validation": {"accuracy": one.seed / 10, "loss": 1.0}}, **result}
    return store.finish(
        one.key,
        session,
        Result(**given),
        seconds=2.0 + one.seed,
        files={"notes.txt": told},
        environment={"torch": "2.13"},
        place="worker 0",
        peak=1000,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store", write=True) as opened:
        yield opened


def test_a_database_is_brought_to_the_newest_version_from_any(tmp_path: Path) -> None:
    for have in range(len(schema.MIGRATIONS)):
        place = tmp_path / str(have)
        place.mkdir()
        with sqlite3.connect(place / FILE, isolation_level=None) as db:
            for step in schema.MIGRATIONS[:have]:
                step(db)
            db.execute(f"PRAGMA user_version = {have}")
            if have:
                db.execute("INSERT INTO trials VALUES ('k', '{}', 'failed', 1, 'x', 0, 0, 1)")
        db.close()
        with pytest.raises(RestackError, match="older version"):
            Store.open(place)
        with Store.open(place, write=True) as opened:
            assert opened.counts()["failed"] == bool(have)
            assert opened.add([trial(0)]) == 1
    with sqlite3.connect(place / FILE) as db:
        db.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS) + 1}")
    db.close()
    for write in (False, True):
        with pytest.raises(RestackError, match="knows versions up to"):
            Store.open(place, write=write)


def test_a_migration_that_fails_leaves_the_version_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.open(tmp_path, write=True).close()

    def broken(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE more (x)")
        raise sqlite3.OperationalError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, broken))
        with pytest.raises(StoreError, match="no room"):
            Store.open(tmp_path, write=True)
    with Store.open(tmp_path, write=True) as opened:
        assert opened.add([trial(0)]) == 1
        tables = opened._db.execute("SELECT name FROM sqlite_master").fetchall()
        assert ("more",) not in tables


def test_every_change_is_on_the_disk_before_the_next(store: Store) -> None:
    def ask(name: str) -> Any:
        return store._db.execute(f"PRAGMA {name}").fetchone()[0]

    assert (ask("journal_mode"), ask("synchronous")) == ("wal", 2)  # 2: fsync at every commit


def test_a_trial_is_finished_once_and_wholly(store: Store) -> None:
    one = trial(3, labels={"strategy": "top"})
    assert store.add([one, one]) == 1
    session = store.begin_session(2, "local")
    store.begin(one.key)
    assert store.row(one.key[:6]).status == "running"  # type: ignore[union-attr]
    curve = [{"step": 1, "loss": 0.5}, {"step": 1, "metrics": {"validation": {"f1": 0.25}}}]
    given = {"curve": curve, "payload": {"depth": 6}, "timings": {"train": 1.5}}
    assert finish(store, one, session, **given)
    assert not finish(store, one, session, **given)  # a second time counts for nothing
    (row,) = store.rows()
    assert row.trial == one
    assert (row.status, row.seconds, row.attempts) == ("done", 5.0, 1)
    assert row.metric("accuracy") == row.metric("accuracy", "validation") == 0.3
    assert (list(row.curve), row.payload, row.timings) == (curve, {"depth": 6}, {"train": 1.5})
    assert row.environment == {"torch": "2.13"}
    assert row.artefact("notes.txt").read_text() == "of 3"
    assert row.history == (
        {"outcome": "done", "reason": None, "place": "worker 0", "seconds": 5.0, "peak": 1000},
    )
    assert store.verify(row) == []
    with pytest.raises(RestackError, match="has no f2"):
        row.metric("f2")
    with pytest.raises(RestackError, match="has kept no model"):
        row.artefact("model")


def test_a_change_that_fails_in_the_middle_leaves_nothing(store: Store) -> None:
    one = trial(0)
    store.add([one])
    session = store.begin_session(1, "local")
    with pytest.raises(TypeError):
        finish(store, one, session, timings={"train": None})
    assert store.rows()[0].status == "pending"
    assert store.rows()[0].metrics == {}
    assert finish(store, one, session)


def test_what_a_driver_left_running_waits_again(store: Store) -> None:
    store.add([trial(0), trial(1)])
    store.begin_session(1, "local")
    store.begin(trial(0).key)
    store.begin_session(1, "local")
    assert store.counts()["pending"] == 2
    (first,) = store.rows(seed=0)
    assert first.history[0]["reason"] == "the driver ended"


def test_rows_by_what_they_are(store: Store) -> None:
    found = [
        trial(seed, plan=plan, labels={"k": k})
        for seed in (0, 1, 2)
        for k, plan in ((0, "0-5"), (2, "0-3"))
    ]
    store.add(found)
    again = trial(0, labels={"k": 0, "strategy": "top"})
    store.add([again])
    finish(store, found[2], store.begin_session(1, "local"))
    store.fail(found[3].key, 1, "it broke")
    assert len(store.rows()) == 7  # one trial has two sets of labels
    assert len(store.rows(once=True)) == 6
    assert len(store.rows(k=0)) == 4
    assert len(store.rows(strategy="top")) == 1
    assert {row.trial.seed for row in store.rows(plan="0-3", seed=[1, 2])} == {1, 2}
    assert [row.key for row in store.rows(status="done")] == [found[2].key]
    assert [row.error for row in store.rows(status="failed")] == ["it broke"]
    assert len(store.rows(size=100, subsample=range(2), once=True)) == 4
    assert store.rows(k="0") == []
    assert store.counts() == {"pending": 4, "running": 0, "done": 1, "failed": 1}
    with pytest.raises(RestackError, match="several trials begin"):
        store.row("")


def test_numbers_that_are_none_come_back_as_such(store: Store) -> None:
    store.add([trial(0)])
    metrics = {"validation": {"accuracy": math.nan, "loss": math.inf}}
    finish(store, trial(0), store.begin_session(1, "local"), metrics=metrics)
    (row,) = store.rows()
    assert math.isnan(row.metric("accuracy"))
    assert row.metric("loss") == math.inf


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames(store: Store, library: str) -> None:
    pytest.importorskip(library)
    store.add([trial(0, labels={"k": 2, "size": "own"}), trial(1)])
    session = store.begin_session(1, "local")
    curve = [{"step": 1, "loss": 0.5}, {"step": 2, "metrics": {"validation": {"f1": 0.25}}}]
    finish(store, trial(0), session, curve=curve)
    wide = store.frame("trials", library=library)
    assert wide["validation/accuracy"][0] == 0.0
    assert wide["label_size"][0] == "own"  # a label never hides a field
    assert list(wide["size"]) == [100, 100]
    long = store.frame(library=library, seed=0)
    assert list(long["metric"]) == ["accuracy", "loss"]
    steps = store.frame("curve", library=library)
    assert list(steps["step"]) == [1, 2]
    assert list(steps["metrics/validation/f1"])[1] == 0.25
    with pytest.raises(RestackError, match="no frame of 'rows'"):
        store.frame("rows", library=library)
    with pytest.raises(RestackError, match="'excel' makes no frames"):
        store.frame(library="excel")


def test_columns_of_rows_that_differ(store: Store) -> None:
    store.add([trial(0, labels={"k": 1}), trial(1, labels={"n": "x"})])
    found = columns(list(records(store.rows(), "trials")))
    assert (found["k"], found["n"]) == ([1, None], [None, "x"])


def test_a_copy_is_whole_and_read_where_nothing_can_be_written(
    store: Store, tmp_path: Path
) -> None:
    store.add([trial(seed) for seed in range(3)])
    finish(store, trial(0), store.begin_session(1, "local"))
    store.copy(tmp_path / "copy.sqlite")  # while it is open
    with Store.open(tmp_path / "copy.sqlite") as copy:
        assert copy.counts()["done"] == 1
    by_hand = tmp_path / "by hand"
    by_hand.mkdir()
    for name in (FILE, f"{FILE}-wal"):
        shutil.copy(store.directory / name, by_hand / name)
    by_hand.chmod(0o500)
    with Store.open(by_hand) as copy:
        assert copy.rows(status="done")[0].metric("accuracy") == 0.0
        with pytest.raises(RestackError, match="opened to read"):
            copy.add([trial(9)])
    by_hand.chmod(0o700)


def test_the_file_alone_opens_even_when_copied_from_under_a_driver(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", write=True) as store:
        store.add([trial(0)])
        shutil.copy(store.directory / FILE, tmp_path / "early.sqlite")
    shutil.copy(store.directory / FILE, tmp_path / "later.sqlite")
    with Store.open(tmp_path / "early.sqlite") as copy:
        assert copy.rows() == []  # what had been entered was in the other file
    with Store.open(tmp_path / "later.sqlite") as copy:
        assert len(copy.rows()) == 1


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RestackError, match="there is no store"):
        Store.open(tmp_path)
    (tmp_path / FILE).write_bytes(b"SQLite format 3\0" + b"x" * 2000)
    for write in (False, True):
        with pytest.raises(RestackError, match=r"cannot be (read|written)"):
            Store.open(tmp_path, write=write)
    (tmp_path / "file").touch()
    with pytest.raises(RestackError, match="no directory"):
        Store.open(tmp_path / "file", write=True)


def test_garbage_is_what_no_trial_needs(store: Store) -> None:
    child = Trial("tune", Model.of_trial(trial(0).key), task="rte")
    store.add([trial(0), trial(1), child])
    session = store.begin_session(1, "local")
    for seed in (0, 1):
        finish(store, trial(seed), session)
    left = [store.directory / "work" / trial(1).key, store.directory / "trials" / "gone"]
    going_on = store.directory / "work" / child.key
    for path in (*left, going_on):
        path.mkdir()
        (path / "file").write_text("12345")
    found = collect(store, dry_run=True)
    assert set(found.directories) == set(left)
    assert found.nbytes == 10
    assert all(path.exists() for path in left)
    collect(store)
    assert not any(path.exists() for path in left)
    assert going_on.exists()
    # a trial that is wanted keeps what it begins with
    found = collect(store, wanted={child.key})
    assert found.trials == (trial(1).key,)
    assert {row.key for row in store.rows()} == {trial(0).key, child.key}
    assert not (store.directory / "trials" / trial(1).key).exists()
    assert (store.directory / "trials" / trial(0).key / "notes.txt").exists()


def test_how_a_sweep_stands(store: Store) -> None:
    assert status(store).seconds_left is None
    store.add([trial(seed) for seed in range(4)] + [trial(9, kind="cost", plan=None)])
    session = store.begin_session(2, "local")
    finish(store, trial(0), session)
    store.begin(trial(1).key)
    store.tell({trial(1).key: 0.5})
    store.fail(trial(2).key, session, "it broke\nsee there")
    found = status(store)
    assert found.counts == {"pending": 2, "running": 1, "done": 1, "failed": 1}
    assert found.failures == {"it broke": 1}
    assert found.driver is not None
    assert found.driver["workers"] == 2
    (running,) = found.running
    assert (running["part"], running["what"]) == (0.5, "tune bert 0-5 rte of 100 seed 1")
    assert 0 <= running["seconds"] < 60
    # half a trial, a whole one, and one of which only the mean of all is known; by two workers
    assert found.seconds_left == pytest.approx((1 + 2 + 2) / 2)
