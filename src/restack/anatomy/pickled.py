"""Weights in PyTorch's own files (`pytorch_model.bin`): where the bytes of each tensor lie.

Needs torch, which reads them with `weights_only`, so that nothing in them is executed. A file in
today's format holds its tensors as they are, and byte ranges of it can be copied like those of a
safetensors file. What does not (the format before torch 1.6, views that are not contiguous) is
spooled into a temporary file first.
"""

from __future__ import annotations

import os
import re
import tempfile
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from restack.anatomy.files import open_regular
from restack.anatomy.safetensors_header import Tensor
from restack.errors import CheckpointError

if TYPE_CHECKING:
    import torch

_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "complex64": "C64",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "bool": "BOOL",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pickled:
    """The tensors of one file, in the order of their bytes in `path`."""

    tensors: list[Tensor]
    path: Path  # the file itself, or the temporary one that stands for it
    spooled: bool

    @property
    def size(self) -> int:
        return self.path.stat().st_size


def read_pickled(path: Path, shard: str) -> Pickled:
    """The tensors that `torch.save` wrote into a file; `shard` is what they call it."""
    os.close(open_regular(path))  # not a pipe, and there
    if _is_plain(path):
        state = _load(path, mapped=True)
        size = path.stat().st_size
        found = [_in_place(name, tensor, shard, size) for name, tensor in state.items()]
        tensors = [tensor for tensor in found if tensor is not None]
        if len(tensors) == len(found):
            return Pickled(sorted(tensors, key=lambda t: (t.start, t.end)), path, False)
    return _spool(path, shard)


def _is_plain(path: Path) -> bool:
    """Whether the file is an archive that stores tensors uncompressed and in this byte order."""
    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            orders = [m for m in members if m.filename.endswith("/byteorder")]
            little = all(m.file_size < 9 and archive.read(m) == b"little" for m in orders)
            return little and all(m.compress_type == zipfile.ZIP_STORED for m in members)
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError, ValueError):
        return False  # torch says better what is wrong with it


def _load(path: Path, *, mapped: bool) -> Mapping[str, torch.Tensor]:
    """The state dict; `mapped` without its bytes, but with their places."""
    import contextlib

    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with warnings.catch_warnings(), FakeTensorMode() if mapped else contextlib.nullcontext():
            warnings.simplefilter("ignore")
            state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of pickle, zipfile, torch: whatever a damaged file leads to
        raise CheckpointError(
            f"{path} cannot be read as PyTorch weights: {_reason(error)}",
            hint="It is damaged, or holds more than tensors, which could run code and is not read.",
        ) from None
    if not isinstance(state, Mapping) or not state:
        raise CheckpointError(
            f"{path} holds a {type(state).__name__}, expected tensors by name",
            hint="Save the state dict of the model, or call save_pretrained.",
        )
    for name, tensor in state.items():
        _check(path, name, tensor)
    return state


def _reason(error: Exception) -> str:
    # torch begins with a page on how to switch its protection off, and ends with links
    text = " ".join(str(error).split())
    refusal = re.search(r"(?:WeightsUnpickler error:? |Unsupported |Trying to |GLOBAL ).*", text)
    text = refusal[0] if refusal else text
    return re.split(r"\.? (?:Check the|Please |If you are|This is an)", text)[0][:160]


def _check(path: Path, name: object, tensor: object) -> None:
    import torch

    if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
        raise CheckpointError(
            f"{path} holds a {type(tensor).__name__} under {name!r}, expected tensors by name",
            hint="Save the state dict of the model, or call save_pretrained.",
        )
    if tensor.layout != torch.strided or _dtype(tensor) is None:
        raise CheckpointError(
            f"{path}: tensor {name!r} is {tensor.dtype} {tensor.layout}, which safetensors cannot "
            "hold",
            hint="Convert it once: load the model with its class and call save_pretrained.",
        )


def _dtype(tensor: torch.Tensor) -> str | None:
    return _DTYPES.get(str(tensor.dtype).removeprefix("torch."))


def _in_place(name: str, tensor: torch.Tensor, shard: str, size: int) -> Tensor | None:
    """Where the tensor lies in the file; None if not in one piece and in order."""
    # torch notes the place of a storage for those who load without its bytes
    place = getattr(tensor.untyped_storage(), "_checkpoint_offset", None)
    if place is None or not tensor.is_contiguous():
        return None
    width = tensor.element_size()
    start = place + tensor.storage_offset() * width
    end = start + tensor.numel() * width
    if not 0 <= start <= end <= size:
        return None
    return Tensor(name, str(_dtype(tensor)), tuple(tensor.shape), shard, start, end)


def _spool(path: Path, shard: str) -> Pickled:
    """Write the bytes of all tensors, one after the other, into a temporary file."""
    import torch

    state = _load(path, mapped=False)
    descriptor, name = tempfile.mkstemp(prefix="restack-", suffix=".weights")
    tensors, at = [], 0
    try:
        with open(descriptor, "wb") as file:
            for key, tensor in state.items():
                raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
                file.write(raw.numpy().data)
                end = at + raw.numel()
                tensors.append(
                    Tensor(key, str(_dtype(tensor)), tuple(tensor.shape), shard, at, end)
                )
                at = end
    except OSError as error:
        os.unlink(name)
        raise CheckpointError(
            f"{path} has to be unpacked into {name}: {error.strerror}",
            hint="Set TMPDIR to a directory with more space.",
        ) from error
    return Pickled(tensors, Path(name), True)
