"""Re-stacking in memory, over many architectures."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from restack.anatomy import models
from restack.errors import StackError
from restack.plan import Plan
from restack.surgery import restack
from tests.families import FAMILIES, Family, pixels

CASES = [(name, stack) for name, family in FAMILIES.items() for stack in family.stacks]
CASES.append(("gemma3", "model.vision_tower.encoder.layers"))  # its inputs here are texts


def plans(depth: int) -> dict[str, str]:
    last = depth - 1
    return {
        "identity": f"0-{last}",
        "drop last": f"0-{last - 1}",
        "drop first": f"1-{last}",
        "drop middle": f"drop:{depth // 2}",
        "duplicate": f"0-{last}x2",
        "swap": f"swap:1,{last - 1}",
        "shuffle": "permute:seed=3",
        "fresh": f"0-{last - 1},{last}@fresh",
        "no-op": f"0-1,1@noop,2-{last}",
    }


# Refusals that are true: (family, plan) -> a part of the reason that must be given.
REFUSED = {
    ("modernbert", "drop first"): "attn_norm",
    ("modernbert", "duplicate"): "attn_norm",
    ("modernbert", "shuffle"): "attn_norm",
    ("deepseek_v3", "swap"): "first_k_dense_replace",
    ("deepseek_v3", "shuffle"): "first_k_dense_replace",
    ("albert", "fresh"): "share their weights",
    ("albert", "no-op"): "share their weights",
}
POST_NORM = {"bert", "roberta", "distilbert", "xlnet", "electra", "deberta-v2", "mpnet", "bart"}


def reason(name: str, kind: str) -> str | None:
    if kind == "no-op" and name in POST_NORM:
        return "post-norm"
    return REFUSED.get((name, kind))


@pytest.fixture(scope="module")
def built() -> dict[str, nn.Module]:
    return {}


def logits(model: nn.Module, family: Family, **more: object) -> torch.Tensor:
    with torch.no_grad():
        return model(**family.inputs(), **more)[0]


def by_hand(old: nn.Module, new: nn.Module, path: str, plan: Plan, family: Family) -> torch.Tensor:
    """The outputs of the old layer objects, run in the order of the plan inside the old model.

    The layers keep what they took from their own config when they were made; what the forward pass
    reads by position comes from the new config.
    """
    model = copy.deepcopy(old)
    owner, _, leaf = path.rpartition(".")
    layers = model.get_submodule(path)
    order = nn.ModuleList(copy.deepcopy(layers[i]) for i in plan.sources)
    setattr(model.get_submodule(owner), leaf, order)
    if family.model_type == "t5":  # the table of the position bias belongs to the first place
        for i, layer in enumerate(order):
            layer.layer[0].SelfAttention.has_relative_attention_bias = i == 0
        table = layers[0].layer[0].SelfAttention.relative_attention_bias
        order[0].layer[0].SelfAttention.relative_attention_bias = table
    configs = {name: m.config for name, m in new.named_modules() if hasattr(m, "config")}
    for name, module in model.named_modules():
        if name in configs and not name.startswith(f"{path}."):
            module.config = copy.deepcopy(configs[name])
            module.config.use_cache = False  # the old layers would write to their old places
    return logits(model, family)


@pytest.mark.parametrize("kind", list(plans(5)))
@pytest.mark.parametrize(("name", "stack"), CASES)
def test_families(name: str, stack: str, kind: str, built: dict) -> None:
    family = FAMILIES[name]
    model = built.setdefault(name, family.build())
    found = models.pick(model, stack)
    plan = Plan.parse(plans(found.depth)[kind], found.depth)
    why = reason(name, kind)
    if why:
        with pytest.raises(StackError, match=why):
            restack(model, plan, stack=stack)
        return
    before = {key: value.clone() for key, value in model.state_dict().items()}
    new = restack(model, plan, stack=stack)
    assert models.pick(new, stack).depth == len(plan)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())

    out = logits(new, family)
    assert torch.isfinite(out).all()
    if kind == "identity":
        assert torch.equal(out, logits(model, family))
    elif kind == "no-op":
        torch.testing.assert_close(out, logits(model, family), atol=1e-5, rtol=1e-4)
    elif kind != "fresh" and name != "albert":
        expected = by_hand(model, new, found.path, plan, family)
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
    if family.generates and (stack, kind) != ("decoder.block", "duplicate"):
        given = {k: v[:1] for k, v in family.inputs().items() if k != "decoder_input_ids"}
        given = {k: v[:, :5] if v.dtype == torch.long else v for k, v in given.items()}
        made = [
            new.generate(**given, max_new_tokens=4, do_sample=False, use_cache=cached)
            for cached in (True, False)
        ]
        assert torch.equal(*made)


def test_a_tower_that_texts_do_not_run_through() -> None:
    model = FAMILIES["gemma3"].build()
    tower = model.model.vision_tower
    made = restack(model, "0-1,1@noop,2-4", stack="vision_tower").model.vision_tower
    ours, theirs = (each(**pixels()).last_hidden_state for each in (made, tower))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    turned = restack(model, "4-0", stack="vision_tower").model.vision_tower
    assert not torch.allclose(turned(**pixels()).last_hidden_state, theirs)


def test_t5_with_a_deeper_decoder_is_not_ours_to_mend() -> None:
    """Why T5's decoder is left out above: transformers sizes its cache by the encoder's depth."""
    family = FAMILIES["t5"]
    deep = Family("t5", family.cls, {**family.config, "num_decoder_layers": 8}, ()).build()
    ids = {k: v for k, v in family.inputs().items() if k != "decoder_input_ids"}
    with pytest.raises(IndexError):
        deep.generate(**ids, max_new_tokens=4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    model = FAMILIES["llama"].build().to(dtype)
    model.model.norm.float()  # mixed precision inside one model is kept
    new = restack(model, "0x2,1-3,4@fresh")
    assert {p.dtype for p in new.model.layers.parameters()} == {dtype}
    assert new.model.norm.weight.dtype == torch.float32


def test_meta_model() -> None:
    from restack.anatomy.live import build_meta

    model = build_meta(FAMILIES["llama"].build().config)
    new = restack(model, "0-4x2,4@fresh")
    assert len(new.layers) == 11
    assert all(p.is_meta for p in new.parameters())


def test_tied_slots_share_storage_and_others_do_not() -> None:
    model = FAMILIES["bert"].build()
    new = restack(model, "0,0,0@tied,1-4")
    first, second, tied = new.bert.encoder.layer[:3]
    weight = "attention.self.query.weight"
    assert tied.get_parameter(weight) is first.get_parameter(weight)
    assert second.get_parameter(weight).data_ptr() != first.get_parameter(weight).data_ptr()
    old = model.bert.encoder.layer[0].get_parameter(weight)
    assert old.data_ptr() != first.get_parameter(weight).data_ptr()


def test_tied_embeddings_stay_tied() -> None:
    new = restack(FAMILIES["llama-tied"].build(), "0-2")
    assert new.lm_head.weight is new.model.embed_tokens.weight
    untied = restack(FAMILIES["llama"].build(), "0-2")
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight


def test_hidden_states_hold_every_layer() -> None:
    """Layers put into an existing list are silently left out of the recorded hidden states."""
    family = FAMILIES["llama"]
    new = restack(family.build(), "0-4x2")
    out = new(**family.inputs(), output_hidden_states=True)
    assert len(out.hidden_states) == 11
    assert [layer.self_attn.layer_idx for layer in new.model.layers] == list(range(10))


def test_frozen_parameters_stay_frozen() -> None:
    model = FAMILIES["bert"].build()
    model.bert.encoder.layer[3].requires_grad_(False)
    new = restack(model, "3,1")
    assert not any(p.requires_grad for p in new.bert.encoder.layer[0].parameters())
    assert all(p.requires_grad for p in new.bert.encoder.layer[1].parameters())


def test_index_rule_that_cannot_follow() -> None:
    family = FAMILIES["gpt2"]
    config = {**family.config, "scale_attn_by_inverse_layer_idx": True}
    model = Family("gpt2", family.cls, config, ()).build()
    assert len(restack(model, "0-2").transformer.h) == 3
    with pytest.raises(StackError, match="scale_attn_by_inverse_layer_idx"):
        restack(model, "1-4")


def test_several_stacks_need_a_name() -> None:
    with pytest.raises(StackError, match=r"2 stacks.*model.encoder.layers.*model.decoder.layers"):
        restack(FAMILIES["bart"].build(), "0-2")


def test_another_depth_is_refused() -> None:
    with pytest.raises(StackError, match=r"12 layers.*has 5"):
        restack(FAMILIES["bert"].build(), Plan.identity(12))


def test_a_type_that_no_atlas_knows() -> None:
    """A model class of the user's own: the live rule and trial builds."""
    from transformers import LlamaConfig, LlamaForCausalLM

    class OwnConfig(LlamaConfig):
        model_type = "own-llama"

    class OwnModel(LlamaForCausalLM):
        config_class = OwnConfig

    model = OwnModel(OwnConfig(**FAMILIES["llama"].config)).eval()
    new = restack(model, "drop:top=2")
    assert type(new) is OwnModel
    assert new.config.num_hidden_layers == 3
