"""An output directory that appears complete or not at all.

Everything is written into a hidden sibling, `.NAME.restack-PID-RANDOM`, renamed at the end. Its
maker holds a lock on it, so that the next run can tell a dead one's leftovers from the work of a
living one. A replaced output stands aside as `....old` between two renames; if a crash comes just
then, the next run puts it back.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

from restack.anatomy.checkpoint import CONFIG
from restack.errors import CheckpointError
from restack.surgery.write import unwritable

_OURS = re.compile(r"\.(?P<name>.+)\.restack-\d+-[0-9a-f]{8}(?P<old>\.old)?")
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")


@contextmanager
def publish(out: Path, *, force: bool = False, inputs: Sequence[Path] = ()) -> Iterator[Path]:
    """A directory to write into, which becomes `out` when the block ends without an error.

    Everything in it is on the disk before `out` appears; after an error, an interrupt or a
    SIGTERM nothing is left. `force` replaces an older checkpoint. `out` must lie outside of all
    `inputs`, and they outside of it. Missing parents are made.
    """
    out = Path(os.path.abspath(out))
    with _terminable(), ExitStack() as leftovers:
        try:
            _check_apart(out, inputs)
            _make_parents(out.parent, leftovers)
            _clean(out.parent)
            _check_free(out, force)
            with _work_directory(out, leftovers) as work:
                yield work
                _sync(work)
                _move(work, out, force)
            leftovers.pop_all()  # nothing is left over: forget what would remove it
        except OSError as error:
            # the block may have failed at another file, even at one that it read
            raise unwritable(Path(str(error.filename or out)), error) from error


def check_output(out: Path, *, force: bool = False, inputs: Sequence[Path] = ()) -> None:
    """Raise what `publish` would raise before it starts, without touching the disk."""
    out = Path(os.path.abspath(out))
    try:
        _check_apart(out, inputs)
        _check_free(out, force)
    except OSError as error:
        raise unwritable(out, error) from error


def _check_apart(out: Path, inputs: Sequence[Path]) -> None:
    real = Path(os.path.realpath(out))
    for path in inputs:
        source = Path(os.path.realpath(path))
        if real == source:
            problem = "is the input itself"
        elif real.is_relative_to(source) or _holds(source, out):
            problem = f"lies in the input {path}"
        elif source.is_relative_to(real):
            problem = f"contains the input {path}"
        else:
            continue
        raise CheckpointError(
            f"The output {out} {problem}", hint="Write to a directory beside the input."
        )


def _holds(source: Path, out: Path) -> bool:
    # another mount of the same place has another name but the same inode
    return source.exists() and any(
        place.exists() and place.samefile(source) for place in out.parents
    )


def _check_free(out: Path, force: bool) -> None:
    if out.is_symlink():
        raise CheckpointError(
            f"The output {out} is a symbolic link", hint="Give the place that it points to."
        )
    if not out.exists():
        return
    if not out.is_dir():
        raise CheckpointError(
            f"The output {out} exists and is not a directory", hint="Give another name."
        )
    names = os.listdir(out)
    if not names:
        return
    if not force:
        raise CheckpointError(
            f"The output {out} exists", hint="Give another name, or --force to replace it."
        )
    if CONFIG not in names or not any(name.endswith(_WEIGHTS) for name in names):
        raise CheckpointError(
            f"The output {out} exists and does not look like a checkpoint, so it is not replaced",
            hint="Remove it yourself if nothing in it is needed, or give another name.",
        )


def _make_parents(parent: Path, leftovers: ExitStack) -> None:
    missing = [place for place in (parent, *parent.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(exist_ok=True)
        leftovers.callback(_quietly_rmdir, place)


def _quietly_rmdir(place: Path) -> None:
    with suppress(OSError):  # somebody else may have put something there
        place.rmdir()


@contextmanager
def _work_directory(out: Path, leftovers: ExitStack) -> Iterator[Path]:
    """A new locked directory beside `out`."""
    lock = None
    while lock is None:
        work = _beside(out)
        try:
            work.mkdir()
        except OSError as error:  # of a name that the user knows
            raise unwritable(out, error) from error
        try:
            lock = _lock(work)
        except FileNotFoundError:  # a cleaner took it in the moment before it was locked
            continue
        except OSError:  # no locks on this file system: then no cleaner takes it either
            lock = os.open(work, os.O_RDONLY)
    leftovers.callback(shutil.rmtree, work, ignore_errors=True)
    try:
        yield work
    finally:
        os.close(lock)


def _beside(out: Path) -> Path:
    return out.with_name(f".{out.name}.restack-{os.getpid()}-{secrets.token_hex(4)}")


def _lock(directory: Path) -> int | None:
    """A descriptor that holds the lock on a directory, None if somebody else holds it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(directory)):
            return descriptor
    except BlockingIOError:
        pass
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _clean(parent: Path) -> None:
    """Remove what dead runs left in `parent`; put back an output that one was replacing."""
    with suppress(OSError):
        for name in os.listdir(parent):
            if found := _OURS.fullmatch(name):
                with suppress(OSError):  # another user's, or a file system without locks
                    _clean_one(parent / name, parent / found["name"], bool(found["old"]))


def _clean_one(left: Path, out: Path, old: bool) -> None:
    lock = _lock(left)
    if lock is None:
        return
    try:
        if old and not os.path.lexists(out):
            os.rename(left, out)
        else:
            _discard(left)
    finally:
        os.close(lock)


def _discard(directory: Path) -> None:
    # a half-removed `.old` must not be put back by the next run
    doomed = directory.with_name(directory.name.removesuffix(".old"))
    os.rename(directory, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _sync(work: Path) -> None:
    for parent, _, names in os.walk(work, topdown=False):
        for name in names:
            _fsync(Path(parent, name))
        _fsync(Path(parent))


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some file systems sync files only
            raise
    finally:
        os.close(descriptor)


def _move(work: Path, out: Path, force: bool) -> None:
    aside = _beside(out)
    aside = aside.with_name(f"{aside.name}.old")
    _check_free(out, force)  # again: much time may have passed
    with ExitStack() as held:
        try:
            if out.exists() and os.listdir(out):
                with suppress(OSError):
                    lock = _lock(out)  # so that no cleaner takes it for a dead run's
                    if lock is not None:
                        held.callback(os.close, lock)
                os.rename(out, aside)
            os.rename(work, out)
        except BaseException:
            if aside.exists() and not out.exists():
                os.rename(aside, out)
            raise
        _fsync(out.parent)
        if aside.exists():
            _discard(aside)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the program as an exception, so that it cleans up."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if threading.current_thread() is threading.main_thread()  # others may not set handlers
        and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in numbers:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
