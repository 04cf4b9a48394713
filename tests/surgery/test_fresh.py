"""Fresh weights: what they depend on, how they are spread, how they are rounded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from restack import restack
from restack.errors import PlanError, StackError
from restack.plan import Mark, Slot
from restack.surgery import fresh
from tests.families import FAMILIES

SLOT = Slot(3, Mark.FRESH)
MANY = 600_000  # more than two chunks


def drawn(what: str | tuple[float, float], count: int, seed: int = 0, slot: Slot = SLOT,
          rest: str = "mlp.weight", dtype: str = "F32") -> bytes:  # fmt: skip
    return b"".join(fresh.encoded(what, dtype, count, seed, slot, rest))


def values(spread: float, cut: float, count: int = MANY) -> np.ndarray:
    return np.frombuffer(drawn((spread, cut), count), np.float32)


@pytest.mark.parametrize(("spread", "cut"), [(0.02, 0.04), (0.02, 0.0008), (1.0, 1.0)])
def test_they_are_a_truncated_normal(spread: float, cut: float) -> None:
    found = values(spread, cut)
    assert np.abs(found).max() <= cut * (1 + 1e-6)
    bound = cut / spread
    expected = stats.truncnorm(-bound, bound, scale=spread)
    assert stats.kstest(found[::10], expected.cdf).pvalue > 1e-4
    assert abs(found.std() / expected.std() - 1) < 0.01


def test_they_depend_on_seed_source_draw_and_name_alone() -> None:
    same = drawn((1.0, 2.0), 100)
    assert drawn((1.0, 2.0), 100) == same
    others = [
        drawn((1.0, 2.0), 100, seed=1),
        drawn((1.0, 2.0), 100, slot=Slot(2, Mark.FRESH)),
        drawn((1.0, 2.0), 100, slot=Slot(3, Mark.FRESH, 2)),
        drawn((1.0, 2.0), 100, rest="mlp.bias"),
    ]
    assert len({same, *others}) == 5
    assert drawn((1.0, 2.0), 300_000)[: 4 * 262_144] == drawn((1.0, 2.0), 262_144)


def test_the_stream_is_the_same_for_ever() -> None:
    """A checkpoint made today is verified by drawing again in years."""
    first = np.frombuffer(drawn((0.02, 0.04), 4), np.float32)
    assert first.tolist() == pytest.approx(FIRST, rel=1e-6)


FIRST = [0.01500038243830204, -0.004590676631778479, -0.008163808844983578, -0.016219938173890114]


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40))
def test_bfloat16_is_rounded_as_torch_rounds(numbers: list[float]) -> None:
    array = np.array(numbers, np.float32)
    ours = fresh.ENCODE["BF16"](array)
    theirs = torch.from_numpy(array.copy()).bfloat16().view(torch.int16).numpy().tobytes()
    assert ours == theirs


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_ones_and_zeros(dtype: str) -> None:
    torch_dtype = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16}
    for what, value in (("ones", 1.0), ("zeros", 0.0)):
        raw = bytearray(drawn(what, 5, dtype=dtype))
        found = torch.frombuffer(raw, dtype=torch_dtype.get(dtype, torch.bfloat16))
        assert found.tolist() == [value] * 5


# name in the layer, dimensions -> what each initialiser makes of it
RECIPES = {
    ("mlp.weight", 2): {"standard": (0.1, 0.2), "paper": (0.02, 0.04), "released": (0.02, 8e-4)},
    ("mlp.bias", 1): {"standard": "zeros", "paper": (0.02, 0.04), "released": "keep"},
    ("LayerNorm.weight", 1): {"standard": "ones", "paper": "ones", "paper-keep-norms": "keep"},
    ("ln_1.bias", 1): {"standard": "zeros", "paper": "zeros", "paper-keep-norms": "keep"},
    ("input_layernorm.weight", 1): {"standard": "ones", "paper-keep-norms": "keep"},
}


@pytest.mark.parametrize(("rest", "dims"), list(RECIPES))
def test_initialisers(rest: str, dims: int) -> None:
    for name, expected in RECIPES[rest, dims].items():
        found = fresh.recipe(rest, dims, fresh.choose(name), {}, 0.1)
        assert found == (pytest.approx(expected) if isinstance(expected, tuple) else expected)


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(PlanError, match="no initialiser"):
        fresh.choose("best")
    with pytest.raises(StackError, match="a way of its own"):
        fresh.recipe("A_log", 1, fresh.choose("paper"), {"A_log": "special"}, 0.02)
    with pytest.raises(StackError, match="stored as I32"):
        fresh.check_dtype("qweight", "I32", SLOT)


def test_a_family_starts_its_layers_as_it_does() -> None:
    """GPT-2 scales its output projections by the depth; the plain initialiser does not."""
    model = FAMILIES["gpt2"].build()
    model.config.initializer_range = 0.5
    new = restack(model, "0-3,4@fresh", init="family").transformer.h[4]
    weight, output = new.mlp.c_fc.weight.std().item(), new.mlp.c_proj.weight.std().item()
    assert weight == pytest.approx(0.5, rel=0.15)
    assert output == pytest.approx(0.5 / (2 * 5) ** 0.5, rel=0.15)
    assert torch.equal(new.ln_1.weight, torch.ones(16))
    assert not new.mlp.c_fc.bias.any()
    before = torch.get_rng_state()
    restack(model, "0-3,4@fresh", init="family")
    assert torch.equal(torch.get_rng_state(), before)
