"""The statistics of repeated trials: intervals, differences, correlations, power.

Scores may be in any unit; a result has the unit of what went in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from restack.errors import RestackError


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with its t interval; below three values there is no interval."""

    mean: float
    low: float | None
    high: float | None
    std: float | None
    """Of the sample (n - 1); None for one value."""
    n: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of paired differences with its t interval and the p of no difference."""

    mean: float
    low: float | None
    high: float | None
    p: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Correlation:
    """A correlation with its two-sided p; None where it is not defined."""

    r: float | None
    p: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Within:
    """How many layers can go at a given loss, and between which numbers that may lie."""

    layers: int
    """By the means."""
    low: int | None
    """So many can go for certain (at the level asked for, for each number of layers by itself)."""
    high: int | None
    """No more than so many may still be possible; None, as `low`, below three trials of a pair."""
    n: int
    """The fewest trials of any number of layers."""


def mean_interval(values: Sequence[float], *, level: float = 0.95) -> Mean:
    """The mean of independent values and the interval that holds the true one at `level`."""
    from scipy.stats import t

    values = _finite(values)
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Mean(mean, None, None, None, n)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    if n == 2:
        return Mean(mean, None, None, std, n)
    half = float(t.ppf((1 + level) / 2, n - 1)) * std / math.sqrt(n)
    return Mean(mean, mean - half, mean + half, std, n)


def paired_difference(
    first: Sequence[float], second: Sequence[float], *, level: float = 0.95
) -> Difference:
    """How much `first` is above `second` on average, where values at one place belong together."""
    from scipy.stats import t

    if len(first) != len(second):
        raise RestackError(f"{len(first)} and {len(second)} values are no pairs")
    both = zip(_finite(first), _finite(second), strict=True)
    mean = mean_interval([a - b for a, b in both], level=level)
    p = None
    if mean.low is not None and mean.std is not None:
        # all differences equal: certain, unless there is none
        p = float(mean.mean == 0)
        if mean.std > 0:
            p = 2 * float(t.sf(abs(mean.mean) / (mean.std / math.sqrt(mean.n)), mean.n - 1))
    return Difference(mean.mean, mean.low, mean.high, p, mean.n)


def pearson(x: Sequence[float], y: Sequence[float]) -> Correlation:
    """The correlation of values; none below three pairs or where one side does not vary."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, x, y)


def spearman(x: Sequence[float], y: Sequence[float]) -> Correlation:
    """The correlation of ranks; none below three pairs or where one side does not vary."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, x, y)


def _correlation(method: object, x: Sequence[float], y: Sequence[float]) -> Correlation:
    if len(x) != len(y):
        raise RestackError(f"{len(x)} and {len(y)} values are no pairs")
    x, y = _finite(x), _finite(y)
    if len(x) < 3 or min(x) == max(x) or min(y) == max(y):
        return Correlation(None, None, len(x))
    r, p = method(x, y)  # type: ignore[operator]
    return Correlation(float(r), float(p), len(x))


def minimum_detectable_difference(
    std: float, n: int, *, paired: bool = False, level: float = 0.95, power: float = 0.8
) -> float | None:
    """The smallest true difference that a two-sided t test would find with this power.

    `n` is the number of values of each side and `std` their standard deviation; for pairs, that
    of the differences. None below two values.
    """
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    if n < 2:
        return None
    freedom = n - 1 if paired else 2 * n - 2
    error = std * math.sqrt((1 if paired else 2) / n)
    critical = float(t.ppf((1 + level) / 2, freedom))

    def missing(shift: float) -> float:
        found = nct.sf(critical, freedom, shift) + nct.cdf(-critical, freedom, shift)
        return float(found) - power

    # `critical` alone gives about half the power; doubling it is beyond any usual one
    top = critical + 1
    while missing(top) < 0:
        top *= 2
    return float(brentq(missing, 0, top)) * error


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: p values that stay below alpha together as often as one would alone."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    so_far = 0.0
    for rank, i in enumerate(order):
        so_far = max(so_far, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = so_far
    return adjusted


def layers_within(scores: Mapping[int, float], points: float) -> int:
    """The most layers that can go at a loss of at most `points`.

    `scores` has a score, higher being better, by number of layers left out, 0 among them.

    >>> layers_within({0: 92.4, 2: 92.2, 4: 90.6, 6: 90.3}, 2)
    4
    """
    if 0 not in scores:
        raise RestackError("the score of the whole model (0 layers left out) is missing")
    # 92.5 - 91.5 may come out as a hair above 1
    return max(k for k, score in scores.items() if scores[0] - score <= points + 1e-9)


def layers_within_interval(
    scores: Mapping[int, Sequence[float]], points: float, *, level: float = 0.95
) -> Within:
    """`layers_within` of repeated trials, with what their spread leaves open.

    `scores` has the trials by number of layers left out, 0 among them; trials at one place (one
    seed) are pairs. A number of layers can go for certain if the interval of its loss ends within
    the points, and may be possible if it begins there.

    >>> scores = {0: [92.0, 92.4, 92.2], 2: [91.9, 92.4, 92.1], 4: [90.2, 92.3, 91.2]}
    >>> layers_within_interval(scores, 1)
    Within(layers=4, low=2, high=4, n=3)
    """
    if 0 not in scores:
        raise RestackError("the score of the whole model (0 layers left out) is missing")
    losses = {
        k: paired_difference(scores[0], found, level=level) for k, found in scores.items() if k
    }
    allowed = points + 1e-9  # 92.5 - 91.5 may come out as a hair above 1
    found = max([0, *(k for k, loss in losses.items() if loss.mean <= allowed)])
    fewest = min([len(scores[0]), *(loss.n for loss in losses.values())])
    if fewest < 3:
        return Within(found, None, None, fewest)
    sure = [k for k, loss in losses.items() if loss.high is not None and loss.high <= allowed]
    open_still = [k for k, loss in losses.items() if loss.low is not None and loss.low <= allowed]
    return Within(found, max([0, *sure]), max([0, *open_still]), fewest)


def _finite(values: Sequence[float]) -> list[float]:
    if not len(values):
        raise RestackError("there are no values")
    for place, value in enumerate(values):
        if not math.isfinite(value):
            raise RestackError(f"value {place} is {value}", hint="Leave out trials that failed.")
    return [float(value) for value in values]
