"""A checkpoint re-stacked on disk equals the model re-stacked in memory, bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import PreTrainedModel

from restack import Options, edit, restack, verify
from restack.anatomy.checkpoint import open_checkpoint
from restack.anatomy.checkpoints import anatomy
from restack.errors import RestackError, StackError
from restack.plan import Plan
from tests.families import FAMILIES, LLAMA, Family
from tests.surgery.test_memory import CASES, logits, plans, reason

# Families whose checkpoints name or pack the tensors of a layer otherwise than the model.
RENAMED = ["vit", "dinov2", "mixtral", "qwen3_moe", "deepseek_v3"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


def save(name: str, saved: dict[str, Path], tmp: Path) -> Path:
    if name not in saved:
        where = tmp.parent / f"source-{name}"
        FAMILIES[name].build().save_pretrained(where)
        saved[name] = where
    return saved[name]


def load(cls: str, where: Path) -> PreTrainedModel:
    model, info = getattr(transformers, cls).from_pretrained(
        where, output_loading_info=True, dtype=torch.float32
    )
    assert not info["missing_keys"], info["missing_keys"]
    assert not info["unexpected_keys"], info["unexpected_keys"]
    assert not info["mismatched_keys"], info["mismatched_keys"]
    return model.eval()


def same_config(model: PreTrainedModel) -> dict:
    return {k: v for k, v in model.config.to_dict().items() if k != "_name_or_path"}


def path_on_disk(where: Path, stack: str) -> str:
    found = anatomy(open_checkpoint(where))
    if len(found.stacks) == 1:
        return found.stacks[0].path
    tail = ".".join(stack.split(".")[-3:])
    exact = [s.path for s in found.stacks if s.path == stack or s.facts.path == stack]
    return (exact or [s.path for s in found.stacks if tail.endswith(s.facts.path)])[0]


@pytest.mark.parametrize("kind", list(plans(5)))
@pytest.mark.parametrize(("name", "stack"), CASES)
def test_disk_equals_memory(
    name: str, stack: str, kind: str, saved: dict[str, Path], tmp_path: Path
) -> None:
    family = FAMILIES[name]
    where = save(name, saved, tmp_path)
    stored = path_on_disk(where, stack)
    out = tmp_path / "out"
    depth = anatomy(open_checkpoint(where)).pick(stored).depth
    plan = Plan.parse(plans(depth)[kind], depth)
    options = Options(stack=stored, seed=5)
    why = reason(name, kind)
    if why:
        with pytest.raises(StackError, match=why):
            edit(where, plan, out, options)
        assert not out.exists()
        return
    edit(where, plan, out, options)
    report = verify(out, where)
    assert report.ok, report.differences

    on_disk = load(family.cls, out)
    in_memory = restack(load(family.cls, where), plan, stack=stack, seed=5)
    ours, theirs = on_disk.state_dict(), in_memory.state_dict()
    assert ours.keys() == theirs.keys()
    for key, tensor in ours.items():
        assert torch.equal(tensor, theirs[key]), key
    assert same_config(on_disk) == same_config(in_memory)
    assert torch.equal(logits(on_disk, family), logits(in_memory, family))

    on_disk.save_pretrained(tmp_path / "again")
    again = load(family.cls, tmp_path / "again").state_dict()
    assert all(torch.equal(tensor, again[key]) for key, tensor in ours.items())


def test_load_check_agrees(tmp_path: Path) -> None:
    FAMILIES["llama"].build().save_pretrained(tmp_path / "in")
    edit(tmp_path / "in", "drop:top=2", tmp_path / "out")
    assert verify(tmp_path / "out", load=True).ok
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    config["intermediate_size"] = 32
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    report = verify(tmp_path / "out", load=True)
    assert any("mlp.down_proj.weight" in line for line in report.differences)
    assert any("config.json was changed" in line for line in report.differences)


def test_verify_finds_a_changed_byte(tmp_path: Path) -> None:
    FAMILIES["bert"].build().save_pretrained(tmp_path / "in")
    edit(tmp_path / "in", "0-3", tmp_path / "out")
    file = tmp_path / "out" / "model.safetensors"
    data = bytearray(file.read_bytes())
    tensor = open_checkpoint(tmp_path / "out").tensors["bert.encoder.layer.2.output.dense.weight"]
    data[tensor.start + 7] ^= 1
    file.write_bytes(data)
    report = verify(tmp_path / "out", tmp_path / "in")
    assert "the values of `bert.encoder.layer.2.output.dense.weight` differ" in report.differences
    assert not verify(tmp_path / "out").ok  # the samples in restack.json show it without the source


def test_verify_finds_a_truncated_file(tmp_path: Path) -> None:
    FAMILIES["bert"].build().save_pretrained(tmp_path / "in")
    edit(tmp_path / "in", "0-3", tmp_path / "out")
    file = tmp_path / "out" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    assert not verify(tmp_path / "out").ok


def test_verify_finds_a_missing_layer_tensor(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    FAMILIES["bert"].build().save_pretrained(tmp_path / "in")
    state = load_file(tmp_path / "in" / "model.safetensors")
    del state["bert.encoder.layer.2.output.dense.bias"]
    save_file(state, tmp_path / "in" / "model.safetensors", metadata={"format": "pt"})
    report = verify(tmp_path / "in")
    assert report.differences == ["`bert.encoder.layer.2.output.dense.bias` is missing"]


def test_verify_finds_layers_beyond_the_depth(tmp_path: Path) -> None:
    FAMILIES["llama"].build().save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"num_hidden_layers": 3}))
    (line,) = verify(tmp_path / "in").differences
    assert "`model.layers.3." in line
    assert "beyond the 3 layers" in line
    file.write_text(json.dumps(config | {"num_hidden_layers": 3, "num_nextn_predict_layers": 2}))
    assert verify(tmp_path / "in").ok


@pytest.mark.parametrize("count", [10**9, 10**30])
@pytest.mark.parametrize("model_type", ["llama", "albert", "no-such-type"])
def test_absurd_depths_are_refused_at_once(model_type: str, count: int, tmp_path: Path) -> None:
    FAMILIES["llama"].build().save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "config.json"
    config = json.loads(file.read_text()) | {"model_type": model_type, "num_hidden_layers": count}
    file.write_text(json.dumps(config))
    with pytest.raises(StackError, match=r"`num_hidden_layers` is 10+; stacks have at most"):
        edit(tmp_path / "in", "0-2", tmp_path / "out")


def test_dtype_and_shards(tmp_path: Path) -> None:
    model = FAMILIES["llama"].build()
    model.save_pretrained(tmp_path / "in")
    options = Options(dtype="bfloat16", shard_size=4000)
    edit(tmp_path / "in", "0x2,1-4", tmp_path / "out", options)
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 3
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.dtype == torch.bfloat16
    expected = restack(model, "0x2,1-4").to(torch.bfloat16).state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in loaded.state_dict().items())


@pytest.mark.parametrize("init", ["standard", "paper", "paper-keep-norms", "released", "family"])
def test_fresh_is_the_same_both_ways(init: str, tmp_path: Path) -> None:
    model = FAMILIES["gpt2"].build()
    model.save_pretrained(tmp_path / "in")
    edit(tmp_path / "in", "0-2,3@fresh,4@fresh", tmp_path / "out", Options(init=init, seed=9))
    on_disk = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out").state_dict()
    in_memory = restack(model, "0-2,3@fresh,4@fresh", init=init, seed=9).state_dict()
    assert all(torch.equal(tensor, in_memory[key]) for key, tensor in on_disk.items())
    other = restack(model, "0-2,3@fresh,4@fresh", init=init, seed=10).state_dict()
    key = "transformer.h.3.mlp.c_fc.weight"
    assert not torch.equal(in_memory[key], other[key])
    assert not torch.equal(in_memory[key], in_memory["transformer.h.4.mlp.c_fc.weight"])


@pytest.mark.parametrize("init", ["standard", "paper-keep-norms", "released"])
@pytest.mark.parametrize("name", RENAMED)
def test_named_initialisers_where_checkpoints_pack_layers(
    name: str, init: str, saved: dict[str, Path], tmp_path: Path
) -> None:
    family, where = FAMILIES[name], save(name, saved, tmp_path)
    edit(where, "0-3,4@fresh", tmp_path / "out", Options(init=init, seed=3))
    on_disk = load(family.cls, tmp_path / "out").state_dict()
    in_memory = restack(load(family.cls, where), "0-3,4@fresh", init=init, seed=3).state_dict()
    assert all(torch.equal(tensor, in_memory[key]) for key, tensor in on_disk.items())
    assert verify(tmp_path / "out", where).ok


def test_fresh_slots_of_one_draw_are_equal_and_apart() -> None:
    layers = restack(FAMILIES["llama"].build(), "0-3,4@fresh1,4@fresh1,4@fresh").model.layers
    first, twin, other = (layer.mlp.up_proj.weight for layer in layers[4:])
    assert torch.equal(first, twin)
    assert not torch.equal(first, other)
    assert first.data_ptr() != twin.data_ptr()


def test_masks_that_old_checkpoints_store_stay(tmp_path: Path) -> None:
    """The first GPT-2 checkpoints hold the causal mask of every layer, which no class has now."""
    from safetensors.torch import save_file

    model = FAMILIES["gpt2"].build()
    model.save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "model.safetensors"
    masks = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 4, 4).tril() for i in range(5)}
    save_file(load_file(file) | masks, file, metadata={"format": "pt"})
    edit(tmp_path / "in", "0-3,4@fresh", tmp_path / "out")
    made = load_file(tmp_path / "out" / "model.safetensors")
    expected = restack(model, "0-3,4@fresh").state_dict() | masks
    assert all(torch.equal(tensor, expected[name]) for name, tensor in made.items())


def test_fresh_layers_that_the_class_stores_otherwise_are_refused(tmp_path: Path) -> None:
    FAMILIES["llama"].build().save_pretrained(tmp_path / "in")
    config = json.loads((tmp_path / "in" / "config.json").read_text())
    config["intermediate_size"] *= 2
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    with pytest.raises(StackError, match="so fresh weights would not fit"):
        edit(tmp_path / "in", "0-3,4@fresh", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# What released configs of these families say besides, or instead, of the fields of today.
OTHER_SPELLINGS = [
    ("bart", "encoder.layers", {"num_hidden_layers": 5}, ()),  # wins over `encoder_layers`
    ("whisper", "encoder.layers", {"num_hidden_layers": 5}, ()),
    ("gpt2", "h", {"num_hidden_layers": 5}, ("n_layer",)),
    ("gpt_neo", "h", {"num_hidden_layers": 6}, ()),
    ("t5", "encoder.block", {}, ("num_decoder_layers",)),  # the encoder's depth stands for it
    ("t5", "decoder.block", {"num_decoder_layers": None}, ()),
]


@pytest.mark.parametrize(("name", "stack", "added", "left_out"), OTHER_SPELLINGS)
def test_depths_under_other_names(
    name: str, stack: str, added: dict, left_out: tuple[str, ...], tmp_path: Path
) -> None:
    family = FAMILIES[name]
    if name == "t5":
        family = replace(family, config={**family.config, "num_decoder_layers": 5})
    family.build().save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "config.json"
    config = {k: v for k, v in json.loads(file.read_text()).items() if k not in left_out}
    file.write_text(json.dumps(config | added))
    edit(tmp_path / "in", "drop:top=2", tmp_path / "out", Options(stack=stack))
    on_disk = load(family.cls, tmp_path / "out")
    source = load(family.cls, tmp_path / "in")
    (path,) = (path for path in family.stacks if path.endswith(stack))
    in_memory = restack(source, "drop:top=2", stack=path)
    assert same_config(on_disk) == same_config(in_memory)
    theirs = in_memory.state_dict()
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in on_disk.state_dict().items())
    assert verify(tmp_path / "out", tmp_path / "in").ok


def test_lists_that_the_class_makes_for_the_depth_at_hand(tmp_path: Path) -> None:
    """Llama 4 has experts in every n-th layer, which its config need not list."""
    config = {**LLAMA, "num_hidden_layers": 6, "interleave_moe_layer_step": 2}
    config |= {"intermediate_size_mlp": 24, "num_local_experts": 2, "layer_types": None}
    family = Family("llama4_text", "Llama4ForCausalLM", config, ("model.layers",))
    family.build().save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "config.json"
    saved = json.loads(file.read_text())
    assert saved.pop("moe_layers") == [1, 3, 5]
    file.write_text(json.dumps(saved))
    edit(tmp_path / "in", "1-5", tmp_path / "out")
    assert load(family.cls, tmp_path / "out").config.moe_layers == [0, 2, 4]


def test_extra_layers_need_a_choice(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    FAMILIES["llama"].build().save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "model.safetensors"
    state = load_file(file)
    extra = {k.replace("layers.4.", "layers.5."): v.clone() for k, v in state.items() if ".4." in k}
    save_file(state | extra, file, metadata={"format": "pt"})
    with pytest.raises(StackError, match="numbered beyond"):
        edit(tmp_path / "in", "0-2", tmp_path / "out")
    edit(tmp_path / "in", "0-2", tmp_path / "kept", Options(past_end="keep"))
    kept = open_checkpoint(tmp_path / "kept").tensors
    assert "model.layers.3.mlp.up_proj.weight" in kept
    assert "model.layers.4.mlp.up_proj.weight" not in kept
    edit(tmp_path / "in", "0-2", tmp_path / "dropped", Options(past_end="drop"))
    assert not any(".layers.3." in name for name in open_checkpoint(tmp_path / "dropped").tensors)
    assert verify(tmp_path / "kept", tmp_path / "in").ok


def test_quantised_tensors_travel(tmp_path: Path) -> None:
    """fp8 weights with their scales, and module names in the quantisation config."""
    from safetensors.torch import save_file

    FAMILIES["llama"].build().save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "model.safetensors"
    state = load_file(file)
    for name in [n for n in state if n.endswith("proj.weight") and ".0." not in n]:
        state[name] = state[name].to(torch.float8_e4m3fn)
        state[f"{name}_scale_inv"] = torch.full((1, 1), float(name.split(".")[2]))
    save_file(state, file, metadata={"format": "pt"})
    config = json.loads((tmp_path / "in" / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.up_proj"],
    }
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    edit(tmp_path / "in", "3,0,0", tmp_path / "out")
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert after["model.layers.0.mlp.up_proj.weight"].dtype == torch.float8_e4m3fn
    assert after["model.layers.0.mlp.up_proj.weight_scale_inv"].item() == 3
    assert "model.layers.1.mlp.up_proj.weight_scale_inv" not in after
    quantised = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert quantised["modules_to_not_convert"] == [
        "lm_head",
        "model.layers.1.mlp.up_proj",
        "model.layers.2.mlp.up_proj",
    ]
    with pytest.raises(StackError, match="F8_E4M3"):
        edit(tmp_path / "in", "0-3,4@fresh", tmp_path / "no")
    with pytest.raises(RestackError, match="quantised"):
        edit(tmp_path / "in", "0-3", tmp_path / "no", Options(dtype="float32"))
    assert not (tmp_path / "no").exists()


def test_old_names_of_norms(tmp_path: Path) -> None:
    """Checkpoints converted from TensorFlow call the parameters of norms gamma and beta."""
    from safetensors.torch import save_file

    model = FAMILIES["bert"].build()
    model.save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "model.safetensors"
    state = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): v
        for k, v in load_file(file).items()
    }
    save_file(state, file, metadata={"format": "pt"})
    edit(tmp_path / "in", "0-3,4@fresh", tmp_path / "out", Options(init="paper"))
    on_disk = transformers.BertForMaskedLM.from_pretrained(tmp_path / "out").state_dict()
    in_memory = restack(model, "0-3,4@fresh", init="paper").state_dict()
    assert all(torch.equal(tensor, in_memory[key]) for key, tensor in on_disk.items())
