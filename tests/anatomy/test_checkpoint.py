"""Checkpoints on disk: found, read as transformers would, or refused with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from restack.anatomy.checkpoint import (
    CONFIG,
    INDEX,
    SINGLE,
    Checkpoint,
    fetch_checkpoint,
    open_checkpoint,
)
from restack.errors import CheckpointError

TENSORS = {
    "embed.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "layer.0.weight": np.arange(4, dtype=np.float16),
    "layer.1.weight": np.arange(4, 8, dtype=np.float16),
}
SHARDS = {"a.safetensors": ["layer.1.weight"], "b.safetensors": ["embed.weight", "layer.0.weight"]}


def save(directory: Path, config: Any = None, *, sharded: bool = False) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CONFIG).write_text(json.dumps(config or {"model_type": "bert"}))
    if not sharded:
        safetensors.numpy.save_file(TENSORS, directory / SINGLE, {"format": "pt"})
        return directory
    for shard, names in SHARDS.items():
        safetensors.numpy.save_file({name: TENSORS[name] for name in names}, directory / shard)
    places = {name: shard for shard, names in SHARDS.items() for name in names}
    write_index(directory, places)
    return directory


def write_index(directory: Path, places: Any) -> None:
    index = {"metadata": {"total_size": 64}, "weight_map": places}
    (directory / INDEX).write_text(json.dumps(index))


def places_in(directory: Path) -> dict[str, str]:
    places: dict[str, str] = json.loads((directory / INDEX).read_text())["weight_map"]
    return places


def values(found: Checkpoint, name: str) -> bytes:
    tensor = found.tensors[name]
    return found.path(tensor.shard).read_bytes()[tensor.start : tensor.end]


@pytest.mark.parametrize("sharded", [False, True])
def test_every_tensor_is_found_at_its_bytes(tmp_path: Path, sharded: bool) -> None:
    found = open_checkpoint(save(tmp_path, sharded=sharded))
    assert found.config == {"model_type": "bert"}
    assert found.directory == tmp_path
    assert found.commit is None
    assert found.tensors.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        assert found.tensors[name].shape == array.shape
        assert values(found, name) == array.tobytes()
    shards = set(SHARDS) if sharded else {SINGLE}
    assert found.sizes == {shard: (tmp_path / shard).stat().st_size for shard in shards}


def test_tensors_come_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    found = open_checkpoint(save(tmp_path, sharded=True))
    places = [(tensor.shard, tensor.start) for tensor in found.tensors.values()]
    assert places == sorted(places)


def test_a_string_a_path_and_a_link_to_the_directory_are_the_same(tmp_path: Path) -> None:
    real = save(tmp_path / "real")
    (tmp_path / "link").symlink_to(real)
    assert open_checkpoint(str(real)).tensors == open_checkpoint(tmp_path / "link").tensors
    assert fetch_checkpoint(real).tensors == open_checkpoint(real).tensors


def test_the_single_file_wins_over_an_index_as_in_transformers(tmp_path: Path) -> None:
    save(tmp_path, sharded=True)
    safetensors.numpy.save_file({"only": np.zeros(2)}, tmp_path / SINGLE)
    assert set(open_checkpoint(tmp_path).tensors) == {"only"}


def test_a_weight_file_named_by_the_config_wins_over_both(tmp_path: Path) -> None:
    save(tmp_path, {"transformers_weights": "named.safetensors"})
    safetensors.numpy.save_file({"only": np.zeros(2)}, tmp_path / "named.safetensors")
    assert set(open_checkpoint(tmp_path).tensors) == {"only"}


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/x.safetensors", "x.bin", 3])
def test_a_weight_file_named_by_the_config_stays_inside(tmp_path: Path, name: Any) -> None:
    save(tmp_path / "m", {"transformers_weights": name})
    (tmp_path / "x.safetensors").write_bytes((tmp_path / "m" / SINGLE).read_bytes())
    with pytest.raises(CheckpointError):
        open_checkpoint(tmp_path / "m")


def test_infinity_in_a_config_is_read(tmp_path: Path) -> None:
    save(tmp_path, {"model_type": "mamba2", "time_step_limit": [0.0, float("inf")]})
    assert open_checkpoint(tmp_path).config["time_step_limit"][1] == float("inf")


def test_what_travels_along(tmp_path: Path) -> None:
    save(tmp_path)
    modules = [{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}, {"path": "../out"}]
    for name, text in {
        "tokenizer.json": "{}",
        "README.md": "# x",
        "modules.json": json.dumps(modules),
        "1_Pooling/config.json": "{}",
        "2_Dense/model.safetensors": "weights of its own",
        "modeling_own.py": "",
        "additional_chat_templates/tool.jinja": "",
        "pytorch_model.bin": "old format",
        "onnx/model.onnx": "other format",
        "model.fp16.safetensors": "variant",
        "optimizer.pt": "of training",
        "checkpoint-10/config.json": "{}",
        ".gitattributes": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert set(open_checkpoint(tmp_path).other_files) == {
        "tokenizer.json",
        "README.md",
        "modules.json",
        "1_Pooling/config.json",
        "2_Dense/model.safetensors",
        "modeling_own.py",
        "additional_chat_templates/tool.jinja",
    }


def change_index(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        places = places_in(directory)
        change(places)
        write_index(directory, places)

    return apply


def replace(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda directory: [(directory / name).write_bytes(data), None][1]


def truncate(name: str, count: int) -> Callable[[Path], None]:
    return lambda directory: os.truncate(
        directory / name, (directory / name).stat().st_size - count
    )


def link_out(name: str) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        outside = directory.parent / "outside"
        (directory / name).rename(outside)
        (directory / name).symlink_to(outside)

    return apply


def pipe(name: str) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        (directory / name).unlink()
        os.mkfifo(directory / name)

    return apply


def loop(name: str) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        (directory / name).unlink()
        (directory / name).symlink_to(name)

    return apply


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda d: (d / CONFIG).unlink(), "has no config.json"),
        (replace(CONFIG, b"{"), "config.json is not sound JSON"),
        (replace(CONFIG, b"[]"), "not a JSON object"),
        (replace(CONFIG, b'{"a":1,"a":1}'), "'a' stands twice"),
        (replace(CONFIG, b'{"a":' * 90_000), "nested too deeply"),
        (replace(CONFIG, b" " * (33 << 20)), "expected at most"),
        (link_out(CONFIG), "outside the checkpoint"),
        (pipe(CONFIG), "not a regular file"),
        (loop(CONFIG), "leads to itself"),
        (lambda d: (d / "a.safetensors").unlink(), "names a.safetensors, which is not there"),
        (truncate("a.safetensors", 1), "take 8 bytes, the file holds 7"),
        (truncate("a.safetensors", 60), "announces a header"),
        (replace("a.safetensors", b""), "only 0 bytes"),
        (replace("a.safetensors", b"PK\3\4 some zip file"), "the format allows"),
        (link_out("a.safetensors"), "outside the checkpoint"),
        (pipe("a.safetensors"), "not a regular file"),
        (replace(INDEX, b'{"weight_map":{"a":"b","a":"b"}}'), "'a' stands twice"),
        (replace(INDEX, b"{}"), "no weight_map"),
        (replace(INDEX, b'{"weight_map":{}}'), "no weight_map"),
        (replace(INDEX, b'{"weight_map":[]}'), "expected '{'"),
        (replace(INDEX, b'{"weight_map":{"a":"b"},"weight_map":{}}'), "'weight_map' stands twice"),
        (replace(INDEX, b'{"metadata":{"a":1,"a":2},"weight_map":{}}'), "'a' stands twice"),
        (replace(INDEX, b'{"metadata":NaN,"weight_map":{}}'), "NaN"),
        (replace(INDEX, b'{"metadata":' + b"[" * 9000), "nested too deeply"),
        (replace(INDEX, b'{"weight_map":{"\\ud800":"b"}}'), "surrogates"),
        (replace(INDEX, b'{"weight_map":{"a":"b"}} {}'), "unexpected '{' behind its end"),
        (replace(INDEX, b"\xff"), "can't decode"),
        (change_index(lambda p: p.update(x="a.safetensors")), "'x' in a.safetensors, it lies in"),
        (change_index(lambda p: p.pop("embed.weight")), "'embed.weight' in no file"),
        (
            change_index(lambda p: p.update({"embed.weight": "a.safetensors"})),
            "'embed.weight' in a.safetensors, it lies in b.safetensors",
        ),
        *(
            (change_index(lambda p, bad=bad: p.update({"layer.1.weight": bad})), "not a file in")
            for bad in ["../m/a.safetensors", "/a", "", ".", "x/../a", "a\\b", "a\0"]
        ),
        *(
            (change_index(lambda p, bad=bad: p.update({"embed.weight": bad})), "expected a string")
            for bad in [1, None, ["a"]]
        ),
    ],
)
def test_damage_is_refused(tmp_path: Path, damage: Callable[[Path], None], problem: str) -> None:
    directory = save(tmp_path / "m", sharded=True)
    damage(directory)
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(directory)
    assert problem in str(error.value)
    assert error.value.hint
    assert str(directory) in error.value.message


def test_the_same_tensor_in_two_shards(tmp_path: Path) -> None:
    save(tmp_path, sharded=True)
    twice = {name: TENSORS[name] for name in ["embed.weight", "layer.1.weight"]}
    safetensors.numpy.save_file(twice, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match=r"'embed.weight' twice, in a.safetensors and b"):
        open_checkpoint(tmp_path)


def test_a_carried_file_that_leads_out(tmp_path: Path) -> None:
    directory = save(tmp_path / "m")
    (tmp_path / "secret").write_text("key")
    (directory / "vocab.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match=r"vocab.txt is a symbolic link"):
        open_checkpoint(directory)


def test_links_inside_the_directory_are_fine(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / SINGLE).rename(tmp_path / "weights.blob")
    (tmp_path / SINGLE).symlink_to("weights.blob")
    assert open_checkpoint(tmp_path).tensors.keys() == TENSORS.keys()


@pytest.mark.parametrize("blobs", ["models--o--n/blobs", "blobs"])
def test_links_of_the_hubs_cache_are_fine(tmp_path: Path, blobs: str) -> None:
    snapshot = save(tmp_path / "models--o--n" / "snapshots" / "0123abc")
    (tmp_path / blobs).mkdir(parents=True)
    for name in (CONFIG, SINGLE):
        blob = tmp_path / blobs / f"blob-{name}"
        (snapshot / name).rename(blob)
        (snapshot / name).symlink_to(os.path.relpath(blob, snapshot))
    assert open_checkpoint(snapshot).tensors.keys() == TENSORS.keys()


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (["model.fp16.safetensors", "tf_model.h5"], "only model.fp16.safetensors, tf_model.h5"),
        ([], "neither model.safetensors nor"),
    ],
)
def test_no_safetensors(tmp_path: Path, files: list[str], problem: str) -> None:
    (tmp_path / CONFIG).write_text("{}")
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=problem) as error:
        open_checkpoint(tmp_path)
    assert "save_pretrained" in str(error.value.hint)


def test_an_adapter_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(tmp_path)
    assert "merge_and_unload" in str(error.value.hint)


@pytest.mark.parametrize("location", ["./nowhere", "/nowhere", "a/b/c", "", "o/--x", "a..b", "~/x"])
def test_what_is_neither_a_directory_nor_a_hub_id(location: str) -> None:
    with pytest.raises(CheckpointError, match="no directory"):
        open_checkpoint(location)


def test_a_file_is_not_a_directory(tmp_path: Path) -> None:
    save(tmp_path)
    with pytest.raises(CheckpointError, match="is a file"):
        open_checkpoint(tmp_path / SINGLE)


def test_a_directory_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no revision 'main'"):
        open_checkpoint(save(tmp_path), revision="main")


def test_reading_imports_nothing_heavy(tmp_path: Path) -> None:
    save(tmp_path, sharded=True)
    code = (
        "import sys; from restack.anatomy.checkpoint import open_checkpoint;"
        "from restack.anatomy.fingerprint import fingerprint;"
        f"fingerprint(open_checkpoint({str(tmp_path)!r}));"
        "heavy = {'torch', 'transformers', 'numpy', 'huggingface_hub', 'safetensors'};"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_real_checkpoints(shared: Path) -> None:
    for directory in sorted((shared / "models").iterdir()):
        if directory.is_dir():
            found = open_checkpoint(directory)
            with safetensors.safe_open(directory / SINGLE, framework="np") as file:
                assert set(file.keys()) == found.tensors.keys()
