"""Disk equals memory on real pretrained weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM

from restack import Options, edit, restack, verify

MODELS = {
    "bge-small-en-12L-384": AutoModel,
    "rxnfp-bert-12L-256": AutoModelForMaskedLM,
    "rxnmapper-albert-12L-256": AutoModelForMaskedLM,
}
PLANS = ["0-11", "drop:top=6", "drop:bottom=2", "drop:symmetric=4", "0-11x2", "swap:3,7",
         "permute:seed=1", "repeat:50", "reinit:after=9"]  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", list(MODELS))
def test_disk_equals_memory(shared: Path, tmp_path: Path, name: str, plan: str) -> None:
    if "albert" in name and plan.startswith("reinit"):
        pytest.skip("ALBERT's layers share their weights")
    source = shared / "models" / name
    edit(source, plan, tmp_path / "out", Options(seed=3))
    assert verify(tmp_path / "out", source).ok
    load = MODELS[name].from_pretrained
    on_disk, info = load(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"] - {"pooler.dense.weight", "pooler.dense.bias"}
    in_memory = restack(load(source), plan, seed=3)
    theirs = in_memory.state_dict()
    for key, tensor in on_disk.state_dict().items():
        assert torch.equal(tensor, theirs[key]), key
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        ours, other = (model.eval()(input_ids=ids)[0] for model in (on_disk, in_memory))
    assert torch.equal(ours, other)
