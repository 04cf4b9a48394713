"""Opening the files of a checkpoint directory without being led out of it or into a pipe."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from restack.errors import CheckpointError


def locate(directory: Path, name: str, *, named_in: str) -> Path:
    """The file `name` of `directory`, which must lie in it also behind symbolic links."""
    if not is_plain(name):
        raise CheckpointError(
            f"{named_in} names the file {name!r}, which is not a path inside the checkpoint",
            hint="Only files beside config.json or below it are read.",
        )
    return contained(directory, directory / name)


def contained(directory: Path, path: Path) -> Path:
    """`path`, unless a symbolic link leads out of `directory`.

    The one way out that is allowed is that of the Hub's cache, whose snapshots link to blobs.
    """
    home, real = Path(os.path.realpath(directory)), Path(os.path.realpath(path))
    if not any(real.is_relative_to(place) for place in (home, *_blobs(home))):
        raise CheckpointError(
            f"{path} is a symbolic link to {real}, outside the checkpoint",
            hint="Copy the file into the directory if you trust it.",
        )
    return path


def is_plain(name: str) -> bool:
    """Whether `name` is a relative path that goes down only, on any operating system."""
    return not any(mark in name for mark in "\0\\:") and all(
        part not in ("", ".", "..") for part in name.split("/")
    )


def open_regular(path: Path) -> int:
    """A descriptor of the regular file at `path`, for reading; never waits on a pipe or device."""
    try:
        # O_NONBLOCK: opening a named pipe would otherwise wait for somebody to write to it
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise unreadable(path, error) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(
            f"{path} is not a regular file", hint="A checkpoint consists of regular files only."
        )
    return descriptor


def read_small(path: Path, limit: int) -> bytes:
    """All of a file that must not be larger than `limit` bytes."""
    descriptor = open_regular(path)
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise CheckpointError(
                f"{path} has {size} bytes, expected at most {limit}",
                hint="It cannot be what its name says: look at what it holds.",
            )
        try:
            return file.read(size)  # not `limit`, which would be allocated at once
        except OSError as error:
            raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """The error to raise when the system refuses to open or read `path`."""
    hints = {
        errno.ENOENT: "Complete the checkpoint: download it or save it again.",
        errno.EACCES: "Ask its owner for the right to read it.",
        errno.ELOOP: "It is a symbolic link that leads to itself.",
    }
    reason = "does not exist" if error.errno == errno.ENOENT else f"is unreadable: {error.strerror}"
    return CheckpointError(
        f"{path} {reason}", hint=hints.get(error.errno or 0, "Check the disk and the path.")
    )


def names_below(directory: Path, folder: str, *, deep: bool) -> list[str]:
    """Names relative to `directory` of the files in `folder`, with all below it if `deep`."""
    found = []
    for parent, folders, files in os.walk(directory / folder):
        found += [(Path(parent) / name).relative_to(directory).as_posix() for name in files]
        folders[:] = sorted(folders) if deep else []
    return sorted(name for name in found if (directory / name).is_file())


def _blobs(home: Path) -> list[Path]:
    # <cache>/models--owner--name/snapshots/<commit>/x -> ../../blobs/<hash>, and with shared
    # blobs that one again -> <cache>/blobs/xx/<hash>
    repository = home.parent.parent
    if home.parent.name != "snapshots" or not repository.name.startswith("models--"):
        return []
    return [repository / "blobs", repository.parent / "blobs"]
