"""`restack plan`, `show`, `edit` and `verify`: what they print, how they end, what they refuse."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from restack.anatomy.checkpoint import open_checkpoint
from tests.cli.conftest import Command

Models = dict[str, Path]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def refused(command: Command, *arguments: object, says: str, out: Path | None = None) -> str:
    """Run what must end with 2 and a message, and with nothing on standard output or on disk."""
    before = names(out.parent) if out else []
    ran = command(*arguments)
    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert says in ran.err
    assert "Traceback" not in ran.err
    if out:
        assert names(out.parent) == before
    return ran.err


def test_plan_is_drawn(command: Command) -> None:
    ran = command("plan", 12, "drop:symmetric=6")
    assert ran.code == 0
    assert ran.out.splitlines()[0] == "12 -> 6 layers  0-2,9-11"
    assert not ran.err


def test_plan_as_json_and_as_mergekit(command: Command) -> None:
    found = command("plan", 4, "0,3@fresh2,1@noop", "--json").json
    assert found["plan"] == "0,3@fresh2,1@noop"
    assert found["slots"][1] == {"source": 3, "mark": "fresh", "draw": 2}
    assert found["gone"] == [2]
    yaml = command("plan", 12, "0-3,2-5", "--mergekit", "owner/name").out
    assert "layer_range" in yaml
    assert "owner/name" in yaml


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("", "the plan is empty"),
        ("0-12", "the layers are 0..11"),
        ("drop:top=12", "a stack needs at least one layer"),
        ("0-5,,6", "0-5,,6\n      ^"),
        ("drop:topp=6", "did you mean 'top'?"),
        ("nothing", "unknown verb"),
        ("drop:above=0.9", "needs scores"),
    ],
)
def test_plans_that_cannot_be(
    command: Command, models: Models, tmp_path: Path, plan: str, says: str
) -> None:
    refused(command, "plan", 12, plan, says=says)
    out = tmp_path / "out"
    message = refused(command, "edit", models["bert"], plan, "-o", out, says="", out=out)
    assert ("cannot read the plan" if plan else "the plan is empty") in message


def test_show_tells_where_the_layers_are(command: Command, models: Models) -> None:
    ran = command("show", models["bert"])
    assert ran.code == 0
    for piece in ("bert.encoder.layer", "layers 0..4", "num_hidden_layers", "all layers alike"):
        assert piece in ran.out
    assert "cls.predictions.decoder.weight = bert.embeddings.word_embeddings.weight" in ran.out
    found = command("show", models["llama"], "--json").json
    (stack,) = found["stacks"]
    assert (stack["path"], stack["depth"]) == ("model.layers", 5)
    assert stack["key_pattern"] == "model.layers.{layer}."
    assert stack["interchangeable"]
    assert stack["verified"]
    assert found["tied"] == {}
    per_layer = sum(stack["parameters"])
    assert 0 < per_layer < found["parameters"] == found["bytes"] // 4


def test_edit_then_verify(command: Command, models: Models, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    ran = command("edit", models["bert"], "drop:top=2", "-o", out)
    assert ran.code == 0
    assert ran.out.startswith("5 -> 3 layers  0-2\n")
    assert f"written to {out}" in ran.out.splitlines()[-1]
    assert not ran.err
    ran = command("verify", out, "--against", models["bert"], "--load")
    assert ran.code == 0
    assert all(line.startswith("ok ") for line in ran.out.splitlines())
    assert "bit for bit" in ran.out
    assert len(AutoModel.from_pretrained(out).encoder.layer) == 3
    assert AutoTokenizer.from_pretrained(out).vocab_size > 10


def test_json_is_all_there_is_on_stdout(command: Command, models: Models, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = command("edit", models["llama"], "0,4@fresh", "-o", out, "--seed", 7, "--json").json
    assert (made["plan"], made["depth_before"], made["depth"]) == ("0,4@fresh", 5, 2)
    assert made["written"]
    assert made["record"]["seed"] == 7
    assert made["bytes"] == sum(t.nbytes for t in open_checkpoint(out).tensors.values())
    report = command("verify", out, "--against", models["llama"], "--json").json
    assert report["ok"]
    assert report["differences"] == []


def test_dry_run_writes_nothing(command: Command, models: Models, tmp_path: Path) -> None:
    ran = command("edit", models["bert"], "0", "-o", tmp_path / "out", "--dry-run")
    assert "would be written" in ran.out
    found = command("edit", models["bert"], "0", "-o", tmp_path / "out", "--dry-run", "--json").json
    assert not found["written"]
    assert names(tmp_path) == []


def test_verify_ends_with_1(command: Command, models: Models, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command("edit", models["bert"], "0-3", "-o", out)
    file = out / "model.safetensors"
    state = load_file(file)
    state["bert.encoder.layer.2.output.dense.bias"] += 1
    save_file(state, file, metadata={"format": "pt"})
    ran = command("verify", out)
    assert ran.code == 1
    assert "differs  the weights were changed since restack.json was written" in ran.out
    report = command("verify", out, "--against", models["bert"], "--json")
    assert report.code == 1
    assert not report.json["ok"]
    assert (
        "the values of `bert.encoder.layer.2.output.dense.bias` differ"
        in (report.json["differences"])
    )
    other = command("verify", out, "--against", models["short"])
    assert other.code == 1
    assert "is not the source that restack.json tells of" in other.out
    file.write_bytes(file.read_bytes()[:-3])
    assert command("verify", out).code == 1


def test_hashes_prove_every_byte(command: Command, models: Models, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command("edit", models["bert"], "0x2,4", "-o", out, "--hash")
    record = json.loads((out / "restack.json").read_text())
    assert record["tensor_hashes"].keys() == open_checkpoint(models["bert"]).tensors.keys()
    assert record["output"]["tensor_hashes"].keys() == open_checkpoint(out).tensors.keys()
    assert "every byte is unchanged" in command("verify", out).out
    place = open_checkpoint(out).tensors["bert.embeddings.word_embeddings.weight"]
    with open(out / place.shard, "r+b") as file:
        file.seek((place.start + place.end) // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))
    ran = command("verify", out)
    assert ran.code == 1
    assert "the values of `bert.embeddings.word_embeddings.weight` are not those" in ran.out


def test_shards_and_dtype(command: Command, models: Models, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--shard-size", "20kB", "--dtype", "bfloat16")
    assert command("edit", models["bert"], "0-4x2", "-o", out, *options).code == 0
    assert len(list(out.glob("model-*.safetensors"))) > 1
    assert AutoModel.from_pretrained(out).dtype == torch.bfloat16
    assert command("verify", out, "--against", models["bert"]).code == 0
    again = tmp_path / "again"  # from shards into one file
    assert command("edit", out, "drop:top=5", "-o", again).code == 0
    assert names(again).count("model.safetensors") == 1
    assert json.loads((again / "restack.json").read_text())["source_record"]["plan"] == "0-4x2"


def test_force_replaces_checkpoints_only(command: Command, models: Models, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert command("edit", models["bert"], "0", "-o", out).code == 0
    refused(command, "edit", models["bert"], "0-1", "-o", out, says="--force", out=out)
    assert command("edit", models["bert"], "0-1", "-o", out, "--force").code == 0
    assert open_checkpoint(out).config["num_hidden_layers"] == 2
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").touch()
    where = ("edit", models["bert"], "0", "-o", mine, "--force")
    refused(command, *where, says="does not look like a checkpoint", out=mine)
    assert names(mine) == ["thesis.txt"]


def test_outputs_that_cannot_be(command: Command, models: Models, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(models["bert"], source)
    before = names(source)
    inside = source / "out"
    refused(command, "edit", source, "0", "-o", inside, says="lies in the input", out=inside)
    refused(command, "edit", source, "0", "-o", source, says="is the input itself", out=source)
    refused(command, "edit", source, "0", "-o", tmp_path, says="contains the input")
    refused(command, "edit", source, "0", "-o", "/dev/null", says="not a directory")
    refused(command, "edit", source, "0", "-o", "/proc/out", says="Nothing was written")
    assert names(source) == before
    assert command("edit", source, "0").code == 2  # typer's own words: no -o


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--shard-size", "0"), "is a size of nothing"),
        (("--shard-size", "many"), "is not a size"),
        (("--dtype", "int8"), "no dtype is called"),
        (("--init", "best"), "choose one of family, standard, paper"),
        (("--past-end", "perhaps"), "say keep or drop"),
        (("--stack", "decoder"), "no stack fits `decoder`"),
        (("--revision", "main"), "has no revision"),
    ],
)
def test_options_that_cannot_be(
    command: Command, models: Models, tmp_path: Path, options: tuple[str, str], says: str
) -> None:
    out = tmp_path / "out"
    refused(command, "edit", models["bert"], "0-3", "-o", out, *options, says=says, out=out)


def change_config(**fields: Any) -> Callable[[Path], None]:
    def change(where: Path) -> None:
        config = json.loads((where / "config.json").read_text())
        (where / "config.json").write_text(json.dumps({**config, **fields}))

    return change


def put(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda where: [(where / name).write_bytes(data), None][1]


def truncate(where: Path) -> None:
    os.truncate(where / "model.safetensors", (where / "model.safetensors").stat().st_size - 4)


def header(text: bytes, buffer: int = 8) -> Callable[[Path], None]:
    raw = len(text).to_bytes(8, "little") + text + bytes(buffer)
    return put("model.safetensors", raw)


def index(places: dict[str, str]) -> Callable[[Path], None]:
    def change(where: Path) -> None:
        (where / "model.safetensors").rename(where / "model-1.safetensors")
        text = json.dumps({"weight_map": places})
        (where / "model.safetensors.index.json").write_text(text)

    return change


def link_out(where: Path) -> None:
    (where / "model.safetensors").rename(where.parent / "elsewhere")
    (where / "model.safetensors").symlink_to(where.parent / "elsewhere")


_ONE = b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (lambda where: (where / "config.json").unlink(), "has no config.json"),
    "config not JSON": (put("config.json", b"{'a': 1}"), "is not sound JSON"),
    "config a list": (put("config.json", b"[]"), "not a JSON object"),
    "duplicate key": (put("config.json", b'{"a": 1, "a": 2}'), "stands twice"),
    "depth no number": (change_config(num_hidden_layers="five"), "not a number of layers"),
    "depth too large": (change_config(num_hidden_layers=6), "no tensor is named"),
    "unknown type": (change_config(model_type="no-such"), "--stack"),
    "no weights": (lambda where: (where / "model.safetensors").unlink(), "has neither"),
    "weights empty": (put("model.safetensors", b""), "is not a safetensors file"),
    "truncated": (truncate, "its tensors take"),
    "header oversized": (put("model.safetensors", b"\xff" * 20), "the format allows"),
    "overlap": (
        header(b"{" + _ONE + b',"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}'),
        "overlaps the tensor before it",
    ),
    "hole": (
        header(b"{" + _ONE + b',"b":{"dtype":"F32","shape":[1],"data_offsets":[5,9]}}', 9),
        "leaves a hole",
    ),
    "tensor twice": (header(b"{" + _ONE + b"," + _ONE + b"}", 4), "stands twice"),
    "shape and offsets": (
        header(b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}'),
        "takes 12 bytes",
    ),
    "missing shard": (index({"a": "model-2.safetensors"}), "which is not there"),
    "path upwards": (index({"a": "../x.safetensors"}), "not a file in the checkpoint"),
    "absolute path": (index({"a": "/etc/passwd"}), "not a file in the checkpoint"),
    "link outside": (link_out, "outside the checkpoint"),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_damaged_checkpoints(command: Command, models: Models, tmp_path: Path, damage: str) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(models["bert"], source)
    change, says = DAMAGE[damage]
    change(source)
    refused(command, "edit", source, "0-1", "-o", out, says=says, out=out)
    refused(command, "show", source, says=says)
    assert command("verify", source).code == 1  # to verify, damage is what it looks for


def test_places_that_are_no_models(command: Command, models: Models, tmp_path: Path) -> None:
    for command_line in (("show",), ("verify",)):
        refused(command, *command_line, tmp_path / "nowhere", says="There is no directory")
        refused(command, *command_line, models["bert"] / "config.json", says="is a file")
    refused(command, "show", "owner/name", says="the Hub is out of reach")
    refused(command, "verify", models["bert"], "--against", models["bert"], says="no restack.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission(command: Command, models: Models, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    out = locked / "out"
    refused(command, "edit", models["bert"], "0", "-o", out, says="Permission denied", out=out)


def test_a_full_disk(command: Command, models: Models, tmp_path: Path) -> None:
    """A limit on file sizes stands in for the end of the disk: the same error from `write`."""
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30000, 30000));"
        "from restack.cli import main; main()"
    )
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", code, "edit", models["bert"], "0-4", "-o", out],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Nothing was written" in done.stderr
    assert "Traceback" not in done.stderr
    assert names(tmp_path) == []


def test_a_stack_that_only_the_user_knows(command: Command, models: Models, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(models["bert"], source)
    change_config(model_type="no-such")(source)
    assert "bert.encoder.layer (5)" in refused(command, "show", source, says="no-such")
    shown = command("show", source, "--stack", "bert.encoder.layer")
    assert "layers 0..4" in shown.out
    options = ("--stack", "bert.encoder.layer")
    assert command("edit", source, "0,4", "-o", out, *options).code == 0
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 2
    assert command("verify", out, "--against", source).code == 0
    refused(command, "show", source, "--stack", "bert.pooler", says="numbered modules in it")


def test_interrupted_runs_are_cleaned_up(command: Command, models: Models, tmp_path: Path) -> None:
    left = tmp_path / ".out.restack-1-0123abcd"
    shutil.copytree(models["bert"], left)  # what a killed run leaves
    assert command("edit", models["bert"], "0", "-o", tmp_path / "out").code == 0
    assert names(tmp_path) == ["out"]


def test_completion_is_there(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_RESTACK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "restack ver")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert command().out.split() == ["verify"]
