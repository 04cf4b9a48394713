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
from tests.families import FAMILIES, Family

CASES = [(name, stack) for name, family in FAMILIES.items() for stack in family.stacks]


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
    if family.generates:
        ids = {k: v[:1, :5] for k, v in family.inputs().items() if k != "decoder_input_ids"}
        made = [
            new.generate(**ids, max_new_tokens=4, do_sample=False, use_cache=cached)
            for cached in (True, False)
        ]
        assert torch.equal(*made)
