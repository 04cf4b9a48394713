"""mergekit configurations: written, read back, and refused where a plan cannot say the same."""

from __future__ import annotations

import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from restack.errors import PlanError
from restack.plan import LLAMA_PROJECTIONS, Mark, Plan, from_mergekit, to_mergekit


@given(plan=st.from_type(Plan))
def test_what_is_written_can_be_read_back(plan: Plan) -> None:
    if plan.marks & {Mark.FRESH, Mark.TIED}:
        with pytest.raises(PlanError, match="mergekit has no @"):
            to_mergekit(plan, "org/model", projections=LLAMA_PROJECTIONS)
        return
    text = to_mergekit(plan, "org/model", dtype="bfloat16", projections=LLAMA_PROJECTIONS)
    read = from_mergekit(text, plan.depth, projections=LLAMA_PROJECTIONS)
    assert read == ("org/model", plan)


def ranges(plan: Plan) -> list[list[int]]:
    config = yaml.safe_load(to_mergekit(plan, "m"))
    return [entry["sources"][0]["layer_range"] for entry in config["slices"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("upscale:48", [[0, 24], [8, 32]]),
        ("drop:4", [[0, 4], [5, 32]]),
        ("2-0", [[2, 3], [1, 2], [0, 1]]),
        ("0x2,1", [[0, 1], [0, 2]]),
    ],
)
def test_neighbours_are_one_slice(text: str, expected: list[list[int]]) -> None:
    assert ranges(Plan.parse(text, 32)) == expected


def test_a_no_op_copy_scales_its_projections_by_zero() -> None:
    plan = Plan.parse("expand:every=4", 4)
    config = yaml.safe_load(to_mergekit(plan, "m", projections=("o_proj", "down_proj")))
    assert config["slices"][1]["sources"][0] == {
        "model": "m",
        "layer_range": [3, 4],
        "parameters": {
            "scale": [
                {"filter": "o_proj", "value": 0.0},
                {"filter": "down_proj", "value": 0.0},
                {"value": 1.0},
            ]
        },
    }


def test_a_no_op_copy_needs_to_know_its_projections() -> None:
    with pytest.raises(PlanError, match="slot 4 is 3@noop") as caught:
        to_mergekit(Plan.parse("expand:every=4", 4), "m")
    assert "projections=('o_proj', 'down_proj')" in str(caught.value.hint)


@pytest.mark.parametrize("projections", ["o_proj", ("o_proj", ""), ("*",)])
def test_projections_that_would_fit_every_tensor_are_refused(projections) -> None:
    with pytest.raises(PlanError, match="expected parts of tensor names"):
        to_mergekit(Plan.identity(4), "m", projections=projections)


def test_a_configuration_as_others_write_it() -> None:
    text = """
    # the recipe of many published merges
    slices:
      - sources:
        - model: org/model-7B
          layer_range: [0, 24]
      - sources:
          - {layer_range: [8, 32], model: "org/model-7B", parameters: {scale: [{value: 1}]}}
    merge_method: passthrough
    base_model: org/model-7B
    dtype: bfloat16
    tokenizer_source: union
    """
    assert from_mergekit(text, 32) == ("org/model-7B", Plan.parse("upscale:48", 32))


def one_slice(source: str, *, rest: str = "merge_method: passthrough") -> str:
    return f"slices: [{{sources: [{source}]}}]\n{rest}"


def scaled(scale: str) -> str:
    return one_slice(f"{{model: m, layer_range: [0, 2], parameters: {{scale: {scale}}}}}")


GOOD = "{model: m, layer_range: [0, 2]}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the top level is missing; expected keys with values"),
        ("- a", "the top level is ['a']"),
        ("a: [", "not readable as YAML"),
        ("a: *b", "not readable as YAML: found undefined alias 'b' in line 1"),
        ("\x00", "not readable as YAML"),
        ('"\\UFFFFFFFF"', "not readable as YAML"),
        ("merge_method: passthrough", "slices is missing"),
        ("slices: []\nmerge_method: passthrough", "slices is []; expected a list with entries"),
        (one_slice(GOOD, rest=""), "merge_method is missing; expected passthrough"),
        (one_slice(GOOD, rest="merge_method: slerp"), "merge_method is 'slerp'"),
        (
            one_slice(GOOD, rest="merge_method: passthrough\nmodels: [a]"),
            "the top level has the key 'models'",
        ),
        (
            one_slice(GOOD, rest="merge_method: passthrough\nparameters: {scale: 2}"),
            "the top level has the key 'parameters'",
        ),
        (
            one_slice(GOOD, rest="merge_method: passthrough\nbase_model: other"),
            "slices[0].sources[0].model is 'm'; expected 'other' as in base_model",
        ),
        (one_slice(f"{GOOD}, {GOOD}"), "slices[0].sources is ["),
        (one_slice("{layer_range: [0, 2]}"), "slices[0].sources[0].model is missing"),
        (one_slice("{model: [m], layer_range: [0, 2]}"), "slices[0].sources[0].model is ['m']"),
        (one_slice("{model: m}"), "slices[0].sources[0].layer_range is missing"),
        (one_slice("{model: m, layer_range: [0, 13]}"), "expected [start, end] with 0 <= start"),
        (one_slice("{model: m, layer_range: [2, 2]}"), "expected [start, end]"),
        (one_slice("{model: m, layer_range: [3, 2]}"), "expected [start, end]"),
        (one_slice("{model: m, layer_range: [-1, 2]}"), "expected [start, end]"),
        (one_slice("{model: m, layer_range: [0, 1.5]}"), "expected [start, end]"),
        (one_slice("{model: m, layer_range: [0, true]}"), "expected [start, end]"),
        (one_slice("{model: m, layer_range: [0, 1, 2]}"), "expected [start, end]"),
        (one_slice("{model: m, layer_range: 3}"), "expected [start, end]"),
        (one_slice("{model: m, layer_range: [0, 99999999999]}"), "expected [start, end]"),
        (one_slice("{model: m, layer_range: [0, 2], weight: 1}"), "has the key 'weight'"),
        (scaled("0.5"), "parameters.scale is '0.5'"),
        (scaled("[{filter: o_proj, value: 0.5}]"), "scale[0].value is '0.5'; expected 0.0"),
        (scaled("[{filter: o_proj, value: 0}, {value: 2}]"), "scale[1].value is '2'; expected 1.0"),
        (scaled("[{filter: o_proj, value: 0}]"), "scale zeroes o_proj; a no-op copy would zero"),
        (scaled("[{value: 0}, {filter: o_proj, value: 0}]"), "scale zeroes *, o_proj"),
        (scaled("[{filter: [o], value: 0}]"), "scale[0].filter is ['o']"),
    ],
)
def test_what_a_plan_cannot_say_is_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        from_mergekit(text, 12)
    assert caught.value.message.startswith("mergekit configuration: ")
    assert message in caught.value.message


def test_two_models_are_named() -> None:
    text = "slices: [{sources: [%s]}, {sources: [%s]}]\nmerge_method: passthrough"
    with pytest.raises(PlanError, match=r"slices\[1\].*is 'n'; expected 'm' as in slices\[0\]"):
        from_mergekit(text % (GOOD, GOOD.replace("m,", "n,")), 12)


# The last one is a few lines whose aliases stand for a billion entries.
ENORMOUS = [
    "[" * 100_000,
    "x" * 2_000_000,
    "{a: " * 2_000,
    "slices:\n"
    + "- sources: [{model: m, layer_range: [0, 9999]}]\n" * 3
    + "merge_method: passthrough",
    "".join(f"a{i + 1}: &a{i + 1} [{f'*a{i}, ' * 9}]\n" for i in range(9)).replace("*a0", "lol")
    + "merge_method: *a9\nslices: *a9",
]


@pytest.mark.parametrize("text", ENORMOUS)
def test_enormous_configurations_are_refused_at_once(text: str) -> None:
    start = time.process_time()
    with pytest.raises(PlanError) as caught:
        from_mergekit(text, 10_000)
    assert time.process_time() - start < 10
    assert len(str(caught.value)) < 500


def test_an_alias_bomb_under_an_expected_key_is_shown_short() -> None:
    levels = "".join(f"- &a{i + 1} [{f'*a{i}, ' * 9}]\n" for i in range(9)).replace("*a0", "lol")
    with pytest.raises(PlanError) as caught:
        from_mergekit(f"name:\n{levels}merge_method: *a9\n", 12)
    assert len(str(caught.value)) < 500


@given(text=st.text(max_size=60))
def test_any_text_is_a_configuration_or_a_plan_error(text: str) -> None:
    with pytest.raises(PlanError):
        from_mergekit(text, 12)
