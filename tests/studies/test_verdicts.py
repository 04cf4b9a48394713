"""Decisions: an effect, its interval, a limit."""

from __future__ import annotations

import pytest

from restack.stats import Correlation, Difference
from restack.studies.verdicts import (
    Effect,
    above,
    all_above,
    all_below,
    all_within,
    any_above,
    apart,
    below,
    correlated,
    none_above,
    proportion,
    welch,
)

FEW = Effect(0.5, None, None, 2)


@pytest.mark.parametrize(
    ("low", "high", "up", "down"),
    [
        (0.2, 0.4, "seen", "not seen"),
        (-0.4, -0.2, "not seen", "seen"),
        (-0.1, 0.3, "undecided", "undecided"),
    ],
)
def test_above_and_below(low: float, high: float, up: str, down: str) -> None:
    effect = Effect((low + high) / 2, low, high, 5)
    assert above(effect, 0.0, "x").status == up
    assert below(effect, 0.0, "x").status == down


def test_without_an_interval_nothing_is_decided() -> None:
    for decide in (above, below):
        decision = decide(FEW, 0.1, "x")
        assert decision.status == "undecided"
        assert "fewer than 3 trials" in decision.why


def test_all_within() -> None:
    small = Difference(0.0, -0.005, 0.005, None, 9)
    large = Difference(0.03, 0.02, 0.04, None, 9)
    wide = Difference(0.0, -0.02, 0.02, None, 9)
    single = Difference(0.0, None, None, None, 1)
    assert all_within({"a": small}, 0.01, "x").status == "seen"
    assert all_within({"a": small, "b": large}, 0.01, "x").status == "not seen"
    assert all_within({"a": small, "b": wide}, 0.01, "x").status == "undecided"
    assert all_within({"a": small, "b": single}, 0.01, "x").status == "undecided"


def effect(mean: float, p: float | None, half: float = 0.01) -> Difference:
    if p is None:
        return Difference(mean, None, None, None, 2)
    return Difference(mean, mean - half, mean + half, p, 5)


def test_many_comparisons_are_corrected() -> None:
    one = {"a": effect(0.02, 0.03)}
    assert all_above(one, "x").status == "seen"
    # Holm: 0.03 twice is 0.06 together
    assert all_above({**one, "b": effect(0.02, 0.03)}, "x").status == "undecided"
    assert all_above({**one, "b": effect(0.02, 0.001)}, "x").status == "seen"
    assert all_above({**one, "b": effect(-0.02, 0.001)}, "x").status == "not seen"


def test_any_above() -> None:
    assert any_above({"a": effect(0.02, 0.01), "b": effect(-0.1, 0.01)}, "x").status == "seen"
    assert any_above({"a": effect(-0.2, 0.01), "b": effect(-0.1, 0.01)}, "x").status == "not seen"
    assert any_above({"a": effect(0.2, 0.5), "b": effect(-0.1, 0.01)}, "x").status == "undecided"
    assert any_above({}, "x").status == "undecided"


def test_none_above() -> None:
    assert none_above({"a": effect(-0.02, 0.1)}, 0.01, "x").status == "seen"
    assert none_above({"a": effect(0.02, 0.001)}, 0.01, "x").status == "not seen"
    assert none_above({"a": effect(0.005, 0.3)}, 0.01, "x").status == "undecided"
    assert none_above({"a": effect(0.005, None)}, 0.01, "x").status == "undecided"


def test_all_below() -> None:
    assert all_below({"a": effect(0.0, 0.9), "b": effect(0.005, 0.9)}, 0.02, "x").status == "seen"
    assert all_below({"a": effect(0.05, 0.001)}, 0.02, "x").status == "not seen"
    assert all_below({"a": effect(0.015, 0.5)}, 0.02, "x").status == "undecided"
    assert all_below({"a": effect(0.0, None)}, 0.02, "x").status == "undecided"


def test_correlations_have_a_direction() -> None:
    assert correlated(Correlation(0.8, 0.01, 10), "x").status == "seen"
    assert correlated(Correlation(0.8, 0.01, 10), "x", sign=-1).status == "not seen"
    assert correlated(Correlation(0.8, 0.2, 4), "x").status == "undecided"
    assert correlated(Correlation(None, None, 2), "x").status == "undecided"


def test_shares_of_many_cases() -> None:
    # Wilson, 95%: the textbook case of 8 in 10
    found = proportion(0.8, 10)
    assert found.low == pytest.approx(0.490, abs=1e-3)
    assert found.high == pytest.approx(0.943, abs=1e-3)
    gap = apart(proportion(0.9, 1000), proportion(0.8, 1000))
    assert gap.mean == pytest.approx(0.1)
    assert gap.low == pytest.approx(0.069, abs=2e-3)


def test_welch_is_that_of_scipy() -> None:
    from scipy.stats import ttest_ind

    a, b = [0.9, 0.91, 0.93], [0.85, 0.9, 0.86, 0.87]
    found, known = welch(a, b), ttest_ind(a, b, equal_var=False)
    assert found.p == pytest.approx(known.pvalue)
    assert found.low == pytest.approx(known.confidence_interval().low)
    assert welch(a, b[:2]).p is None
    assert welch([0.5] * 3, [0.5] * 3).p == 1.0
    assert welch([0.6] * 3, [0.5] * 3).p == 0.0
