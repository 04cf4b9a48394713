"""How a claim is decided: an effect, its 95% interval, and a limit.

Seen is what lies with its whole interval on the claim's side of the limit, not seen what lies with
it on the other, and undecided all else. Fewer than three trials have no interval and decide
nothing. Of many comparisons with one baseline the p values are corrected together (Holm).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from restack.stats import Correlation, Difference, Mean, holm
from restack.studies.findings import Status

LEVEL = 0.05
Unit = Literal["points", "%", ""]
"""Differences of fractions are points, fractions themselves percentages; all else is as it is."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a claim, and the numbers that decided."""

    status: Status
    why: str


@dataclass(frozen=True, slots=True)
class Effect:
    """A number with its interval, from whatever it was estimated."""

    mean: float
    low: float | None
    high: float | None
    n: int


Estimate = Mean | Difference | Effect


def above(effect: Estimate, limit: float, what: str, unit: Unit = "points") -> Decision:
    """The claim that the effect is above a limit.

    >>> above(Effect(0.05, 0.04, 0.06, 9), 0.03, "gain").status
    'seen'
    >>> above(Effect(0.05, 0.02, 0.08, 3), 0.03, "gain").status
    'undecided'
    >>> above(Effect(0.05, None, None, 2), 0.03, "gain").status
    'undecided'
    """
    said = f"{what} {shown(effect, unit)}, claimed above {number(limit, unit)}"
    if effect.low is None or effect.high is None:
        return Decision("undecided", f"{said}; fewer than 3 trials")
    if effect.low > limit:
        return Decision("seen", said)
    return Decision("not seen" if effect.high <= limit else "undecided", said)


def below(effect: Estimate, limit: float, what: str, unit: Unit = "points") -> Decision:
    """The claim that the effect is below a limit.

    >>> below(Effect(0.05, 0.04, 0.06, 9), 0.03, "loss").status
    'not seen'
    """
    said = f"{what} {shown(effect, unit)}, claimed below {number(limit, unit)}"
    if effect.low is None or effect.high is None:
        return Decision("undecided", f"{said}; fewer than 3 trials")
    if effect.high < limit:
        return Decision("seen", said)
    return Decision("not seen" if effect.low >= limit else "undecided", said)


def all_above(effects: Mapping[str, Difference], what: str) -> Decision:
    """The claim that every difference is above zero, corrected for their number."""
    return _together(effects, what, every=True)


def any_above(effects: Mapping[str, Difference], what: str) -> Decision:
    """The claim that at least one difference is above zero, corrected for their number.

    It is not seen only where each of them is below zero for certain.
    """
    return _together(effects, what, every=False)


def none_above(effects: Mapping[str, Difference], limit: float, what: str) -> Decision:
    """The claim that no difference is above zero for certain, and none can be above the limit."""
    certain = _certain(effects)
    said = f"{what}: {listed(effects)}"
    up = [name for name, side in certain.items() if side > 0]
    if up:
        return Decision("not seen", f"{said}; above zero: {', '.join(up)}")
    if any(effect.high is None for effect in effects.values()):
        return Decision("undecided", f"{said}; fewer than 3 trials")
    if all(effect.high is not None and effect.high < limit for effect in effects.values()):
        return Decision("seen", f"{said}; all below {number(limit)}")
    return Decision("undecided", f"{said}; up to {number(limit)} cannot be excluded")


def all_below(effects: Mapping[str, Difference], limit: float, what: str) -> Decision:
    """The claim that no effect is above a limit."""
    said = f"{what}: {listed(effects)}; claimed below {number(limit)}"
    if any(e.low is not None and e.low >= limit for e in effects.values()):
        return Decision("not seen", said)
    if any(e.high is None for e in effects.values()):
        return Decision("undecided", f"{said}; fewer than 3 trials")
    if all(e.high is not None and e.high < limit for e in effects.values()):
        return Decision("seen", said)
    return Decision("undecided", said)


def all_within(effects: Mapping[str, Difference], limit: float, what: str) -> Decision:
    """The claim that no effect is larger than a limit in either direction."""
    said = f"{what}: {listed(effects)}; claimed within +-{number(limit)}"
    known = [(e.low, e.high) for e in effects.values() if e.low is not None and e.high is not None]
    if any(low >= limit or high <= -limit for low, high in known):
        return Decision("not seen", said)
    if len(known) < len(effects):
        return Decision("undecided", f"{said}; fewer than 3 trials")
    inside = all(-limit < low and high < limit for low, high in known)
    return Decision("seen" if inside else "undecided", said)


def _together(effects: Mapping[str, Difference], what: str, *, every: bool) -> Decision:
    if not effects:
        return Decision("undecided", f"{what}: nothing to compare")
    certain = _certain(effects)
    said = f"{what}: {listed(effects)}"
    need: Callable[[Sequence[bool]], bool] = all if every else any
    ruin: Callable[[Sequence[bool]], bool] = any if every else all
    up, down = [s > 0 for s in certain.values()], [s < 0 for s in certain.values()]
    if need(up):
        return Decision("seen", said)
    if ruin(down):
        return Decision("not seen", said)
    few = any(effect.p is None for effect in effects.values())
    return Decision("undecided", said + ("; fewer than 3 trials" if few else ""))


def _certain(effects: Mapping[str, Difference]) -> dict[str, int]:
    """1 or -1 for differences that are above or below zero after Holm's correction, else 0."""
    known = {name: effect for name, effect in effects.items() if effect.p is not None}
    adjusted = holm([effect.p for effect in known.values() if effect.p is not None])
    sides = dict.fromkeys(effects, 0)
    for (name, effect), p in zip(known.items(), adjusted, strict=True):
        if p < LEVEL:
            sides[name] = 1 if effect.mean > 0 else -1
    return sides


def correlated(found: Correlation, what: str, *, sign: int = 1) -> Decision:
    """The claim that two things go together (or, with sign -1, against each other)."""
    if found.r is None or found.p is None:
        return Decision("undecided", f"{what}: not defined (n = {found.n})")
    said = f"{what}: r = {found.r:.2f}, {chance(found.p)}, n = {found.n}"
    if found.p < LEVEL:
        return Decision("seen" if found.r * sign > 0 else "not seen", said)
    return Decision("undecided", said)


def proportion(right: float, n: int) -> Effect:
    """A share of n independent cases with its Wilson interval.

    >>> effect = proportion(0.8, 100)
    >>> round(effect.low, 3), round(effect.high, 3)
    (0.711, 0.867)
    """
    z = 1.959963984540054
    centre = (right + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(right * (1 - right) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return Effect(right, max(0.0, centre - half), min(1.0, centre + half), n)


def apart(first: Effect, second: Effect) -> Effect:
    """The difference of two shares; its interval by Newcombe's rule from theirs."""
    mean = first.mean - second.mean
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return Effect(mean, None, None, min(first.n, second.n))
    down = math.hypot(first.mean - first.low, second.high - second.mean)
    up = math.hypot(first.high - first.mean, second.mean - second.low)
    return Effect(mean, mean - down, mean + up, min(first.n, second.n))


def welch(first: Sequence[float], second: Sequence[float]) -> Difference:
    """The difference of two means whose trials do not belong together in pairs."""
    from scipy.stats import ttest_ind

    from restack.stats import mean_interval

    a, b = mean_interval(first), mean_interval(second)
    mean = a.mean - b.mean
    if min(a.n, b.n) < 3:
        return Difference(mean, None, None, None, min(a.n, b.n))
    if not a.std and not b.std:
        return Difference(mean, mean, mean, float(mean == 0), min(a.n, b.n))
    test = ttest_ind(first, second, equal_var=False)
    low, high = test.confidence_interval(1 - LEVEL)
    return Difference(mean, float(low), float(high), float(test.pvalue), min(a.n, b.n))


def shown(effect: Estimate, unit: Unit = "points") -> str:
    """An effect in words.

    >>> shown(Effect(0.013, 0.002, 0.024, 9)), shown(Effect(0.5, None, None, 1), "%")
    ('+1.30 [0.20, 2.40] points (n = 9)', '50.0% (n = 1)')
    """
    said = bare(effect, unit)
    return f"{said} points (n = {effect.n:,})" if unit == "points" else f"{said} (n = {effect.n:,})"


def bare(effect: Estimate, unit: Unit = "points") -> str:
    """The number of an effect and its interval, without unit and number of trials."""
    form = {"points": "+.2f", "%": ".1f", "": ".3g"}[unit]
    factor = 1 if unit == "" else 100
    text = f"{effect.mean * factor:{form}}{'%' if unit == '%' else ''}"
    if effect.low is not None and effect.high is not None:
        ends = (f"{end * factor:{form.lstrip('+')}}" for end in (effect.low, effect.high))
        text += f" [{', '.join(ends)}]"
    return text


def listed(effects: Mapping[str, Difference]) -> str:
    """Several effects in words; what is the same for all of them is said once.

    >>> one = Difference(0.01, None, None, None, 1)
    >>> listed({"at 2": one, "at 4": one}), listed({"at 2": one})
    ('at 2 +1.00; at 4 +1.00 points (n = 1 each)', 'at 2 +1.00 points (n = 1)')
    """
    trials = {effect.n for effect in effects.values()}
    if len(effects) == 1 or len(trials) > 1:
        return "; ".join(f"{name} {shown(effect)}" for name, effect in effects.items())
    short = (f"{name} {bare(effect)}" for name, effect in effects.items())
    return f"{'; '.join(short)} points (n = {trials.pop():,} each)"


def chance(p: float) -> str:
    """A p value in words.

    >>> chance(0.364), chance(0.0)
    ('p = 0.36', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def number(value: float, unit: Unit = "points") -> str:
    """A limit in words.

    >>> number(0.01), number(0.8, "%"), number(0.0)
    ('1 point', '80%', '0 points')
    """
    if unit == "":
        return f"{value:g}"
    said = f"{value * 100:g}"
    if unit == "%":
        return f"{said}%"
    return f"{said} point{'' if said == '1' else 's'}"
