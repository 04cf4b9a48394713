"""Writing weight files from pieces of others, in little memory and about the time of a copy."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from restack.anatomy.checkpoint import INDEX
from restack.anatomy.safetensors_header import BITS, PAGE, Tensor, byte_size, format_header
from restack.errors import CheckpointError
from restack.surgery import copying, shards

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes `[start, end)` of a file."""

    path: Path
    start: int
    end: int

    def blocks(self, unit: int = 1) -> Iterator[bytes]:
        """The bytes in pieces of about a MiB, each of whole units."""
        size = max(_BLOCK // unit, 1) * unit
        with open(self.path, "rb", buffering=0) as file:
            for at in range(self.start, self.end, size):
                block = os.pread(file.fileno(), min(size, self.end - at), at)
                if len(block) < min(size, self.end - at):
                    raise CheckpointError(
                        f"{self.path} ends at byte {at + len(block)}, expected {self.end}"
                    )
                yield block


@dataclass(frozen=True, slots=True)
class Zeros:
    """As many zeros as the tensor takes."""


@dataclass(frozen=True, slots=True)
class Made:
    """Bytes made on the way, chunk by chunk, each time that `chunks` is called."""

    chunks: Callable[[], Iterator[bytes | bytearray | memoryview]]


@dataclass(frozen=True, slots=True)
class Target:
    """A tensor to be written, and where its bytes come from."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: Range | Zeros | Made
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", byte_size(self.dtype, self.shape))


Progress = Callable[[int], None]


def write_weights(
    directory: Path,
    targets: Sequence[Target],
    *,
    shard_size: int | None = None,
    metadata: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Write `model.safetensors`, or shards of at most `shard_size` bytes with their index.

    Returns the tensors as `open_checkpoint` will find them. Shards take the targets in the given
    order; neighbours there that are neighbours in their source are copied as one piece. Inside a
    shard dtypes with wide elements come first, which keeps every tensor aligned. `progress` is
    called with the number of bytes just written. Nothing is synced: `publish` does that.
    """
    _check(targets)
    _check_space(directory, sum(target.nbytes for target in targets))
    groups = shards.split([target.nbytes for target in targets], shard_size)
    written: list[Tensor] = []
    for name, group in zip(shards.names(len(groups)), groups, strict=True):
        members = sorted((targets[place] for place in group), key=_alignment, reverse=True)
        written += _write_shard(directory / name, members, metadata or {}, progress)
    if len(groups) > 1:
        _write_index(directory / INDEX, written)
    return {tensor.name: tensor for tensor in written}


def unwritable(path: Path, error: OSError) -> CheckpointError:
    """The error to raise when the system refuses to write `path`."""
    return CheckpointError(
        f"{path}: {error.strerror or error}",
        hint="Nothing was written. Check the space, the quota and the rights there.",
    )


def _write_shard(
    path: Path, targets: Sequence[Target], metadata: Mapping[str, str], progress: Progress | None
) -> list[Tensor]:
    header = format_header(
        ((target.name, target.dtype, target.shape, target.nbytes) for target in targets),
        {"format": "pt", **metadata},  # transformers wants to know the framework
        place_in_page=_place_in_page(targets),
    )
    part = path.with_name(path.name + ".part")  # a weight file has its name once it is complete
    try:
        with open(part, "xb", buffering=0) as file:
            at = copying.write_all(header, file.fileno())
            synced = 0
            for count in _write_all(targets, file.fileno()):
                at += count
                if progress is not None:
                    progress(count)
                if at - synced >= copying.PIECE:
                    copying.start_writeback(file.fileno(), synced, at - synced)
                    synced = at
        os.rename(part, path)
    except OSError as error:
        raise unwritable(path, error) from error
    return _placed(targets, path.name, len(header))


def _place_in_page(targets: Sequence[Target]) -> int | None:
    """Where in a page the buffer must start for most bytes to keep their place in their page.

    The kernel then copies whole pages, in two thirds of the time. None where it hardly matters.
    """
    gains: Counter[int] = Counter()
    at = 0
    for source, nbytes, _ in _merged(targets):
        if isinstance(source, Range) and (source.start - at) % 8 == 0:
            gains[(source.start - at) % PAGE] += nbytes
        at += nbytes
    best = gains.most_common(1)
    return best[0][0] if best and best[0][1] >= copying.PIECE else None


def _write_all(targets: Sequence[Target], file: int) -> Iterator[int]:
    for source, nbytes, name in _merged(targets):
        if isinstance(source, Range):
            yield from copying.copy_range(source.path, source.start, source.end, file)
        elif isinstance(source, Zeros):
            yield from copying.write_zeros(nbytes, file)
        else:
            yield from _make(source, nbytes, name, file)


def _merged(targets: Sequence[Target]) -> Iterator[tuple[Range | Zeros | Made, int, str]]:
    """Source, size and name of each piece, where adjoining ranges of a file are one piece."""
    held: Range | None = None
    for target in targets:
        source = target.source
        if (
            isinstance(source, Range)
            and held
            and (held.path, held.end) == (source.path, source.start)
        ):
            held = Range(held.path, held.start, source.end)
            continue
        if held:
            yield held, held.end - held.start, ""
        held = source if isinstance(source, Range) else None
        if held is None:
            yield source, target.nbytes, target.name
    if held:
        yield held, held.end - held.start, ""


def _make(source: Made, nbytes: int, name: str, file: int) -> Iterator[int]:
    done = 0
    for chunk in source.chunks():
        size = memoryview(chunk).nbytes
        if done + size > nbytes:
            done += size
            break
        done += copying.write_all(chunk, file)
        yield size
    if done != nbytes:
        raise CheckpointError(f"Made {done} bytes or more for {name}, which takes {nbytes}")


def _placed(targets: Sequence[Target], shard: str, at: int) -> list[Tensor]:
    placed = []
    for target in targets:
        end = at + target.nbytes
        placed.append(Tensor(target.name, target.dtype, target.shape, shard, at, end))
        at = end
    return placed


def _write_index(path: Path, tensors: Sequence[Tensor]) -> None:
    total = {
        "total_parameters": sum(math.prod(tensor.shape) for tensor in tensors),
        "total_size": sum(tensor.nbytes for tensor in tensors),
    }
    places = {tensor.name: tensor.shard for tensor in tensors}
    try:
        with open(path, "x", encoding="utf-8") as file:
            json.dump({"metadata": total, "weight_map": places}, file, indent=2, sort_keys=True)
            file.write("\n")
    except OSError as error:
        raise unwritable(path, error) from error


def _alignment(target: Target) -> int:
    # safetensors and torch take a view of the file, which must start at a multiple of the element
    return BITS[target.dtype] // 8


def _check(targets: Sequence[Target]) -> None:
    names: set[str] = set()
    for target in targets:
        if target.name in names or target.name == "__metadata__":
            raise CheckpointError(
                f"Tensor {target.name!r} cannot be written twice in one checkpoint"
            )
        names.add(target.name)
        source = target.source
        if isinstance(source, Range) and source.end - source.start != target.nbytes:
            raise CheckpointError(
                f"{target.name} takes {target.nbytes} bytes, "
                f"its source in {source.path} has {source.end - source.start}"
            )


def _check_space(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise CheckpointError(
            f"The output takes {needed / 1e9:.2f} GB, the disk has {free / 1e9:.2f} GB free",
            hint="Free some space or write to another disk.",
        )
