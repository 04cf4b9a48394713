"""Where a run stands, in one file that is whole or the one before.

The file is written beside its place and renamed, so that a full disk, a crash or a `kill -9` while
it is written leaves the checkpoint before it as it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from restack.errors import CheckpointError

CHECKPOINT = "checkpoint.pt"
JOB = "job.json"
METRICS = "metrics.jsonl"


def work_directory(out: Path) -> Path:
    """Where a run for the output `out` keeps what it needs until it is finished."""
    return out.with_name(f"{out.name}.unfinished")


def save_checkpoint(work: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint of a run."""
    path = work / CHECKPOINT
    part = path.with_suffix(".part")
    try:
        with open(part, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        _sync(work)
    except (OSError, RuntimeError) as error:  # torch wraps some errors of the file it writes to
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        before = "the one before it is untouched" if path.exists() else "there is none before it"
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise CheckpointError(
            f"{path}: the checkpoint of step {state.get('step')} cannot be written ({reason}); "
            f"{before}",
            hint="Make room, then go on with --resume." if path.exists() else "Make room.",
        ) from error


def load_checkpoint(work: Path) -> dict[str, Any] | None:
    """The last checkpoint, None if there is none."""
    path = work / CHECKPOINT
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and torch each have errors of their own
        raise CheckpointError(
            f"{path} cannot be read: {str(error).splitlines()[0]}",
            hint=f"Remove {work} and begin again.",
        ) from error
    return state


@contextlib.contextmanager
def claimed(work: Path, job: dict[str, Any], *, resume: bool) -> Iterator[None]:
    """Hold the work directory for this run alone.

    Without `resume` it must hold no checkpoint; with it, one of the same job. Where there is no
    checkpoint at the end, nothing is left.
    """
    new = not work.exists()
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError(
            f"{work}: {error.strerror or error}", hint="Write to another place."
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(
                f"{work} is in use: another run is writing there",
                hint="Wait for it, or give another output.",
            ) from error
        if not new and (work / CHECKPOINT).exists():
            _check_same(work, job, resume)
        else:
            _write_job(work, job)
        try:
            yield
        finally:
            if not (work / CHECKPOINT).exists():  # nothing to go on from
                shutil.rmtree(work, ignore_errors=True)
    finally:
        os.close(lock)


def _check_same(work: Path, job: dict[str, Any], resume: bool) -> None:
    if not resume:
        raise CheckpointError(
            f"{work} holds an unfinished run for this output",
            hint="Go on with it by --resume, or remove it.",
        )
    try:
        before = json.loads((work / JOB).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{work / JOB} cannot be read", hint=f"Remove {work} and begin again."
        ) from error
    job = json.loads(json.dumps(job))
    # a setting that one side lacks is one that another version of the program has
    for name in sorted({*before, *job}):
        ours, theirs = job.get(name), before.get(name)
        if ours == theirs:
            continue
        if isinstance(ours, dict) and isinstance(theirs, dict):
            inner = next(key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key))
            name, ours, theirs = f"{name}.{inner}", ours.get(inner), theirs.get(inner)
        raise CheckpointError(
            f"{work} holds another run: its {name} is {theirs!r}, now it is {ours!r}",
            hint="Resume with the same settings, model and data; or remove it and begin again.",
        )


def _write_job(work: Path, job: dict[str, Any]) -> None:
    try:
        (work / JOB).write_text(json.dumps(job, indent=2) + "\n")
    except OSError as error:
        raise CheckpointError(
            f"{work / JOB}: {error.strerror or error}", hint="Make room, or write elsewhere."
        ) from error


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
