"""`restack.json`: what was made from what, and how, so that `verify` can prove it later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from restack.anatomy.anatomy import Stack
from restack.anatomy.checkpoint import Checkpoint
from restack.anatomy.config import Config
from restack.anatomy.files import read_small
from restack.anatomy.fingerprint import (
    file_hashes,
    fingerprint,
    sampled_digest,
    tensor_digest,
    value_digest,
)
from restack.anatomy.safetensors_header import Tensor
from restack.anatomy.strict_json import DAMAGED, LIMIT, parse_object
from restack.errors import CheckpointError
from restack.plan import Plan

RECORD = "restack.json"

Progress = Callable[[int], None]
_LONG = ("tensor_hashes", "output")  # of no use to a later edit of the checkpoint
_TEXTS = ("source", "stack", "plan", "fingerprint")  # what `verify` builds on


def of_source(checkpoint: Checkpoint, stack: Stack, plan: Plan) -> dict[str, Any]:
    """What the new checkpoint comes from, by as many names as are cheap to have."""
    from restack import __version__

    record: dict[str, Any] = {
        "restack": __version__,
        "source": checkpoint.location,
        "commit": checkpoint.commit,
        "fingerprint": fingerprint(checkpoint),
        "stack": stack.path,
        "plan": str(plan),
        "source_depth": plan.depth,
        "depth": len(plan),
    }
    if checkpoint.directory is not None:
        record["sampled_digest"] = sampled_digest(checkpoint)
        if known := file_hashes(checkpoint):
            record["file_sha256"] = known
        if earlier := read_record(checkpoint):
            record["source_record"] = {k: v for k, v in earlier.items() if k not in _LONG}
    return record


def of_layout(config: Config, tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> dict:
    """What the headers and the config of the output say, known before it is written."""
    return {"config": digest_of(config), "tensors": layout_digest(tensors)}


def of_torch() -> dict[str, str]:
    """Which torch draws the numbers of a family's own initialiser; other versions may differ."""
    import torch

    return {"torch": str(torch.__version__)}


def layout_digest(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> str:
    """A digest of names, dtypes and shapes, however the tensors lie in files."""
    return digest_of(sorted([name, dtype, list(shape)] for name, dtype, shape in tensors))


def digest_of(value: Any) -> str:
    """A short name for plain data, by which `verify` knows it again."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def of_values(work: Path, written: Mapping[str, Tensor]) -> dict[str, Any]:
    """What the bytes of the output say, from samples of them."""
    return {"values": value_digest(written.values(), lambda shard: work / shard)}


def hashes(
    tensors: Mapping[str, Tensor], path_of: Callable[[str], Path], progress: Progress | None = None
) -> dict[str, str]:
    """The digest of all bytes of every tensor."""
    found = {}
    for name, tensor in sorted(tensors.items()):
        found[name] = tensor_digest(path_of(tensor.shard), tensor.start, tensor.end)
        if progress:
            progress(tensor.nbytes)
    return found


def read_record(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """What `edit` wrote about how the checkpoint came to be."""
    if RECORD not in checkpoint.other_files or checkpoint.directory is None:
        return None
    path = checkpoint.path(RECORD)
    record = parse_object(read_small(path, 2 * LIMIT), str(path))
    wrong = [field for field in _TEXTS if not isinstance(record.get(field), str)]
    if wrong:
        raise CheckpointError(f"{path} has no text under {wrong[0]!r}", hint=DAMAGED)
    if not isinstance(record.get("output"), dict):
        raise CheckpointError(f"{path} tells nothing of its output", hint=DAMAGED)
    return record
