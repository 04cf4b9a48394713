"""The canary for the semi-internal name conversion of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import safe_open

from restack.anatomy.conversion import names_on_disk
from tests.families import FAMILIES


@pytest.mark.parametrize("name", ["bert", "vit", "mixtral", "qwen3_moe", "gemma3", "llama-tied"])
def test_names_are_those_that_save_pretrained_writes(name: str, tmp_path: Path) -> None:
    model = FAMILIES[name].build()
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        written = set(file.keys())
    state = model.state_dict()
    tied = set(model.all_tied_weights_keys)
    assert names_on_disk(model, {k: v for k, v in state.items() if k not in tied}) == written
