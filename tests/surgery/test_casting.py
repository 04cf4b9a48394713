"""Changing the dtype while a checkpoint is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from restack import Options, edit, verify
from restack.errors import CheckpointError
from restack.surgery.casting import config_as
from tests.families import FAMILIES

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
DTYPES = {**DTYPES, "float64": torch.float64}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    where = tmp_path_factory.mktemp("cast")
    for name, dtype in DTYPES.items():
        FAMILIES["llama"].build().to(dtype).save_pretrained(where / name)
    return {name: where / name for name in DTYPES}


@pytest.mark.parametrize("wanted", list(DTYPES))
@pytest.mark.parametrize("given", list(DTYPES))
def test_numbers_are_rounded_as_torch_rounds(
    given: str, wanted: str, models: dict[str, Path], tmp_path: Path
) -> None:
    edit(models[given], "0,4@fresh,0@noop", tmp_path / "out", Options(dtype=wanted))
    made = load_file(tmp_path / "out" / "model.safetensors")
    source = load_file(models[given] / "model.safetensors")
    assert {tensor.dtype for tensor in made.values()} == {DTYPES[wanted]}
    for name in ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"):
        assert torch.equal(made[name], source[name].to(DTYPES[wanted]))
    assert not made["model.layers.2.mlp.down_proj.weight"].any()
    assert verify(tmp_path / "out", models[given]).ok


def test_integers_stay(models: dict[str, Path], tmp_path: Path) -> None:
    state = load_file(models["float32"] / "model.safetensors")
    (tmp_path / "in").mkdir()
    config = (models["float32"] / "config.json").read_bytes()
    (tmp_path / "in" / "config.json").write_bytes(config)
    state["model.layers.1.ids"] = torch.arange(3)
    save_file(state, tmp_path / "in" / "model.safetensors", {"format": "pt"})
    edit(tmp_path / "in", "1", tmp_path / "out", Options(dtype="float16"))
    made = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(made["model.layers.0.ids"], torch.arange(3))


def test_what_float16_cannot_hold_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    model = FAMILIES["llama"].build()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = 70000.0
    model.save_pretrained(tmp_path / "in")
    with pytest.raises(CheckpointError, match="does not fit float16"):
        edit(tmp_path / "in", "0-4", tmp_path / "out", Options(dtype="float16"))
    assert not (tmp_path / "out").exists()
    edit(tmp_path / "in", "0,2-4", tmp_path / "out", Options(dtype="float16"))  # it is not there


def test_configs_say_the_dtype_in_every_section() -> None:
    config = {"dtype": "float32", "text_config": {"dtype": "float32"}, "vision_config": {}}
    new = config_as(config, "bfloat16")
    assert (new["dtype"], new["text_config"]["dtype"]) == ("bfloat16", "bfloat16")
    assert new["vision_config"] == {}
    assert config["dtype"] == "float32"
    assert config_as({"torch_dtype": "float32"}, "float16") == {"torch_dtype": "float16"}
