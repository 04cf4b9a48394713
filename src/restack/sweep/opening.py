"""Opening a store: its database, to read or to write, and the lock of the one writer."""

from __future__ import annotations

import fcntl
import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from restack.errors import RestackError
from restack.sweep import schema

LOCK = "driver.lock"


class StoreError(RestackError):
    """The store cannot be written; the sweep must end, and loses nothing that was finished."""


def open_to_write(file: Path) -> sqlite3.Connection:
    """The database with all its tables; every commit is on the disk when it returns."""
    with on_disk(file.parent):
        db = sqlite3.connect(file, isolation_level=None, timeout=60)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA wal_autocheckpoint = 0")
            if schema.migrate(db, str(file)):
                # now, before anything runs, so that even a copy of this file alone has its tables
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except BaseException as error:
            db.close()
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(
                error, sqlite3.OperationalError
            ):
                raise _unreadable(file, error) from error
            raise
    return db


def open_to_read(file: Path) -> sqlite3.Connection:
    """A database that nothing is changed in; a copy in a place without write access will do."""
    if not file.is_file():
        raise RestackError(
            f"there is no store in {file.parent}",
            hint="`restack sweep FILE --store DIR` makes one.",
        )
    # A copy in a place that cannot be written has no room for the files of a write-ahead log.
    ways = ["mode=ro"] if Path(f"{file}-wal").exists() else ["mode=ro", "immutable=1"]
    for way in ways:
        uri = f"{file.absolute().as_uri()}?{way}"
        db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=60)
        try:
            have = schema.version(db)
            schema.check(have, str(file))
            if have < len(schema.MIGRATIONS):
                raise RestackError(
                    f"{file} is of an older version, or still empty",
                    hint="Run a sweep in it with this version once.",
                )
        except sqlite3.DatabaseError as error:
            db.close()
            if way != ways[-1]:
                continue
            raise _unreadable(file, error) from error
        except BaseException:
            db.close()
            raise
        return db
    raise AssertionError


def take_lock(directory: Path) -> IO[str]:
    """Be the one writer of a store until the file is closed, as the system does after a kill."""
    lock = (directory / LOCK).open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "another process"
        lock.close()
        raise RestackError(
            f"{directory} is being written by {holder}",
            hint="One driver writes a store. Wait for it, stop it, or give another --store.",
        ) from None
    except OSError as error:
        lock.close()
        raise RestackError(
            f"{directory} cannot be locked: {error.strerror}",
            hint="The store must lie on a file system with locks.",
        ) from error
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {socket.gethostname()}, since {now()}")
    lock.flush()
    return lock


def is_locked(directory: Path) -> bool:
    """Whether a writer is at work."""
    try:
        with (directory / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextmanager
def on_disk(directory: Path) -> Iterator[None]:
    """Errors of the disk as errors of ours."""
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        raise StoreError(
            f"{directory} cannot be written: {error}",
            hint="Make room or mend the disk and start the sweep again: it goes on where it was.",
        ) from error


def _unreadable(file: Path, error: Exception) -> RestackError:
    return RestackError(
        f"{file} cannot be read: {error}",
        hint="Copy store.sqlite and store.sqlite-wal together, or use a backup.",
    )


def now() -> str:
    """The time of the clock on the wall; it is shown, and nothing is reckoned by it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
