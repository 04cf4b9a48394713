"""Quantised checkpoints: side tensors and module names travel with their layer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from restack import Options, edit, verify
from restack.errors import RestackError, StackError
from tests.families import FAMILIES

State = dict[str, torch.Tensor]


def gptq(name: str, weight: torch.Tensor) -> State:
    rows, columns = weight.shape
    return {
        f"{name}.qweight": torch.full((columns // 8, rows), 7, dtype=torch.int32),
        f"{name}.qzeros": torch.zeros(1, max(rows // 8, 1), dtype=torch.int32),
        f"{name}.scales": weight[:, :1].t().half(),
        f"{name}.g_idx": torch.arange(columns, dtype=torch.int32),
    }


def fp8(name: str, weight: torch.Tensor) -> State:
    return {
        f"{name}.weight": weight.to(torch.float8_e4m3fn),
        f"{name}.weight_scale_inv": weight[:1, :1].clone(),
    }


def nf4(name: str, weight: torch.Tensor) -> State:
    return {
        f"{name}.weight": torch.full((weight.numel() // 2, 1), 0x77, dtype=torch.uint8),
        f"{name}.weight.absmax": weight[:, 0].contiguous(),
        f"{name}.weight.quant_map": torch.linspace(-1, 1, 16),
        f"{name}.weight.quant_state.bitsandbytes__nf4": torch.zeros(9, dtype=torch.uint8),
    }


def int8(name: str, weight: torch.Tensor) -> State:
    return {f"{name}.weight": weight.to(torch.int8), f"{name}.SCB": weight[:, 0].contiguous()}


SKIPPED = ["lm_head", "model.layers.3.mlp.up_proj"]
METHODS: dict[str, tuple[Callable[[str, torch.Tensor], State], dict[str, Any]]] = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "modules_in_block_to_quantize": [["x"]]}),
    "awq": (gptq, {"quant_method": "awq", "bits": 4, "modules_to_not_convert": SKIPPED}),
    "fp8": (fp8, {"quant_method": "fp8", "modules_to_not_convert": SKIPPED}),
    "nf4": (nf4, {"quant_method": "bitsandbytes", "llm_int8_skip_modules": SKIPPED}),
    "int8": (int8, {"quant_method": "bitsandbytes", "llm_int8_skip_modules": SKIPPED}),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("quantised") / "plain"
    FAMILIES["llama"].build().save_pretrained(where)
    return where


def quantised(plain: Path, where: Path, method: str, **more: Any) -> State:
    """Pack the projections of a tiny Llama; those named in SKIPPED stay as they are."""
    pack, config = METHODS[method]
    where.mkdir()
    told = json.loads((plain / "config.json").read_text())
    told["quantization_config"] = {**config, **more}
    (where / "config.json").write_text(json.dumps(told))
    state: State = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        module = name.removesuffix(".weight")
        packed = module.endswith("_proj") and module not in SKIPPED
        state |= pack(module, tensor) if packed else {name: tensor}
    save_file(
        {k: v.contiguous() for k, v in state.items()}, where / "model.safetensors", {"format": "pt"}
    )
    return state


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("method", list(METHODS))
def test_side_tensors_travel_with_their_layer(method: str, plain: Path, tmp_path: Path) -> None:
    before = quantised(plain, tmp_path / "in", method)
    sources = [3, 0, 0, 4]
    edit(tmp_path / "in", "3,0x2,4", tmp_path / "out")
    after = load_file(tmp_path / "out" / "model.safetensors")
    expected = {n: t for n, t in before.items() if ".layers." not in n}
    for slot, source in enumerate(sources):
        start = f"model.layers.{source}."
        of_layer = {n: t for n, t in before.items() if n.startswith(start)}
        expected |= {n.replace(start, f"model.layers.{slot}."): t for n, t in of_layer.items()}
    assert after.keys() == expected.keys()
    assert all(raw(after[name]) == raw(tensor) for name, tensor in expected.items())
    report = verify(tmp_path / "out", tmp_path / "in")
    assert report.ok, report.differences
    told = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    named = told.get("modules_to_not_convert") or told.get("llm_int8_skip_modules")
    assert named in (None, ["lm_head", "model.layers.0.mlp.up_proj"])


@pytest.mark.parametrize("method", list(METHODS))
def test_fresh_layers_are_refused(method: str, plain: Path, tmp_path: Path) -> None:
    quantised(plain, tmp_path / "in", method)
    with pytest.raises(StackError, match="fresh weights can be made as"):
        edit(tmp_path / "in", "0-3,4@fresh", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("method", list(METHODS))
def test_no_op_copies_are_zeros_or_refused(method: str, plain: Path, tmp_path: Path) -> None:
    """Packed weights have other names or no zeros: a copy would pass for a no-op and not be one."""
    quantised(plain, tmp_path / "in", method)
    if method != "fp8":
        with pytest.raises(StackError, match="packed by a quantiser"):
            edit(tmp_path / "in", "0-1,1@noop,2-4", tmp_path / "out")
        return
    edit(tmp_path / "in", "0-1,1@noop,2-4", tmp_path / "out")
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert not any(raw(after["model.layers.2.self_attn.o_proj.weight"]))
    assert not any(raw(after["model.layers.2.mlp.down_proj.weight"]))
    assert any(raw(after["model.layers.2.self_attn.q_proj.weight"]))


@pytest.mark.parametrize(
    "more",
    [
        {"dynamic": {r"-:model\.layers\.3\..*": {}}},
        {"ignore": ["lm_head", r"re:.*layers\.(0|1)\.mlp.*"]},
        {"modules_to_not_convert": [r"^model\.layers\.0\."]},
    ],
)
def test_patterns_with_layer_numbers_are_refused(
    more: dict[str, Any], plain: Path, tmp_path: Path
) -> None:
    quantised(plain, tmp_path / "in", "gptq", **more)
    with pytest.raises(StackError, match="names layers by the pattern"):
        edit(tmp_path / "in", "1-4", tmp_path / "out")
    edit(tmp_path / "in", "0-4", tmp_path / "same")  # nothing moves: nothing is to be rewritten


def test_patterns_without_layer_numbers_stay(plain: Path, tmp_path: Path) -> None:
    patterns = ["re:.*mlp.*", r"re:.*\.w1$", "re:.*fc[a-z]{1,3}$"]
    quantised(plain, tmp_path / "in", "gptq", ignore=patterns)
    edit(tmp_path / "in", "1-4", tmp_path / "out")
    told = json.loads((tmp_path / "out" / "config.json").read_text())
    assert told["quantization_config"]["ignore"] == patterns


def test_another_dtype_is_refused(plain: Path, tmp_path: Path) -> None:
    quantised(plain, tmp_path / "in", "gptq")
    with pytest.raises(RestackError, match="quantised"):
        edit(tmp_path / "in", "0-3", tmp_path / "out", Options(dtype="float32"))
