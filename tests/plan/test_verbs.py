"""Every verb on the examples of the paper that it comes from (papers count layers from 1)."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restack.errors import PlanError
from restack.plan import (
    Mark,
    Plan,
    drop,
    drop_by_score,
    duplicate,
    expand,
    keep,
    noop,
    permute,
    reinit,
    repeat,
    reverse,
    swap,
    upscale,
)


def gone_from_1(plan: Plan) -> set[int]:
    return {layer + 1 for layer in plan.gone}


@pytest.mark.parametrize(
    ("how", "depth", "expected"),
    [
        # Sajjad et al., section 2 and 4.1
        ("top=6", 12, {7, 8, 9, 10, 11, 12}),
        ("top=2", 12, {11, 12}),
        ("even=4", 12, {6, 8, 10, 12}),
        ("odd=4", 12, {5, 7, 9, 11}),
        ("even=2", 12, {10, 12}),
        ("odd=2", 12, {9, 11}),
        ("even=6", 12, {2, 4, 6, 8, 10, 12}),
        ("odd=6", 12, {1, 3, 5, 7, 9, 11}),
        ("symmetric=2", 12, {6, 7}),
        ("symmetric=6", 12, {4, 5, 6, 7, 8, 9}),
        ("bottom=2", 12, {1, 2}),
        ("bottom=6", 12, {1, 2, 3, 4, 5, 6}),
        # DistilBERT has six
        ("even=3", 6, {2, 4, 6}),
        ("odd=1", 6, {5}),
        # Odd depths: even and odd still as counted from 1
        ("even=2", 11, {8, 10}),
        ("odd=2", 11, {9, 11}),
        ("symmetric=3", 11, {5, 6, 7}),
        ("top=0", 12, set()),
        ("even=0", 12, set()),
        ("bottom=0", 12, set()),
        ("symmetric=0", 12, set()),
        ("3,5,7-9", 12, {4, 6, 8, 9, 10}),
        ("9-7", 12, {8, 9, 10}),
    ],
)
def test_drop(how: str, depth: int, expected: set[int]) -> None:
    plan = Plan.parse(f"drop:{how}", depth)
    assert gone_from_1(plan) == expected
    assert plan == Plan.of(depth, sorted(plan.sources))


@pytest.mark.parametrize("how", ["top", "bottom", "even", "odd", "symmetric"])
def test_drop_in_text_and_in_python_agree(how: str) -> None:
    assert drop(12, **{how: 4}) == Plan.parse(f"drop:{how}=4", 12)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"even": 7}, "even=7 is out of range: expected 0..6"),
        ({"odd": -1}, "odd=-1 is out of range: expected 0..6"),
        ({"top": 12}, "no layer is left"),
        ({"symmetric": 5}, "leaves 7, which cannot be halved"),
        ({"top": 1.5}, "1.5 is not a number that drop can take"),
        ({"top": 1, "bottom": 1}, "expected exactly one of"),
        ({}, "expected exactly one of layers, top, bottom, even, odd, symmetric"),
        ({"layers": [3, 3]}, "layer 3 is named twice"),
        ({"layers": []}, "no layer is named"),
        ({"layers": [12]}, "layer 12 is not there"),
    ],
)
def test_drop_refuses(wish: dict, message: str) -> None:
    with pytest.raises(PlanError, match="drop") as caught:
        drop(12, **wish)
    assert message in caught.value.message


# Similarities that give what Sajjad et al. chose: BERT {3,5} above 0.95, {3,5,8,9} above 0.925.
BERT = [0.80, 0.90, 0.96, 0.90, 0.97, 0.91, 0.92, 0.93, 0.94, 0.90, 0.85, 0.60]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("above=0.95", {3, 5}),
        ("above=0.925", {3, 5, 8, 9}),
        ("above=.99", set()),
        ("above=-1", None),
        ("lowest=2", {3, 5}),
        ("lowest=4", {3, 5, 8, 9}),
        ("lowest=0", set()),
        ("lowest=12", None),
    ],
)
def test_drop_by_contribution(how: str, expected: set[int] | None) -> None:
    if expected is None:
        with pytest.raises(PlanError, match="no layer is left"):
            Plan.parse(f"drop:{how}", 12, scores=BERT)
    else:
        assert gone_from_1(Plan.parse(f"drop:{how}", 12, scores=BERT)) == expected


def test_drop_by_score_takes_upper_layers_first_among_equals() -> None:
    assert drop_by_score(4, [0.5] * 4, count=2).gone == (2, 3)
    assert drop_by_score(3, [0.9, 0.9, 0.1], above=0.9).gone == ()


@pytest.mark.parametrize(
    ("scores", "wish", "message"),
    [
        ([0.5] * 3, {"count": 1}, "3 scores for 4 layers"),
        ([0.5, float("nan"), 0.5, 0.5], {"count": 1}, "not a finite number"),
        ([0.5] * 4, {"above": float("nan")}, "above=nan is not a number"),
        ([0.5] * 4, {"count": 5}, "count=5 is out of range"),
        ([0.5] * 4, {}, "exactly one of above, count"),
    ],
)
def test_drop_by_score_refuses(scores: list[float], wish: dict, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        drop_by_score(4, scores, **wish)
    assert message in caught.value.message


def test_scores_are_for_the_stack_that_the_step_gets() -> None:
    with pytest.raises(PlanError, match="12 scores for 11 layers"):
        Plan.parse("drop:top=1+drop:lowest=1", 12, scores=BERT)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        # Kao et al.: a 15-layer BERT-base repeats the first three layers, once each
        ("to=15", "0-2x2,3-11"),
        ("to=24", "0-11x2"),
        ("to=12", "0-11"),
        ("each", "0-11x2"),
        ("first=3", "0-2x2,3-11"),
        ("last=3", "0-8,9-11x2"),
        ("last=0", "0-11"),
        ("5x4", "0-4,5x4,6-11"),
        ("3,5-7", "0-2,3x2,4,5-7x2,8-11"),
        ("3x3,5-6", "0-2,3x3,4,5-6x2,7-11"),
        ("5x1", "0-11"),
    ],
)
def test_duplicate(how: str, expected: str) -> None:
    assert str(Plan.parse(f"duplicate:{how}", 12)) == expected


def test_duplicate_in_python() -> None:
    assert duplicate(12, {5: 4, 7: 2}) == Plan.parse("duplicate:5x4,7", 12)
    assert duplicate(12, [7, 5]) == Plan.parse("duplicate:5,7", 12)
    assert duplicate(12, each=True) == duplicate(12, to=24) == duplicate(12, range(12))


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"to": 25}, "to=25 is out of range: expected 12..24"),
        ({"to": 11}, "to=11 is out of range: expected 12..24"),
        ({"first": 13}, "first=13 is out of range: expected 0..12"),
        ({"layers": {3: 0}}, "times=0 is out of range"),
        ({"layers": {3: 10_000}}, "more than 10000 slots"),
        ({"each": True, "to": 13}, "exactly one of"),
        ({"each": False}, "exactly one of"),
    ],
)
def test_duplicate_refuses(wish: dict, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        duplicate(12, **wish)
    assert message in caught.value.message


def test_repeat() -> None:
    assert str(Plan.parse("repeat:24", 12)) == "0-11,0-11"
    assert str(repeat(12, 50)) == "0-11,0-11,0-11,0-11,0-1"
    assert str(repeat(12, 5)) == "0-4"
    assert str(repeat(1, 50)) == "0x50"


def test_reverse_and_swap() -> None:
    assert reverse(12) == Plan.parse("reverse", 12) == reverse(12).inverse()
    assert swap(12, 3, 7) == Plan.parse("swap:3,7", 12) == Plan.parse("swap:7,3", 12)
    assert str(swap(12, 3, 7)) == "0-2,7,4-6,3,8-11"


@given(depth=st.integers(1, 60), seed=st.integers(0, 10**12))
def test_permute_is_a_reordering(depth: int, seed: int) -> None:
    plan = permute(depth, seed)
    assert sorted(plan.sources) == list(range(depth))
    assert plan == Plan.parse(f"permute:seed={seed}", depth)


def test_permute_gives_the_same_order_for_ever() -> None:
    assert permute(12, 7).sources == (2, 7, 6, 1, 3, 8, 11, 9, 10, 5, 0, 4)
    in_another_process = subprocess.run(
        [sys.executable, "-c", "from restack.plan import permute; print(permute(12, 7))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert in_another_process.stdout.strip() == str(permute(12, 7))


def test_permute_is_fair() -> None:
    """Each layer of 4 comes first about equally often: 1000 of 4000, standard deviation 27."""
    first = [permute(4, seed).sources[0] for seed in range(4000)]
    assert all(abs(first.count(layer) - 1000) < 150 for layer in range(4))


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        # Tamkin et al.: k = 12 is the untouched model, k = 0 all fresh
        ("after=12", "0-11"),
        ("after=9", "0-8,9-11@fresh"),
        ("after=0", "0-11@fresh"),
        ("3-5", "0-2,3-5@fresh,6-11"),
        ("3,7", "0-2,3@fresh,4-6,7@fresh,8-11"),
    ],
)
def test_reinit(how: str, expected: str) -> None:
    assert str(Plan.parse(f"reinit:{how}", 12)) == expected


def test_reinit_and_keep_are_complements() -> None:
    for start in range(10):  # the localised experiment: every block of three
        block = range(start, start + 3)
        rest = [layer for layer in range(12) if layer not in block]
        assert keep(12, block) == reinit(12, rest)
        assert keep(12, block) == Plan.parse(f"keep:{start}-{start + 2}", 12)
    assert keep(12, range(12)).is_identity


def test_noop() -> None:
    assert noop(12, [3]) == Plan.parse("noop:3", 12)
    assert noop(12, [3])[3].mark is Mark.NOOP


@pytest.mark.parametrize(
    ("depth", "every", "expected"),
    [
        # LLaMA-Pro: 32 layers become 40, a copy behind each group of four
        (8, 4, "0-3,3@noop,4-7,7@noop"),
        (6, 4, "0-3,3@noop,4-5"),
        (3, 1, "0,0@noop,1,1@noop,2,2@noop"),
    ],
)
def test_expand(depth: int, every: int, expected: str) -> None:
    assert str(Plan.parse(f"expand:every={every}", depth)) == expected


def test_expand_as_llama_pro() -> None:
    assert len(expand(32, every=4)) == 40
    with pytest.raises(PlanError, match="every=0 is out of range"):
        expand(32, every=0)


@pytest.mark.parametrize(
    ("depth", "to", "expected"),
    [
        (32, 48, "0-23,8-31"),  # SOLAR 10.7B: n=32, m=8
        (12, 24, "0-11,0-11"),
        (12, 12, "0-11"),
        (12, 15, "0-7,5-11"),
        (5, 6, "0-2,2-4"),
    ],
)
def test_upscale(depth: int, to: int, expected: str) -> None:
    assert upscale(depth, to) == Plan.parse(f"upscale:{to}", depth) == Plan.parse(expected, depth)


@pytest.mark.parametrize("to", [11, 25])
def test_upscale_refuses(to: int) -> None:
    with pytest.raises(PlanError, match=r"expected 12\.\.24"):
        upscale(12, to)


@pytest.mark.parametrize(
    "verb",
    [
        lambda depth: drop(depth, top=1),
        lambda depth: duplicate(depth, each=True),
        lambda depth: keep(depth, [0]),
        lambda depth: permute(depth, 1),
        lambda depth: reinit(depth, after=0),
        lambda depth: repeat(depth, 2),
        lambda depth: swap(depth, 0, 1),
        lambda depth: expand(depth, 1),
        lambda depth: upscale(depth, 2),
        reverse,
    ],
)
@pytest.mark.parametrize("depth", [0, -1, 10**12])
def test_every_verb_refuses_a_depth_that_cannot_be(verb, depth: int) -> None:
    with pytest.raises(PlanError, match=f"a stack of {depth} layers"):
        verb(depth)
