"""From a plan to names."""

from __future__ import annotations

from restack.plan import Plan
from restack.surgery.keymap import key_map

NAMES = ["emb", "h.0.w", "h.0.table", "h.1.w", "h.2.w", "h.3.extra", "h.norm.w", "head"]


def pairs(plan: str, **more: object) -> list[str]:
    made = key_map(NAMES, "h.", Plan.parse(plan, 3), **more)  # type: ignore[arg-type]
    return [f"{entry.name}<{entry.source}" for entry in made]


def test_layers_stand_where_the_stack_stood() -> None:
    assert pairs("2,0") == [
        *("emb<emb", "h.0.w<h.2.w", "h.1.w<h.0.w", "h.1.table<h.0.table"),
        *("h.norm.w<h.norm.w", "head<head"),
    ]


def test_tensors_of_the_whole_stack_stay_in_its_first_layer() -> None:
    bound = pairs("2,0x2", bound=("table",))
    assert [pair for pair in bound if "table" in pair] == ["h.0.table<h.0.table"]
    assert "h.0.table<h.0.table" in pairs("1-2", bound=("table",))  # also where layer 0 is gone


def test_extra_layers_follow_the_new_last_one() -> None:
    assert "h.5.extra<h.3.extra" in pairs("0-2,0-1", past_end="keep")
    assert not [pair for pair in pairs("0-2", past_end="drop") if "extra" in pair]


def test_a_prefix_is_no_beginning_of_another_name() -> None:
    made = key_map(["h.0.w", "hh.0.w", "h.00x.w"], "h.", Plan.of(1, [0, 0]))
    assert [entry.name for entry in made] == ["h.0.w", "h.1.w", "hh.0.w", "h.00x.w"]


def test_only_layers_have_slots() -> None:
    for entry in key_map(NAMES, "h.", Plan.parse("2@fresh,1", 3)):
        inside = entry.name.startswith("h.") and entry.name[2].isdecimal()
        assert (entry.slot is not None) is inside
        assert bool(entry.rest) is inside
