from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from restack.errors import RestackError
from restack.stats import (
    Correlation,
    holm,
    layers_within,
    layers_within_interval,
    mean_interval,
    minimum_detectable_difference,
    paired_difference,
    pearson,
    spearman,
)

values = st.lists(st.floats(-100, 100).map(lambda v: round(v, 3)), min_size=3, max_size=20)


def test_mean_by_hand() -> None:
    found = mean_interval([1.0, 2, 3])
    assert found.mean == 2  # std 1, and t(0.975, 2) = 4.302653
    assert found.std == 1
    assert found.high == pytest.approx(2 + 4.302653 / math.sqrt(3), rel=1e-6)
    assert found.low == pytest.approx(2 - 4.302653 / math.sqrt(3), rel=1e-6)


@given(values, st.sampled_from([0.9, 0.95, 0.99]))
def test_mean_equals_scipy(sample: list[float], level: float) -> None:
    found = mean_interval(sample, level=level)
    error = scipy.stats.sem(sample)
    assert found.mean == pytest.approx(np.mean(sample), abs=1e-9)
    if error > 1e-9:
        low, high = scipy.stats.t.interval(level, len(sample) - 1, np.mean(sample), error)
        assert (found.low, found.high) == pytest.approx((low, high))


def test_below_three_values_there_is_no_interval() -> None:
    one, two = mean_interval([5.0]), mean_interval([5.0, 7.0])
    assert (one.mean, one.low, one.high, one.std, one.n) == (5, None, None, None, 1)
    assert (two.mean, two.low, two.high, two.n) == (6, None, None, 2)
    assert two.std == pytest.approx(math.sqrt(2))


@given(st.lists(st.tuples(*[st.integers(-50, 50)] * 2), min_size=3, max_size=20))
def test_paired_difference_equals_scipy(pairs: list[tuple[int, int]]) -> None:
    a, b = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    found = paired_difference(a.tolist(), b.tolist())
    assert found.mean == pytest.approx((a - b).mean())
    if np.ptp(a - b) > 0:
        theirs = scipy.stats.ttest_rel(a, b)
        interval = theirs.confidence_interval(0.95)
        assert found.p == pytest.approx(theirs.pvalue)
        assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_paired_differences_that_are_all_equal_or_few() -> None:
    assert paired_difference([1.0, 2, 3], [1.0, 2, 3]).p == 1
    sure = paired_difference([2.0, 3, 4], [1.0, 2, 3])
    assert (sure.mean, sure.low, sure.high, sure.p) == (1, 1, 1, 0)
    few = paired_difference([2.0, 3], [1.0, 1])
    assert (few.mean, few.low, few.p, few.n) == (1.5, None, None, 2)
    with pytest.raises(RestackError, match="3 and 2 values are no pairs"):
        paired_difference([1.0, 2, 3], [1.0, 2])


def test_correlations() -> None:
    x, y = [1.0, 2, 3, 4, 5], [2.0, 1, 4, 3, 5]
    rho = spearman(x, y)
    assert rho.r == pytest.approx(1 - 6 * 4 / (5 * 24))  # no ties: from the squared rank steps
    theirs = scipy.stats.spearmanr(x, y)
    assert (rho.r, rho.p) == pytest.approx((theirs.statistic, theirs.pvalue))
    r = pearson(x, [v**2 for v in x])
    theirs = scipy.stats.pearsonr(x, [v**2 for v in x])
    assert (r.r, r.p) == pytest.approx((theirs.statistic, theirs.pvalue))


def test_correlations_that_are_not_defined() -> None:
    assert pearson([1.0, 2], [1.0, 2]) == Correlation(None, None, 2)
    assert spearman([1.0, 1, 1], [1.0, 2, 3]) == Correlation(None, None, 3)
    with pytest.raises(RestackError, match="no pairs"):
        pearson([1.0], [1.0, 2])


def test_minimum_detectable_difference_against_tables_of_power() -> None:
    # Cohen's tables: 64 a side (34 pairs) find an effect of half a standard deviation at 80%
    assert minimum_detectable_difference(2.0, 64) == pytest.approx(1.0, abs=0.004)
    assert minimum_detectable_difference(2.0, 34, paired=True) == pytest.approx(1.0, abs=0.015)
    assert minimum_detectable_difference(1.0, 17, level=0.95, power=0.8) == pytest.approx(
        0.99, abs=0.01
    )
    assert minimum_detectable_difference(1.0, 1) is None


def test_minimum_detectable_difference_is_found_as_often_as_said() -> None:
    random = np.random.default_rng(0)
    true = minimum_detectable_difference(1.0, 5)
    assert true is not None
    first, second = random.normal(size=(2, 20000, 5))
    found = scipy.stats.ttest_ind(first + true, second, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.01)


def test_power_needs_a_larger_difference() -> None:
    sizes = [minimum_detectable_difference(1.0, 3, power=p) or 0 for p in (0.1, 0.5, 0.8, 0.99)]
    assert sizes == sorted(sizes)
    assert sizes[0] > 0


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_keeps_the_order_and_lowers_nothing(p_values: list[float]) -> None:
    found = holm(p_values)
    assert all(a >= p for a, p in zip(found, p_values, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert [found[i] for i in order] == sorted(found)


def test_layers_within() -> None:
    scores = {0: 92.4, 2: 92.2, 4: 90.6, 6: 90.3}
    assert [layers_within(scores, d) for d in (0, 1, 2, 3)] == [0, 2, 4, 6]
    assert layers_within({0: 92.5, 1: 91.5}, 1) == 1  # equal counts, whatever floats make of it
    assert layers_within({0: 0.925, 3: 0.915}, 0.01) == 3
    assert layers_within({0: 90.0, 2: 80.0, 4: 89.5}, 1) == 4
    with pytest.raises(RestackError, match="whole model"):
        layers_within({2: 90.0}, 1)


def test_layers_within_with_what_the_spread_leaves_open() -> None:
    # differences to the whole: at 2 layers 0.4, 0.5, 0.6 (mean 0.5, half width 4.302653 * 0.1 /
    # sqrt(3) = 0.2484); at 4 layers 0, 1, 2 (half width 2.484)
    scores = {0: [92.0, 92.0, 92.0], 2: [91.6, 91.5, 91.4], 4: [92.0, 91.0, 90.0]}
    found = layers_within_interval(scores, 1)
    assert (found.layers, found.low, found.high, found.n) == (4, 2, 4, 3)
    assert layers_within_interval(scores, 0.74).low == 0  # 0.7484 is more
    assert layers_within_interval(scores, 0.75).low == 2
    assert layers_within_interval(scores, 0.3).layers == 0
    assert layers_within_interval(scores, 0.3).high == 4  # 1 - 2.484 is below
    few = layers_within_interval({0: [92.0, 93.0], 2: [92.0, 92.9]}, 1)
    assert (few.layers, few.low, few.high, few.n) == (2, None, None, 2)
    with pytest.raises(RestackError, match="no pairs"):
        layers_within_interval({0: [1.0, 2.0], 1: [1.0]}, 1)


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(RestackError, match="value 1 is nan"):
        mean_interval([1.0, math.nan])
    with pytest.raises(RestackError, match="no values"):
        mean_interval([])
