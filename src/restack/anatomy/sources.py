"""The same few ways to look into a checkpoint, whether on disk or on the Hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from restack.anatomy import files, hub
from restack.anatomy.safetensors_header import header_size
from restack.anatomy.strict_json import LIMIT


@dataclass(frozen=True, slots=True)
class Source:
    """How to look into a checkpoint. All names are relative to it.

    `names(folder, deep)` lists the files in a folder, with all below it if `deep`; `headers` gives
    the JSON header and the file size of each of several safetensors files.
    """

    location: str
    label: Callable[[str], str]
    has: Callable[[str], bool]
    names: Callable[[str, bool], list[str]]
    read: Callable[[str], bytes]
    headers: Callable[[Sequence[str]], Iterator[tuple[bytes, int]]]


def on_disk(location: str, directory: Path) -> Source:
    """The files in a directory."""

    def place(name: str) -> Path:
        return files.locate(directory, name, named_in=location)

    return Source(
        location,
        label=lambda name: str(directory / name),
        has=lambda name: os.path.lexists(directory / name),
        names=lambda folder, deep: files.names_below(directory, folder, deep=deep),
        read=lambda name: files.read_small(place(name), LIMIT),
        headers=lambda names: (_header(place(name)) for name in names),
    )


def on_hub(found: hub.Listing) -> Source:
    """The files of a Hub repository at one commit."""

    def names(folder: str, deep: bool) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        below = [name for name in found.names if name.startswith(prefix)]
        return below if deep else [name for name in below if "/" not in name[len(prefix) :]]

    return Source(
        found.repository,
        label=found.label,
        has=lambda name: name in found.names,
        names=names,
        read=lambda name: files.read_small(hub.read(found, name), LIMIT),
        headers=lambda names: hub.headers(found, names),
    )


def _header(path: Path) -> tuple[bytes, int]:
    with open(files.open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            return file.read(header_size(file.read(8), size, str(path))), size
        except OSError as error:
            raise files.unreadable(path, error) from None
