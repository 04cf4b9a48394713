"""Re-stacking in memory, over many architectures."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import AutoModel, BertConfig, BertModel

from restack.anatomy import models
from restack.errors import RestackError, StackError
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


def by_hand(model: nn.Module, path: str, plan: Plan, family: Family) -> torch.Tensor:
    """The outputs of the same layer objects, run in the order of the plan in the old model."""
    model = copy.deepcopy(model)
    owner, _, leaf = path.rpartition(".")
    parent = model.get_submodule(owner)
    layers = getattr(parent, leaf)
    setattr(parent, leaf, nn.ModuleList(layers[source] for source in plan.sources))
    for module in model.modules():  # Llama-type forwards slice by the config
        if getattr(module, "config", None) is not None:
            for field in ("num_hidden_layers", "decoder_layers", "encoder_layers", "num_layers"):
                if getattr(module.config, field, None) == plan.depth:
                    setattr(module.config, field, len(plan))
    return logits(model, family, use_cache=False) if family.generates else logits(model, family)


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
    elif kind != "fresh" and name not in BY_POSITION:
        if name != "albert":
            expected = by_hand(model, found.path, plan, family)
            torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
    if family.generates:
        ids = {k: v[:1, :5] for k, v in family.inputs().items() if k != "decoder_input_ids"}
        made = [
            new.generate(**ids, max_new_tokens=4, do_sample=False, use_cache=cached)
            for cached in (True, False)
        ]
        assert torch.equal(*made)


# Models whose forward pass reads per-layer lists by position: the old config cannot drive a new
# order, so only finite outputs and cached generation are compared above.
BY_POSITION = {"gemma3_text", "gemma3", "qwen2-sliding", "modernbert", "esm", "t5"}
