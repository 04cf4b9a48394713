"""Base weights in a form that all workers of a machine share: float32 files that are mapped.

transformers maps safetensors, and where no number has to change its format a loaded tensor is the
mapped file itself: pages of it are in memory once for all workers, until training writes to them.
A checkpoint in another format is therefore written in float32 once.
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

from restack.anatomy.checkpoint import Checkpoint, fetch_checkpoint, open_checkpoint
from restack.data.cache import cache_root
from restack.errors import RestackError
from restack.sweep.identify import check_model
from restack.sweep.trial import Model


def base_of(model: Model) -> str:
    """A directory to load a model from, with weights in float32 where that can be.

    Refuses a model that is not the one its trial was defined for: on another machine the same place
    may hold something else.
    """
    check_model(model)
    return _base(model.location, model.revision, model.fingerprint)


@cache
def _base(location: str, revision: str | None, fingerprint: str | None) -> str:
    checkpoint = open_checkpoint(location, revision=revision)
    if not Path(location).expanduser().is_dir():
        checkpoint = fetch_checkpoint(location, revision=revision)
    directory = str(checkpoint.directory or location)
    if fingerprint is None or not _worth_it(checkpoint):
        return directory
    ready = cache_root() / "bases" / fingerprint
    if not ready.exists():
        try:
            _write(directory, ready)
        except (RestackError, OSError):  # a full disk, or weights that cannot be cast
            return directory
    return str(ready)


def _worth_it(checkpoint: Checkpoint) -> bool:
    """Whether all weights are plain numbers and some of them not in float32."""
    kinds = {tensor.dtype for tensor in checkpoint.tensors.values()}
    plain = {"F16", "BF16", "F32", "I64", "BOOL"}
    return bool(kinds & {"F16", "BF16"}) and kinds <= plain


def _write(directory: str, ready: Path) -> None:
    from restack.anatomy.checkpoints import anatomy
    from restack.plan import Plan
    from restack.surgery.disk import Options, edit

    depth = anatomy(open_checkpoint(directory)).pick().depth
    ready.parent.mkdir(parents=True, exist_ok=True)
    try:
        edit(directory, Plan.identity(depth), ready, Options(dtype="float32"))
    except RestackError:
        if not ready.exists():  # else another worker was faster
            shutil.rmtree(ready, ignore_errors=True)
            raise
