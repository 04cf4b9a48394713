"""What a config says after a re-stacking."""

from __future__ import annotations

from typing import Any

import pytest

from restack.anatomy.config import get, rewrite_config, rules_applying, spelled_out
from restack.anatomy.facts import Facts
from restack.errors import StackError
from restack.plan import Plan


def rewrite(config: dict[str, Any], sources: list[int], depth: int, **facts: Any) -> dict[str, Any]:
    known = Facts("layers", ("layers.",), ("num_hidden_layers",), **facts)
    config = {"num_hidden_layers": depth, **config}
    return rewrite_config(config, known, Plan.of(depth, sources))


def test_lists_follow_by_name_and_others_stay() -> None:
    config = {"layer_types": ["a", "b", "c"], "depths": [1, 2, 3]}
    assert rewrite(config, [2, 0], 3) == {
        "num_hidden_layers": 2,
        "layer_types": ["c", "a"],
        "depths": [1, 2, 3],
    }


def test_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(StackError, match=r"layer_types.*2 entries for 3 layers"):
        rewrite({"layer_types": ["a", "b"]}, [0], 3, lists=("layer_types",))


def test_the_given_config_is_left_alone() -> None:
    config = {"num_hidden_layers": 2, "layer_types": ["a", "b"]}
    rewrite(config, [1], 2)
    assert config == {"num_hidden_layers": 2, "layer_types": ["a", "b"]}


@pytest.mark.parametrize(
    ("given", "spelled"),
    [
        ({"layers": 5, "num_hidden_layers": 6}, {"layers": 6}),  # the other name wins
        ({"num_hidden_layers": 6}, {"layers": 6}),
        ({"layers": 5, "num_hidden_layers": None}, {"layers": 5, "num_hidden_layers": None}),
        ({"encoder": 3}, {"encoder": 3, "layers": 3}),
        ({"encoder": 3, "layers": None}, {"encoder": 3, "layers": 3}),
        ({"encoder": 3, "layers": 4}, {"encoder": 3, "layers": 4}),
        ({}, {}),
    ],
)
@pytest.mark.parametrize("where", ["", "text_config."])
def test_depths_under_other_names(where: str, given: dict, spelled: dict) -> None:
    aliases = (("num_hidden_layers", "layers"),)
    facts = Facts("layers", (), (f"{where}layers",), aliases=aliases, follows="encoder")
    whole = {"text_config": given} if where else given
    assert spelled_out(whole, [facts]) == ({"text_config": spelled} if where else spelled)
    assert spelled_out({"text_config": 3}, [facts])["text_config"] == 3


def test_nested_sections() -> None:
    facts = Facts("layers", (), ("text_config.num_hidden_layers",))
    config = {"text_config": {"num_hidden_layers": 3, "layer_types": ["a", "b", "c"]}}
    new = rewrite_config(config, facts, Plan.of(3, [0, 2]))
    assert new == {"text_config": {"num_hidden_layers": 2, "layer_types": ["a", "c"]}}


@pytest.mark.parametrize(
    ("config", "sources", "depth", "expected"),
    [
        ({"first_k_dense_replace": 2}, [0, 1, 3], 5, {"first_k_dense_replace": 2}),
        ({"first_k_dense_replace": 2}, [1, 3, 4], 5, {"first_k_dense_replace": 1}),
        ({"first_k_dense_replace": 2}, [3, 4], 5, {"first_k_dense_replace": 0}),
        ({"mlp_only_layers": [1], "decoder_sparse_step": 1}, [1, 0, 1], 2,
         {"mlp_only_layers": [0, 2]}),
        ({"mlp_only_layers": [], "decoder_sparse_step": 2}, [1, 3], 4,
         {"mlp_only_layers": [], "decoder_sparse_step": 1}),
        ({"attn_layer_period": 4, "attn_layer_offset": 1}, [0, 1, 2, 4, 5, 6], 8,
         {"attn_layer_period": 3, "attn_layer_offset": 1}),
        ({"moe_layers": [1, 3]}, [3, 0], 4, {"moe_layers": [0]}),
        ({"num_kv_shared_layers": 2}, [0, 1, 3], 4, {"num_kv_shared_layers": 1}),
        ({"num_kv_shared_layers": 0}, [3, 1], 4, {"num_kv_shared_layers": 0}),
        ({"pruned_heads": {"0": [1], "2": [0]}}, [2, 2, 1], 3,
         {"pruned_heads": {"0": [0], "1": [0]}}),
        ({"attention_types": [[["global", "local"], 2]],
          "attention_layers": ["global", "local"] * 2}, [1, 3], 4,
         {"attention_types": [[["local", "local"], 1]]}),
        ({"stage_names": ["stem", "stage1", "stage2", "stage3"], "out_indices": [3]}, [0, 2], 3,
         {"stage_names": ["stem", "stage1", "stage2"], "out_indices": [2]}),
    ],
)  # fmt: skip
def test_index_rules(config: dict, sources: list[int], depth: int, expected: dict) -> None:
    new = rewrite(config, sources, depth)
    assert {name: new[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("config", "sources", "depth", "named"),
    [
        ({"first_k_dense_replace": 2}, [3, 0], 5, "first_k_dense_replace"),
        ({"num_kv_shared_layers": 2}, [1, 2, 3], 4, "num_kv_shared_layers"),
        ({"scale_attn_by_inverse_layer_idx": True}, [1], 2, "scale_attn_by_inverse_layer_idx"),
        ({"attn_layer_period": 3, "attn_layer_offset": 0}, [0, 1, 0, 0, 1], 6, "attn_layer_period"),
        ({"stage_names": ["stem", "stage1", "stage2"], "out_indices": [1, 2]}, [1], 2,
         "out_indices"),
    ],
)  # fmt: skip
def test_rules_that_cannot_be_kept_are_named(
    config: dict, sources: list[int], depth: int, named: str
) -> None:
    with pytest.raises(StackError, match=named):
        rewrite(config, sources, depth)


def test_albert_groups() -> None:
    config = {"num_hidden_groups": 2}
    assert rewrite(config, [0, 0, 1, 1], 2, shared="num_hidden_groups")["num_hidden_layers"] == 4
    with pytest.raises(StackError, match="num_hidden_groups"):
        rewrite(config, [1, 0], 2, shared="num_hidden_groups")


def test_defaults_of_omitted_fields() -> None:
    facts = Facts("layers", (), ("num_hidden_layers",), defaults=(("first_k_dense_replace", 3),))
    assert "first_k_dense_replace" in rules_applying({}, facts)
    new = rewrite_config({"num_hidden_layers": 5}, facts, Plan.of(5, [2, 3, 4]))
    assert get(new, "first_k_dense_replace") == 1
