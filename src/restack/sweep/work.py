"""One trial carried out in a worker: its result on the disk, or the reason why there is none.

A finished result lies in the work directory (`outcome.json` and the files to keep) before anybody
is told, so that a driver which dies at that moment finds it there and enters it without a new run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from restack.errors import RestackError
from restack.sweep.environment import environment
from restack.sweep.kinds import Context, Input, Result, Stopped, find_kind
from restack.sweep.memory import fresh_peak, peak
from restack.sweep.store import digest
from restack.sweep.trial import Trial

KEPT = "kept"
OUTCOME = "outcome.json"
_ORPHAN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Part:
    """One trial of a job, and the directory that is its own."""

    trial: Trial
    work: Path
    inputs: Mapping[str, Input] = field(default_factory=dict)
    keep: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Job:
    """What is given to a worker: one trial, or several that are trained together."""

    parts: tuple[Part, ...]
    device: str = "cpu"
    threads: int | None = None
    """How many it may use, if that is more than the worker's share: nothing else runs then."""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(part.trial.key for part in self.parts)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended."""

    key: str
    status: Literal["done", "failed", "stopped", "full", "apart"]
    """`full`: the disk had no room, which is no fault of the trial. `apart`: it cannot be trained
    together with the others of its job, and has not begun."""
    reason: str = ""
    result: Result = field(default_factory=Result)
    files: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Hash and size of all that lies in `kept`, by path."""
    seconds: float = 0.0
    environment: Mapping[str, Any] = field(default_factory=dict)
    peak: int | None = None


def perform(
    job: Job,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[float], None] = lambda part: None,
) -> list[Outcome]:
    """Carry out a job; whatever happens in it is told by the outcomes."""
    with contextlib.ExitStack() as held:
        try:
            for part in job.parts:
                held.enter_context(_alone(part.work))
            kept = [_finished(part) for part in job.parts]
            fresh_peak()
            if len(job.parts) > 1 and not any(kept):
                return _together(job, stop, tell)
            return [
                before or _one(part, job, stop, tell)
                for before, part in zip(kept, job.parts, strict=True)
            ]
        except OSError as error:  # of the work directories themselves
            return [Outcome(key, *_blame(error)) for key in job.keys]


def _context(part: Part, job: Job, stop: Callable[[], bool], tell: Any) -> Context:
    return Context(
        part.trial, part.work, job.device, part.inputs, part.keep, stop, tell, job.threads
    )


def _one(part: Part, job: Job, stop: Callable[[], bool], tell: Callable[[float], None]) -> Outcome:
    begun = time.monotonic()
    try:
        result = find_kind(part.trial.kind)(_context(part, job, stop, tell))
        return _written(part, result, begun, job.device)
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        return Outcome(part.trial.key, *_blame(error), seconds=time.monotonic() - begun)


def _together(job: Job, stop: Callable[[], bool], tell: Callable[[float], None]) -> list[Outcome]:
    """All at once, or none of them if they must run one by one."""
    from restack.sweep.stacked import Unstackable, tune_together

    begun = time.monotonic()
    try:
        contexts = [_context(part, job, stop, tell) for part in job.parts]
        results = tune_together(contexts)
        each = (time.monotonic() - begun) / len(results)
        return [
            _written(part, result, time.monotonic() - each, job.device)
            for part, result in zip(job.parts, results, strict=True)
        ]
    except Unstackable as error:
        return [Outcome(key, "apart", str(error)) for key in job.keys]
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        return [Outcome(key, *_blame(error)) for key in job.keys]


def _written(part: Part, result: Result, begun: float, device: str) -> Outcome:
    """The outcome of a result, with all of it on the disk."""
    result = checked(result)
    kept = part.work / KEPT
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    for name, path in result.files.items():
        place = kept / name
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, place)
    files = synced(kept)
    outcome = Outcome(
        part.trial.key,
        "done",
        result=result,
        files=files,
        seconds=time.monotonic() - begun,
        environment=environment(device),
        peak=peak(),
    )
    said = {
        "metrics": {split: dict(values) for split, values in result.metrics.items()},
        "curve": [dict(point) for point in result.curve],
        "payload": result.payload,
        "timings": dict(result.timings),
        "files": files,
        "seconds": outcome.seconds,
        "environment": dict(outcome.environment),
        "peak": outcome.peak,
        "keep": sorted(part.keep),
    }
    new = part.work / f"{OUTCOME}.new"
    with new.open("w") as file:
        json.dump(said, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, part.work / OUTCOME)
    sync_directory(part.work)
    return outcome


def _finished(part: Part) -> Outcome | None:
    """What an earlier attempt finished, if nobody entered it into the store and it is whole."""
    try:
        said = json.loads((part.work / OUTCOME).read_text())
    except (OSError, ValueError):
        return None
    files = {path: (sha256, nbytes) for path, (sha256, nbytes) in said["files"].items()}
    whole = all(digest(part.work / KEPT / path) == told for path, told in files.items())
    if not whole or said["keep"] != sorted(part.keep):
        return None
    result = Result(said["metrics"], said["curve"], said["payload"], said["timings"])
    return Outcome(
        part.trial.key,
        "done",
        result=result,
        files=files,
        seconds=said["seconds"],
        environment=said["environment"],
        peak=said["peak"],
    )


def checked(result: Result) -> Result:
    """Refuse a result that the store could not give back as it was."""
    for split, values in result.metrics.items():
        for name, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise RestackError(f"the metric {split}/{name} is {value!r} and no number")
    for number, point in enumerate(result.curve):
        if not isinstance(point.get("step", 0), int):
            raise RestackError(f"point {number} of the curve has the step {point['step']!r}")
    try:
        json.dumps([result.payload, [dict(point) for point in result.curve]])
    except (TypeError, ValueError) as error:
        raise RestackError(f"payload or curve hold what JSON cannot: {error}") from error
    if bad := [name for name, value in result.timings.items() if not math.isfinite(value)]:
        raise RestackError(f"the timing {bad[0]} is no finite number")
    return result


def _blame(error: BaseException) -> tuple[Any, str]:
    """How a trial that raised this ended, and why."""
    seen: BaseException | None = error
    while seen is not None:  # a full disk may be told in other words by what met it
        if isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT):
            return "full", str(seen)
        seen = seen.__cause__ or seen.__context__
    if isinstance(error, Stopped | KeyboardInterrupt | SystemExit):
        return "stopped", str(error) or "it was stopped"
    if isinstance(error, MemoryError) or _says_out_of_memory(error):
        first = (str(error).splitlines() or [""])[0]
        return "failed", f"out of memory: {first or type(error).__name__}"
    if isinstance(error, RestackError):
        return "failed", str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return "failed", f"{type(error).__name__}: {error}{where}"


def _says_out_of_memory(error: BaseException) -> bool:
    if not isinstance(error, RuntimeError):
        return False
    said = str(error).lower()
    return "out of memory" in said or "can't allocate memory" in said or "alloc_cpu" in said


@contextlib.contextmanager
def _alone(work: Path) -> Iterator[None]:
    """Hold the work directory; a worker whose driver was killed may need a moment to end."""
    work.mkdir(parents=True, exist_ok=True)
    held = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        begun = time.monotonic()
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - begun > _ORPHAN_SECONDS:
                    raise
                time.sleep(0.05)
            except OSError as error:
                if error.errno not in (errno.ENOTSUP, errno.ENOLCK):
                    raise
                break  # no locks on this file system
        yield
    finally:
        os.close(held)


def files_in(directory: Path) -> Iterator[Path]:
    """All files below a directory."""
    return (path for path in directory.rglob("*") if path.is_file())


def synced(directory: Path) -> dict[str, tuple[str, int]]:
    """Bring all that is in a directory to the disk; the hash and size of each file by its path."""
    found = {}
    for path in sorted(files_in(directory)):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        told = digest(path)
        assert told is not None
        found[str(path.relative_to(directory))] = told
    for path in (directory, *directory.rglob("*")):
        if path.is_dir():
            sync_directory(path)
    return found


def sync_directory(directory: Path) -> None:
    """Bring the names in a directory to the disk."""
    held = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # some file systems sync files only
            os.fsync(held)
    finally:
        os.close(held)
