"""A cache of arrays by content: what was once computed from the same inputs is read back.

It lies in `RESTACK_CACHE`, else in `~/.cache/restack` (`XDG_CACHE_HOME` is heeded). Entries are
whole or absent, a damaged one is made again, and any of them may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


def cache_root() -> Path:
    """The directory of all caches; it need not exist yet."""
    named = os.environ.get("RESTACK_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "restack"


def fingerprint(*columns: Iterable[Any]) -> str:
    """A hash of columns of JSON values: equal content gives equal text, whatever file it is from.

    >>> fingerprint(["a", "b"]) == fingerprint(("a", "b"))
    True
    >>> fingerprint(["a"], ["b"]) == fingerprint(["a", "b"])
    False
    """
    seen = hashlib.sha256()
    for column in columns:
        seen.update(b"#")  # begins a column; no JSON value begins so
        for value in column:
            # JSON holds no raw newline, so values cannot run into each other
            seen.update(json.dumps(value, sort_keys=True).encode() + b"\n")
    return seen.hexdigest()[:32]


def cached_arrays(kind: str, key: str, make: Callable[[], Arrays]) -> Arrays:
    """Give the arrays kept under `kind` and `key`, or make and keep them."""
    path = cache_root() / kind / f"{key}.npz"
    kept = _read(path)
    if kept is not None:
        return kept
    arrays = make()
    _write(path, arrays)
    return arrays


def _read(path: Path) -> Arrays | None:
    try:
        # opened here, since np.load leaves a damaged file open
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error):
        return None


def _write(path: Path, arrays: Arrays) -> None:
    """Write beside the target and rename, so that no reader sees half a file."""
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            part = Path(file.name)
            np.savez(file, **arrays)  # type: ignore[arg-type]
        part.replace(path)
    except OSError:
        pass  # a full or read-only disk costs the next run some time, and nothing else
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
