"""The store: one SQLite file that holds every trial and what it gave, and files beside it.

There is one writer, the driver of a sweep, which holds a lock on the directory. Readers may come at
any time. Every change is a transaction that is on the disk before the next one begins. Until
a driver ends in peace the database file itself is not written (changes go to the `-wal` file, which
only grows, see `_WAL_LIMIT`), so that a copy of both, made at any moment, is sound.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

from restack.errors import RestackError
from restack.sweep.clock import boot_id
from restack.sweep.kinds import Result
from restack.sweep.opening import (
    is_locked,
    now,
    on_disk,
    open_to_read,
    open_to_write,
    take_lock,
)
from restack.sweep.rows import STATUSES, Artefact, Row, matches
from restack.sweep.trial import Trial

FILE = "store.sqlite"
TRIALS = "trials"
WORK = "work"
_WAL_LIMIT = 1 << 28
"""Bytes of changes after which they are moved into the database file in mid-run."""


class Store:
    """All trials of a directory. Open one with `Store.open`; close it, or use it in a `with`."""

    def __init__(self, directory: Path, db: sqlite3.Connection, lock: IO[str] | None) -> None:
        self.directory = directory
        self._db = db
        self._lock = lock

    @classmethod
    def open(cls, directory: str | os.PathLike[str], *, write: bool = False) -> Store:
        """A store to read from, or with `write` to run a sweep in; that makes it if need be.

        A file `store.sqlite` that was copied somewhere can be given instead of its directory.
        """
        place = Path(directory).expanduser()
        file = place if place.is_file() else place / FILE
        if not write:
            return cls(file.parent, open_to_read(file), None)
        if place.exists() and not place.is_dir():
            raise RestackError(f"{place} is no directory", hint="Give the directory of the store.")
        with on_disk(place):
            (place / TRIALS).mkdir(parents=True, exist_ok=True)
            (place / WORK).mkdir(exist_ok=True)
        lock = take_lock(place)
        try:
            db = open_to_write(file)
        except BaseException:
            lock.close()
            raise
        return cls(place, db, lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files; a writer first brings all changes into the database file."""
        if self._lock is not None:
            with suppress(sqlite3.OperationalError):  # a full disk: the -wal file keeps them
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()
        if self._lock is not None:
            self._lock.close()

    @property
    def writable(self) -> bool:
        return self._lock is not None

    # reading

    def rows(self, *, once: bool = False, **filters: Any) -> list[Row]:
        """The trials that match, in the order in which they were added.

        Filters are `status`, `kind`, `model`, `plan`, `task`, `size`, `subsample`, `seed`, `key`,
        or any label; a list of values means any of them. A trial with several sets of labels (the
        untouched model is "drop 0" of every strategy) gives one row for each set that matches;
        with `once` only the first.
        """
        return list(self._rows(once, filters))

    def row(self, key: str) -> Row | None:
        """The trial with this key, or the beginning of one."""
        with self._at_one_moment():
            found = self._db.execute(
                "SELECT key FROM trials WHERE key >= ? AND key < ? LIMIT 2", (key, key + "g")
            ).fetchall()
            if len(found) > 1:
                raise RestackError(f"several trials begin with {key}", hint="Give more of the key.")
            rows = self._rows(True, {"key": found[0][0]}) if found else iter(())
            return next(rows, None)

    def counts(self) -> dict[str, int]:
        """Trials by status."""
        found = dict(self._db.execute("SELECT status, COUNT(*) FROM trials GROUP BY status"))
        return {status: found.get(status, 0) for status in STATUSES}

    def frame(self, of: str = "metrics", *, library: str = "pandas", **filters: Any) -> Any:
        """The rows as a pandas or polars frame; `of` is `metrics`, `trials` or `curve`."""
        from restack.sweep.frames import frame

        return frame(self.rows(**filters), of, library)

    def copy(self, file: str | os.PathLike[str]) -> None:
        """Write all of the store but the kept files into one new file, at any time."""
        with on_disk(Path(file).parent), contextlib.closing(sqlite3.connect(file)) as new:
            self._db.backup(new)
            new.execute("PRAGMA journal_mode = DELETE")

    def verify(self, row: Row) -> list[str]:
        """The kept files of a trial that are missing or not as they were written."""
        return [a.name for a in row.artefacts if digest(a.path) != (a.sha256, a.nbytes)]

    def driver(self) -> dict[str, Any] | None:
        """The driver that is at work on this store: its process, host and number of workers."""
        if self._lock is None and not is_locked(self.directory):
            return None
        found = self._db.execute(
            "SELECT id, started, pid, host, boot, workers, executor FROM sessions"
            " ORDER BY id DESC LIMIT 1"
        ).fetchone()
        names = ("session", "started", "pid", "host", "boot", "workers", "executor")
        return None if found is None else dict(zip(names, found, strict=True))

    def running(self) -> list[dict[str, Any]]:
        """The trials at work: key, part done, seconds since the start."""
        driver = self.driver()
        here = driver is not None and driver["boot"] == boot_id()
        return [
            # the monotonic clock is one for all processes of a machine until it is started anew
            {"key": key, "part": part, "seconds": time.monotonic() - clock if here else None}
            for key, part, clock in self._db.execute(
                "SELECT key, part, clock FROM trials WHERE status = 'running' ORDER BY clock"
            )
        ]

    def _rows(self, once: bool, filters: Mapping[str, Any]) -> Iterator[Row]:
        where, values = "", []
        for name in ("status", "key"):
            if isinstance(filters.get(name), str):
                where += f"{' AND' if where else ' WHERE'} {name} = ?"
                values.append(filters[name])
        with self._at_one_moment():
            known = self._db.execute(
                "SELECT key, trial, status, seconds, error FROM trials" + where + " ORDER BY added",
                values,
            ).fetchall()
            one = " WHERE key = ?" if isinstance(filters.get("key"), str) else ""
            which = (filters["key"],) if one else ()
            labels, metrics = defaultdict(list), defaultdict(dict)  # type: ignore[var-annotated]
            for key, text in self._db.execute("SELECT key, labels FROM labels" + one, which):
                labels[key].append(text)
            for key, split, name, value in self._db.execute(
                "SELECT key, split, name, value FROM metrics" + one, which
            ):
                number = float("nan") if value is None else value
                metrics[key].setdefault(split, {})[name] = number
            tries = dict(
                self._db.execute(
                    "SELECT key, COUNT(*) FROM attempts" + one + " GROUP BY key", which
                )
            )
        for key, text, status, seconds, error in known:
            content = json.loads(text)
            for given in labels[key] or ["{}"]:
                trial = Trial.from_json({**content, "labels": json.loads(given)})
                row = Row(
                    trial, status, metrics[key], seconds, tries.get(key, 0), error, self._detail
                )
                if matches(row, filters):
                    yield row
                    if once:
                        break

    def _detail(self, what: str, key: str) -> Any:
        """The parts of a row that are read when asked for."""
        select = self._db.execute
        if what == "curve":
            found = select("SELECT point FROM curve WHERE key = ? ORDER BY place", (key,))
            return tuple(json.loads(text) for (text,) in found)
        if what == "payload":
            one = select("SELECT payload FROM payloads WHERE key = ?", (key,)).fetchone()
            return None if one is None else json.loads(one[0])
        if what == "timings":
            return dict(select("SELECT name, seconds FROM timings WHERE key = ?", (key,)))
        if what == "environment":
            one = select(
                "SELECT content FROM environments JOIN attempts ON environments.id = environment"
                " WHERE key = ? AND outcome = 'done' ORDER BY attempts.id DESC LIMIT 1",
                (key,),
            ).fetchone()
            return None if one is None else json.loads(one[0])
        if what == "history":
            names = ("outcome", "reason", "place", "seconds", "peak")
            every = select(
                f"SELECT {', '.join(names)} FROM attempts WHERE key = ? ORDER BY id", (key,)
            )
            return tuple(dict(zip(names, one, strict=True)) for one in every)
        assert what == "artefacts"
        root = self.directory / TRIALS / key
        return tuple(
            Artefact(path, root / path, sha256, nbytes)
            for path, sha256, nbytes in select(
                "SELECT path, sha256, bytes FROM artefacts WHERE key = ? ORDER BY path", (key,)
            )
        )

    @contextmanager
    def _at_one_moment(self) -> Iterator[None]:
        """Several queries that see the store as it is at one moment."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    # writing, by the driver of a sweep alone

    @contextmanager
    def _change(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """One transaction, on the disk when the block ends."""
        if self._lock is None:
            raise RestackError("this store was opened to read", hint="Open it with write=True.")
        with on_disk(self.directory):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db.execute
                self._db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.OperationalError):  # SQLite may have rolled back by itself
                    self._db.execute("ROLLBACK")
                raise

    def add(self, trials: Iterable[Trial]) -> int:
        """Enter trials, and new labels of those that are there; how many are new."""
        with self._change() as do:
            last = do("SELECT COALESCE(MAX(added), 0) FROM trials").fetchone()[0]
            before = do("SELECT COUNT(*) FROM trials").fetchone()[0]
            for place, trial in enumerate(trials, start=last + 1):
                content = trial.to_json()
                labels = json.dumps(content.pop("labels"), sort_keys=True)
                do(
                    "INSERT INTO trials (key, trial, status, added) VALUES (?, ?, 'pending', ?)"
                    " ON CONFLICT DO UPDATE SET trial = excluded.trial",
                    (trial.key, json.dumps(content, sort_keys=True), place),
                )
                if trial.labels:
                    do("INSERT OR IGNORE INTO labels VALUES (?, ?)", (trial.key, labels))
            after = do("SELECT COUNT(*) FROM trials").fetchone()[0]
        return int(after - before)

    def begin_session(self, workers: int, executor: str) -> int:
        """Note a new driver. What an earlier one left running waits for its next attempt."""
        with self._change() as do:
            do(
                "INSERT INTO attempts (key, session, outcome, reason) SELECT key,"
                " (SELECT MAX(id) FROM sessions), 'lost', 'the driver ended' FROM trials"
                " WHERE status = 'running'"
            )
            do("UPDATE trials SET status = 'pending' WHERE status = 'running'")
            made = do(
                "INSERT INTO sessions (started, pid, host, boot, workers, executor)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (now(), os.getpid(), socket.gethostname(), boot_id(), workers, executor),
            )
        return int(made.lastrowid or 0)

    def begin(self, key: str) -> None:
        """A trial has been given to a worker."""
        with self._change() as do:
            do(
                "UPDATE trials SET status = 'running', part = 0, clock = ?, error = NULL"
                " WHERE key = ? AND status != 'done'",
                (time.monotonic(), key),
            )

    def put_back(self, key: str) -> None:
        """A trial that was given to a worker has not begun, so that it was no attempt."""
        with self._change() as do:
            do("UPDATE trials SET status = 'pending' WHERE key = ? AND status = 'running'", (key,))

    def tell(self, parts: Mapping[str, float]) -> None:
        """How far running trials are."""
        with self._change() as do:
            for key, part in parts.items():
                do("UPDATE trials SET part = ? WHERE key = ? AND status = 'running'", (part, key))

    def finish(
        self,
        key: str,
        session: int,
        result: Result,
        *,
        seconds: float,
        files: Mapping[str, tuple[str, int]],
        environment: Mapping[str, Any],
        place: str = "",
        peak: int | None = None,
    ) -> bool:
        """Enter what a trial gave, all of it or nothing; False if it was done already.

        `files` has the hash and size of each kept file, which must be in place and on the disk.
        """
        with self._change() as do:
            entered = do(
                "UPDATE trials SET status = 'done', seconds = ?, error = NULL"
                " WHERE key = ? AND status != 'done'",
                (seconds, key),
            )
            if not entered.rowcount:
                return False
            for split, values in result.metrics.items():
                for name, value in values.items():
                    do("INSERT INTO metrics VALUES (?, ?, ?, ?)", (key, split, name, float(value)))
            for number, point in enumerate(result.curve):
                text = json.dumps(dict(point), sort_keys=True)
                do("INSERT INTO curve VALUES (?, ?, ?, ?)", (key, number, point.get("step"), text))
            if result.payload is not None:
                text = json.dumps(result.payload, sort_keys=True)
                do("INSERT INTO payloads VALUES (?, ?)", (key, text))
            for name, value in result.timings.items():
                do("INSERT INTO timings VALUES (?, ?, ?)", (key, name, float(value)))
            for path, (sha256, nbytes) in files.items():
                do("INSERT INTO artefacts VALUES (?, ?, ?, ?)", (key, path, sha256, nbytes))
            text = json.dumps(dict(environment), sort_keys=True)
            do("INSERT OR IGNORE INTO environments (content) VALUES (?)", (text,))
            do(
                "INSERT INTO attempts (key, session, environment, place, outcome, seconds, peak)"
                " VALUES (?, ?, (SELECT id FROM environments WHERE content = ?), ?, 'done', ?, ?)",
                (key, session, text, place, seconds, peak),
            )
        self._shorten()
        return True

    def fail(self, key: str, session: int, reason: str, *, place: str = "") -> None:
        """A trial cannot be done; the others go on."""
        self._ended(key, session, "failed", reason, place)

    def give_back(self, key: str, session: int, reason: str, *, place: str = "") -> None:
        """A trial ended before it was done, and waits for its next attempt."""
        self._ended(key, session, "lost", reason, place)

    def _ended(self, key: str, session: int, outcome: str, reason: str, place: str) -> None:
        failed = outcome == "failed"
        with self._change() as do:
            do(
                "UPDATE trials SET status = ?, error = ? WHERE key = ? AND status != 'done'",
                ("failed" if failed else "pending", reason if failed else None, key),
            )
            do(
                "INSERT INTO attempts (key, session, place, outcome, reason)"
                " VALUES (?, ?, ?, ?, ?)",
                (key, session, place, outcome, reason),
            )

    def forget(self, key: str) -> None:
        """Take back what a trial gave, so that it is done again; its attempts stay on record."""
        with self._change() as do:
            for table in ("metrics", "curve", "payloads", "timings", "artefacts"):
                do(f"DELETE FROM {table} WHERE key = ?", (key,))
            do(
                "UPDATE trials SET status = 'pending', seconds = NULL, error = NULL WHERE key = ?",
                (key,),
            )

    def remove(self, keys: Iterable[str]) -> None:
        """Take trials out altogether, with their files."""
        keys = list(keys)
        for key in keys:
            self.forget(key)
        with self._change() as do:
            for key in keys:
                for table in ("attempts", "labels", "trials"):
                    do(f"DELETE FROM {table} WHERE key = ?", (key,))
        for key in keys:
            shutil.rmtree(self.directory / TRIALS / key, ignore_errors=True)
            shutil.rmtree(self.directory / WORK / key, ignore_errors=True)

    def _shorten(self) -> None:
        wal = self.directory / f"{FILE}-wal"
        with suppress(OSError):
            if wal.stat().st_size > _WAL_LIMIT:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def digest(path: Path) -> tuple[str, int] | None:
    """The hash and size of a file; None if it cannot be read."""
    import hashlib

    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
    except OSError:
        return None
