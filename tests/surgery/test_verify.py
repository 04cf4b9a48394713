"""What `verify` finds: in the structure, in the record, against the source."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from restack import Options, edit, verify
from restack.anatomy.checkpoint import open_checkpoint
from restack.anatomy.fingerprint import file_hashes, value_digest
from restack.errors import CheckpointError
from tests.families import FAMILIES

State = dict[str, torch.Tensor]
BIAS = "bert.encoder.layer.1.output.dense.bias"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("verify") / "source"
    FAMILIES["bert"].build().save_pretrained(where)
    return where


@pytest.fixture
def made(source: Path, tmp_path: Path) -> Path:
    edit(source, "0-2,4", tmp_path / "made")
    return tmp_path / "made"


def rewrite(where: Path, change: Callable[[State], object]) -> None:
    file = where / "model.safetensors"
    state = load_file(file)
    change(state)
    save_file(state, file, metadata={"format": "pt"})


def change_json(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_sound_one(made: Path, source: Path) -> None:
    report = verify(made, source, load=True)
    assert report.ok
    assert len(report.checked) == 5
    assert report.to_json()["differences"] == []


CHANGES: dict[str, tuple[Callable[[State], object], str]] = {
    "missing": (lambda s: s.pop(BIAS), f"`{BIAS}` is missing"),
    "extra": (
        lambda s: s.update({"bert.encoder.layer.1.new.weight": torch.ones(2)}),
        "`bert.encoder.layer.1.new.weight` is not in the other layers",
    ),
    "shape": (lambda s: s.update({BIAS: torch.ones(3)}), f"`{BIAS}` has the shape [3]"),
    "missing outside": (
        lambda s: s.pop("bert.embeddings.LayerNorm.bias"),
        "the names, dtypes or shapes of the tensors are not those",
    ),
    "dtype": (
        lambda s: s.update({BIAS: s[BIAS].half()}),
        "the names, dtypes or shapes of the tensors are not those",
    ),
    "values": (lambda s: s[BIAS].add_(1), "the weights were changed"),
    "layer gone": (
        lambda s: [s.pop(n) for n in list(s) if ".layer.3." in n],
        "no tensor is named `bert.encoder.layer.3.`",
    ),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_changes_of_the_weights_show_without_the_source(change: str, made: Path) -> None:
    apply, says = CHANGES[change]
    rewrite(made, apply)
    report = verify(made)
    assert any(says in line for line in report.differences), report.differences


def test_the_class_says_what_is_missing_where_no_record_does(made: Path) -> None:
    (made / "restack.json").unlink()
    rewrite(made, lambda s: s.pop("bert.embeddings.LayerNorm.bias"))
    assert verify(made).ok  # the layers are whole, and nothing tells of the rest
    (line,) = verify(made, load=True).differences
    assert line == "`bert.embeddings.LayerNorm.bias` is missing: BertForMaskedLM expects it"


def test_the_same_weights_in_other_files_are_the_same(made: Path, source: Path) -> None:
    from transformers import BertForMaskedLM

    before = json.loads((made / "config.json").read_text())
    BertForMaskedLM.from_pretrained(made).save_pretrained(made, max_shard_size="20kB")
    (made / "model.safetensors").unlink()
    (made / "config.json").write_text(json.dumps(before))
    assert verify(made, source).ok


def test_a_changed_config(made: Path, source: Path) -> None:
    change_json(made / "config.json", hidden_act="relu")
    assert "config.json was changed since restack.json was written" in verify(made).differences
    assert any("hidden_act" in line for line in verify(made, source).differences)


def test_a_wrong_width(made: Path) -> None:
    change_json(made / "config.json", hidden_size=32)
    assert any("layers of width 16" in line for line in verify(made).differences)


def test_a_changed_source(made: Path, source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(source, other)
    assert verify(made, other).ok  # a copy is as good
    rewrite(other, lambda s: s["bert.embeddings.LayerNorm.weight"].add_(1))
    found = verify(made, other).differences
    assert any("changed since the edit" in line for line in found)
    assert "the values of `bert.embeddings.LayerNorm.weight` differ" in found


def test_a_source_that_is_too_short(made: Path, source: Path, tmp_path: Path) -> None:
    edit(source, "0-1", tmp_path / "short")
    found = verify(made, tmp_path / "short").differences
    assert any("is not the source" in line for line in found)
    assert any("cannot be carried out" in line for line in found)


@pytest.mark.parametrize(
    "fields", [{"plan": 3}, {"stack": None}, {"output": []}, {"fingerprint": ["x"]}]
)
def test_a_damaged_record_is_a_difference(made: Path, fields: dict[str, Any]) -> None:
    change_json(made / "restack.json", **fields)
    (line,) = verify(made).differences
    assert "restack.json" in line
    with pytest.raises(CheckpointError):  # and nothing to build on
        edit(made, "0", made.parent / "again")


def test_hashes_of_the_source_are_kept(source: Path, tmp_path: Path) -> None:
    edit(source, "0", tmp_path / "out", Options(hash=True))
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    place = open_checkpoint(copy).tensors["bert.encoder.layer.4.intermediate.dense.weight"]
    with open(copy / place.shard, "r+b") as file:  # of a layer that the plan leaves out
        file.seek(place.start + place.nbytes // 2)
        file.write(b"\x01\x02")
    report = verify(tmp_path / "out", copy)
    assert any("layer.4.intermediate.dense.weight" in line for line in report.differences)
    assert verify(tmp_path / "out", source).ok


def test_fresh_weights_are_drawn_again(source: Path, tmp_path: Path) -> None:
    edit(source, "0-3,4@fresh", tmp_path / "out", Options(seed=8, init="paper"))
    assert verify(tmp_path / "out", source).ok
    change_json(tmp_path / "out" / "restack.json", seed=9)
    assert not verify(tmp_path / "out", source).ok


def test_samples_are_of_many_tensors_at_most(tmp_path: Path) -> None:
    tensors = {f"t{i:04}": torch.full((4,), float(i)) for i in range(1500)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    found = open_checkpoint(tmp_path)
    before = value_digest(found.tensors.values(), found.path)
    assert before == value_digest(reversed(found.tensors.values()), found.path)
    save_file({n: t + 1 for n, t in tensors.items()}, tmp_path / "model.safetensors")
    assert value_digest(found.tensors.values(), found.path) != before


def test_the_hubs_hashes_are_known_from_its_cache(tmp_path: Path) -> None:
    name = "a" * 64
    blobs = tmp_path / "models--o--n" / "blobs"
    snapshot = tmp_path / "models--o--n" / "snapshots" / "0123abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    save_file({"x": torch.ones(2)}, blobs / name)
    (snapshot / "model.safetensors").symlink_to(blobs / name)
    (snapshot / "config.json").write_text("{}")
    from dataclasses import replace

    found = open_checkpoint(snapshot)
    assert file_hashes(found) == {}  # a directory of no known commit
    assert file_hashes(replace(found, commit="0123abc")) == {"model.safetensors": name}
