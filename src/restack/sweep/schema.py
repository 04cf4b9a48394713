"""The tables of a store, as a list of small functions: a new version of them is one function more.

Numbers that a database keeps as text (labels, curves, environments) are JSON.
"""

from __future__ import annotations

import sqlite3

from restack.errors import RestackError


def _trials(db: sqlite3.Connection) -> None:
    db.execute(
        "CREATE TABLE trials (key TEXT PRIMARY KEY, trial TEXT NOT NULL, status TEXT NOT NULL,"
        " seconds REAL, error TEXT, part REAL, clock REAL, added INTEGER NOT NULL) WITHOUT ROWID"
    )
    db.execute("CREATE INDEX trials_by_status ON trials (status)")
    db.execute(
        "CREATE TABLE labels (key TEXT NOT NULL REFERENCES trials, labels TEXT NOT NULL,"
        " PRIMARY KEY (key, labels)) WITHOUT ROWID"
    )


def _results(db: sqlite3.Connection) -> None:
    db.execute(
        "CREATE TABLE metrics (key TEXT NOT NULL REFERENCES trials, split TEXT NOT NULL,"
        " name TEXT NOT NULL, value REAL, PRIMARY KEY (key, split, name)) WITHOUT ROWID"
    )
    db.execute(
        "CREATE TABLE curve (key TEXT NOT NULL REFERENCES trials, place INTEGER NOT NULL,"
        " step INTEGER, point TEXT NOT NULL, PRIMARY KEY (key, place)) WITHOUT ROWID"
    )
    db.execute("CREATE TABLE payloads (key TEXT PRIMARY KEY REFERENCES trials, payload TEXT)")
    db.execute(
        "CREATE TABLE timings (key TEXT NOT NULL REFERENCES trials, name TEXT NOT NULL,"
        " seconds REAL NOT NULL, PRIMARY KEY (key, name)) WITHOUT ROWID"
    )
    db.execute(
        "CREATE TABLE artefacts (key TEXT NOT NULL REFERENCES trials, path TEXT NOT NULL,"
        " sha256 TEXT NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (key, path)) WITHOUT ROWID"
    )


def _history(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE environments (id INTEGER PRIMARY KEY, content TEXT UNIQUE NOT NULL)")
    db.execute(
        "CREATE TABLE sessions (id INTEGER PRIMARY KEY, started TEXT NOT NULL, pid INTEGER,"
        " host TEXT, boot TEXT, workers INTEGER, executor TEXT)"
    )
    db.execute(
        "CREATE TABLE attempts (id INTEGER PRIMARY KEY, key TEXT NOT NULL REFERENCES trials,"
        " session INTEGER REFERENCES sessions, environment INTEGER REFERENCES environments,"
        " place TEXT, outcome TEXT NOT NULL, reason TEXT, seconds REAL, peak INTEGER)"
    )
    db.execute("CREATE INDEX attempts_by_key ON attempts (key)")


MIGRATIONS = (_trials, _results, _history)


def migrate(db: sqlite3.Connection, where: str) -> bool:
    """Bring a database to the newest version, step by step, each whole or not at all.

    Whether there was anything to do.
    """
    have = version(db)
    check(have, where)
    for number, step in enumerate(MIGRATIONS[have:], start=have + 1):
        db.execute("BEGIN IMMEDIATE")
        try:
            step(db)
            db.execute(f"PRAGMA user_version = {number}")
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise
    return have < len(MIGRATIONS)


def version(db: sqlite3.Connection) -> int:
    """How many migrations a database has been through."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def check(have: int, where: str) -> None:
    """Refuse a store that a newer version has written."""
    if have > len(MIGRATIONS):
        raise RestackError(
            f"{where} is of version {have}, and this restack knows versions up to "
            f"{len(MIGRATIONS)}",
            hint="Use a newer restack.",
        )
