"""Short names for what a checkpoint holds: cheap ones of its headers, exact ones of its bytes."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from restack.anatomy.checkpoint import Checkpoint
from restack.anatomy.files import open_regular, unreadable
from restack.anatomy.safetensors_header import Tensor
from restack.errors import CheckpointError

_BUFFER = 1 << 20
_BLOCK = 4096
_SAMPLED = 512  # tensors
_SHA256 = re.compile("[0-9a-f]{64}")


def fingerprint(checkpoint: Checkpoint) -> str:
    """A digest of the config, of all headers and of the file sizes; reads nothing from disk.

    The same for a checkpoint on the Hub and its copy on disk. Weights that differ in value only
    have the same one: see `sampled_digest`.
    """
    digest = hashlib.blake2b(digest_size=32)
    digest.update(json.dumps(checkpoint.config, sort_keys=True).encode())
    digest.update(json.dumps(checkpoint.sizes, sort_keys=True).encode())
    for name in sorted(checkpoint.tensors):
        tensor = checkpoint.tensors[name]
        place = [name, tensor.dtype, tensor.shape, tensor.shard, tensor.start, tensor.end]
        digest.update(json.dumps(place).encode())
    return digest.hexdigest()


def sampled_digest(checkpoint: Checkpoint, *, blocks: int = 64) -> str:
    """A digest of `blocks` small blocks, spread evenly over the bytes of each weight file.

    Tells checkpoints of one architecture apart in a moment, whatever their size; a change between
    the blocks escapes it.
    """
    digest = hashlib.blake2b(digest_size=32)
    for name, size in sorted(checkpoint.sizes.items()):
        last = max(size - _BLOCK, 0)
        for start in sorted({last * block // max(blocks - 1, 1) for block in range(blocks)}):
            for piece in _pieces(checkpoint.path(name), start, min(start + _BLOCK, size)):
                digest.update(piece)
    return digest.hexdigest()


def value_digest(tensors: Iterable[Tensor], path_of: Callable[[str], Path]) -> str:
    """A digest of the first and last bytes of up to 512 tensors, spread evenly over their names.

    Says of values what `sampled_digest` says of files: the same however tensors lie in files.
    """
    in_order = sorted(tensors, key=lambda tensor: tensor.name)
    digest = hashlib.blake2b(digest_size=32)
    for place in sorted({len(in_order) * i // _SAMPLED for i in range(_SAMPLED)}):
        if place >= len(in_order):
            break
        tensor = in_order[place]
        digest.update(json.dumps([tensor.name, tensor.nbytes]).encode())
        for start in sorted({tensor.start, max(tensor.start, tensor.end - _BLOCK)}):
            for piece in _pieces(path_of(tensor.shard), start, min(start + _BLOCK, tensor.end)):
                digest.update(piece)
    return digest.hexdigest()


def file_hashes(checkpoint: Checkpoint) -> dict[str, str]:
    """The SHA-256 of each weight file as far as the Hub's cache knows it: it names blobs so."""
    if checkpoint.commit is None or checkpoint.directory is None:
        return {}
    blobs = {name: Path(os.path.realpath(checkpoint.path(name))) for name in checkpoint.sizes}
    return {
        name: blob.name
        for name, blob in blobs.items()
        if "blobs" in blob.parts and _SHA256.fullmatch(blob.name)
    }


def tensor_digest(path: Path, start: int, end: int) -> str:
    """A digest of the bytes `[start, end)` of a file, read in pieces."""
    digest = hashlib.blake2b(digest_size=32)
    for piece in _pieces(path, start, end):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(path: Path, start: int, end: int) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(min(_BUFFER, end - start)))
    with open(open_regular(path), "rb", buffering=0) as file:
        while start < end:
            try:
                count = os.preadv(file.fileno(), [buffer[: end - start]], start)
            except OSError as error:
                raise unreadable(path, error) from None
            if not count:
                raise CheckpointError(
                    f"{path} ends at byte {start}, expected {end}",
                    hint="It changed since its header was read: nothing else may write to it.",
                )
            yield buffer[:count]
            start += count
