"""Weights in PyTorch's own files: where their bytes lie, and what is refused."""

from __future__ import annotations

import gc
import json
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from restack import Options, edit, verify
from restack.anatomy.checkpoint import CONFIG, Checkpoint, open_checkpoint
from restack.errors import CheckpointError
from tests.families import FAMILIES

BASE = torch.arange(24.0).reshape(4, 6)
TENSORS = OrderedDict(
    a=BASE,
    rows=BASE[1:3],  # a view, which shares storage
    half=torch.arange(5).half(),
    brain=torch.arange(5).bfloat16(),
    number=torch.tensor(7),
    flags=torch.tensor([True, False]),
    empty=torch.zeros(0, 3),
)


def save(where: Path, tensors: Any = TENSORS, **how: Any) -> Path:
    where.mkdir(exist_ok=True)
    (where / CONFIG).write_text('{"model_type": "bert"}')
    torch.save(tensors, where / "pytorch_model.bin", **how)
    return where


def values(found: Checkpoint) -> dict[str, bytes]:
    read = {}
    for name, tensor in found.tensors.items():
        with open(found.path(tensor.shard), "rb") as file:
            file.seek(tensor.start)
            read[name] = file.read(tensor.nbytes)
    return read


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def spools() -> set[str]:
    import tempfile

    return {name for name in os.listdir(tempfile.gettempdir()) if name.endswith(".weights")}


def test_bytes_are_found_where_they_lie(tmp_path: Path) -> None:
    found = open_checkpoint(save(tmp_path / "m"))
    assert values(found) == {name: raw(tensor) for name, tensor in TENSORS.items()}
    assert found.tensors["brain"].dtype == "BF16"
    assert found.tensors["rows"].shape == (2, 6)
    assert found.path("pytorch_model.bin") == tmp_path / "m" / "pytorch_model.bin"  # no copy


@pytest.mark.parametrize(
    ("tensors", "how"),
    [
        (TENSORS, {"_use_new_zipfile_serialization": False}),
        ({"turned": BASE.t(), "a": BASE}, {}),
    ],
    ids=["before torch 1.6", "not contiguous"],
)
def test_what_does_not_lie_there_is_spooled(
    tmp_path: Path, tensors: dict[str, torch.Tensor], how: dict[str, bool]
) -> None:
    before = spools()
    found = open_checkpoint(save(tmp_path / "m", tensors, **how))
    assert values(found) == {name: raw(tensor) for name, tensor in tensors.items()}
    assert len(spools() - before) == 1
    del found
    gc.collect()
    assert spools() <= before


def test_compressed_archives_are_spooled(tmp_path: Path) -> None:
    """torch writes archives without compression; copying compressed bytes would be wrong."""
    where = save(tmp_path / "m")
    file = where / "pytorch_model.bin"
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    try:
        found = open_checkpoint(where)
    except CheckpointError:  # torch may refuse it, too
        return
    assert values(found) == {name: raw(tensor) for name, tensor in TENSORS.items()}


@pytest.mark.parametrize("old", [False, True])
def test_an_edit_writes_safetensors(tmp_path: Path, old: bool) -> None:
    from safetensors.torch import load_file

    model = FAMILIES["bert"].build()
    source, out = tmp_path / "in", tmp_path / "out"
    model.config.save_pretrained(source)
    state = model.state_dict()
    parts = {"pytorch_model-1.bin": list(state)[::2], "pytorch_model-2.bin": list(state)[1::2]}
    for part, names in parts.items():
        tensors = {name: state[name] for name in names}
        torch.save(tensors, source / part, _use_new_zipfile_serialization=not old)
    places = {name: part for part, names in parts.items() for name in names}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    edit(source, "4,0", out, Options(hash=True))
    made = load_file(out / "model.safetensors")
    for part in ("attention.self.query.weight", "output.LayerNorm.bias"):
        for slot, layer in enumerate((4, 0)):
            old_name = f"bert.encoder.layer.{layer}.{part}"
            assert torch.equal(made[f"bert.encoder.layer.{slot}.{part}"], state[old_name])
    assert not list(out.glob("*.bin*"))
    assert verify(out, source).ok


class Evil:
    """What a stranger would put into a pickle."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.mark),)


def test_nothing_is_executed(tmp_path: Path) -> None:
    where = save(tmp_path / "m")
    for data in ({"a": Evil(tmp_path / "mark")}, Evil(tmp_path / "mark")):
        (where / "pytorch_model.bin").write_bytes(pickle.dumps(data))
        with pytest.raises(CheckpointError, match="cannot be read as PyTorch weights"):
            open_checkpoint(where)
        torch.save(data, where / "pytorch_model.bin")
        with pytest.raises(CheckpointError, match="mkdir"):
            open_checkpoint(where)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([torch.zeros(2)], "holds a list"),
        ({}, "expected tensors by name"),
        ({"a": 3}, "holds a int under 'a'"),
        ({1: torch.zeros(2)}, "expected tensors by name"),
        ({"a": torch.zeros(2, 2).to_sparse()}, "safetensors cannot"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, "complex128"),
    ],
)
def test_other_contents_are_refused(tmp_path: Path, content: Any, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        open_checkpoint(save(tmp_path / "m", content))


@pytest.mark.parametrize("cut", [0, 3, 400, -1, -300])
def test_damaged_files(tmp_path: Path, cut: int) -> None:
    where = save(tmp_path / "m")
    file = where / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match="cannot be read as PyTorch weights"):
        open_checkpoint(where)


def test_safetensors_win(tmp_path: Path) -> None:
    model = FAMILIES["bert"].build()
    model.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"damaged")
    assert open_checkpoint(tmp_path).sizes.keys() == {"model.safetensors"}
