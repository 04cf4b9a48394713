"""The verbs: every strategy by which layers are left out, repeated, reordered or made fresh.

Each is a pure function from the depth of a stack to a plan. The papers count layers from 1; here
and in everything that is printed they count from 0.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from restack.errors import PlanError
from restack.plan.plan import MAX_SLOTS, Mark, Plan, Slot, checked_depth, whole_number


def drop(
    depth: int,
    layers: Iterable[int] | None = None,
    *,
    top: int | None = None,
    bottom: int | None = None,
    even: int | None = None,
    odd: int | None = None,
    symmetric: int | None = None,
) -> Plan:
    """Leave layers out: the given ones, or so many by one of the rules of Sajjad et al.

    `even` and `odd` leave out every other layer from the top down. Even and odd are meant as in
    the paper, which counts from 1, so `even` always begins at layer 1, 3, 5... as counted here.
    `symmetric` leaves out the middle and keeps equally many at both ends.

    >>> print(drop(12, top=6), drop(12, bottom=4), drop(12, [0, 3]), sep=" | ")
    0-5 | 4-11 | 1-2,4-11
    >>> drop(12, even=4).gone, drop(12, odd=4).gone, drop(12, symmetric=6).gone
    ((5, 7, 9, 11), (4, 6, 8, 10), (3, 4, 5, 6, 7, 8))
    """
    all_layers = range(checked_depth(depth))
    how, value = _only_one(
        "drop", layers=layers, top=top, bottom=bottom, even=even, odd=odd, symmetric=symmetric
    )
    if how == "layers":
        return _without("drop", depth, _named("drop", depth, value))
    pool = {"even": all_layers[1::2], "odd": all_layers[0::2]}.get(how, all_layers)
    count = _number("drop", how, value, 0, len(pool))
    if how == "symmetric":
        kept, uneven = divmod(depth - count, 2)
        if uneven:
            raise PlanError(
                f"drop: symmetric={count} of {depth} layers leaves {depth - count}, "
                "which cannot be halved",
                hint=f"take {count - 1 if count else 1} or {count + 1}",
            )
        return _without("drop", depth, pool[kept : depth - kept])
    if how == "bottom":
        return _without("drop", depth, pool[:count])
    return _without("drop", depth, pool[len(pool) - count :])


def drop_by_score(
    depth: int, scores: Sequence[float], *, above: float | None = None, count: int | None = None
) -> Plan:
    """Leave out the layers that contribute least, in the sense of Sajjad et al.

    A score tells how alike a layer's input and output are (there: the mean cosine over the CLS
    token). Either all layers that score more than `above` go, or the `count` highest; among equal
    scores the upper layer goes first.

    >>> drop_by_score(4, [0.5, 0.96, 0.91, 0.94], above=0.925).gone
    (1, 3)
    >>> drop_by_score(4, [0.5, 0.96, 0.91, 0.94], count=3).gone
    (1, 2, 3)
    """
    checked_depth(depth)
    values = [float(score) for score in scores]
    if len(values) != depth:
        raise PlanError(
            f"drop: {len(values)} scores for {depth} layers",
            hint="give one score a layer, measured on this very stack",
        )
    if not all(map(math.isfinite, values)):
        raise PlanError("drop: the scores hold a value that is not a finite number")
    how, value = _only_one("drop by score", above=above, count=count)
    if how == "above":
        limit = float(value)
        if math.isnan(limit):
            raise PlanError("drop: above=nan is not a number")
        return _without("drop", depth, [i for i in range(depth) if values[i] > limit])
    most_alike = sorted(range(depth), key=lambda layer: (values[layer], layer), reverse=True)
    return _without("drop", depth, most_alike[: _number("drop", "count", value, 0, depth)])


def duplicate(
    depth: int,
    layers: Iterable[int] | Mapping[int, int] | None = None,
    *,
    first: int | None = None,
    last: int | None = None,
    to: int | None = None,
    each: bool = False,
) -> Plan:
    """Repeat layers right behind themselves, each once unless told otherwise.

    `to` is the rule of Kao et al.: from N to K layers, the first K-N are repeated once each.
    `layers` may map a layer to the number of times that it stands in all.

    >>> print(duplicate(12, to=15), duplicate(12, last=2), duplicate(12, [3, 5]), sep=" | ")
    0-2x2,3-11 | 0-9,10-11x2 | 0-2,3x2,4,5x2,6-11
    >>> print(duplicate(12, {5: 4}))
    0-4,5x4,6-11
    """
    all_layers = range(checked_depth(depth))
    how, value = _only_one(
        "duplicate", layers=layers, first=first, last=last, to=to, each=each or None
    )
    if how == "layers":
        times = dict(value) if isinstance(value, Mapping) else dict.fromkeys(value, 2)
        _named("duplicate", depth, value)
        for n in times.values():
            _number("duplicate", "times", n, 1, MAX_SLOTS)
    elif how == "each":
        times = dict.fromkeys(all_layers, 2)
    elif how == "last":
        times = dict.fromkeys(all_layers[depth - _number("duplicate", how, value, 0, depth) :], 2)
    else:
        low = depth if how == "to" else 0
        times = dict.fromkeys(
            all_layers[: _number("duplicate", how, value, low, low + depth) - low], 2
        )
    if depth + sum(times.values()) - len(times) > MAX_SLOTS:
        raise PlanError(f"duplicate: more than {MAX_SLOTS} slots")
    return Plan.of(depth, (layer for layer in all_layers for _ in range(times.get(layer, 1))))


def repeat(depth: int, to: int) -> Plan:
    """Run through the stack again and again until there are `to` layers, as a deeper ALBERT does.

    >>> print(repeat(3, 8))
    0-2,0-2,0-1
    """
    checked_depth(depth)
    return Plan.of(depth, (i % depth for i in range(_number("repeat", "", to, 1, MAX_SLOTS))))


def reverse(depth: int) -> Plan:
    """Turn the stack upside down.

    >>> print(reverse(12))
    11-0
    """
    return Plan.of(depth, reversed(range(checked_depth(depth))))


def swap(depth: int, a: int, b: int) -> Plan:
    """Let two layers change places.

    >>> print(swap(12, 3, 7))
    0-2,7,4-6,3,8-11
    """
    order = list(range(checked_depth(depth)))
    a, b = _named("swap", depth, (a, b))
    order[a], order[b] = order[b], order[a]
    return Plan.of(depth, order)


def permute(depth: int, seed: int) -> Plan:
    """Shuffle the layers; the same seed and depth give the same order, everywhere and always.

    >>> print(permute(6, seed=7))
    2,5-4,1,3,0
    """
    order = list(range(checked_depth(depth)))
    seed = _number("permute", "seed", seed, 0, None)
    # Fisher-Yates over SHA-256: Python promises only that random() keeps its sequence,
    # and a permutation that names a published trial must not hang on the interpreter.
    for last in range(depth - 1, 0, -1):
        digest = hashlib.sha256(f"permute {seed} {last}".encode()).digest()
        other = int.from_bytes(digest, "big") % (last + 1)
        order[last], order[other] = order[other], order[last]
    return Plan.of(depth, order)


def reinit(depth: int, layers: Iterable[int] | None = None, *, after: int | None = None) -> Plan:
    """Give fresh weights to the given layers, or to all that come after the first `after`.

    `after` is the k of Tamkin et al.: 0 makes every layer fresh, the depth itself none.

    >>> print(reinit(12, after=9), reinit(12, [3, 4, 5]), sep=" | ")
    0-8,9-11@fresh | 0-2,3-5@fresh,6-11
    """
    all_layers = range(checked_depth(depth))
    how, value = _only_one("reinit", layers=layers, after=after)
    if how == "layers":
        return _marked(depth, _named("reinit", depth, value), Mark.FRESH)
    return _marked(depth, all_layers[_number("reinit", "after", value, 0, depth) :], Mark.FRESH)


def keep(depth: int, layers: Iterable[int]) -> Plan:
    """Keep the weights of the given layers and make all others fresh.

    >>> print(keep(12, [3, 4, 5]))
    0-2@fresh,3-5,6-11@fresh
    """
    kept = _named("keep", depth, layers)
    return _marked(depth, set(range(depth)) - set(kept), Mark.FRESH)


def noop(depth: int, layers: Iterable[int]) -> Plan:
    """Switch the given layers off where they stand, without changing the depth.

    >>> print(noop(12, [3, 4]))
    0-2,3-4@noop,5-11
    """
    return _marked(depth, _named("noop", depth, layers), Mark.NOOP)


def expand(depth: int, every: int) -> Plan:
    """Put a no-op copy behind every so many layers, as LLaMA-Pro does, to train only those.

    A group left unfinished at the top gets none.

    >>> print(expand(8, every=4))
    0-3,3@noop,4-7,7@noop
    """
    every = _number("expand", "every", every, 1, checked_depth(depth))
    slots: list[Slot] = []
    for layer in range(depth):
        slots.append(Slot(layer))
        if (layer + 1) % every == 0:
            slots.append(Slot(layer, Mark.NOOP))
    return Plan(depth, tuple(slots))


def upscale(depth: int, to: int) -> Plan:
    """Overlap two copies of the stack, as SOLAR does: the first and the last `to`/2 layers.

    Of an odd number the lower part gets one layer more.

    >>> print(upscale(32, 48), upscale(12, 15), sep=" | ")
    0-23,8-31 | 0-7,5-11
    """
    checked_depth(depth)
    upper = _number("upscale", "", to, depth, 2 * depth) // 2
    return Plan.of(depth, [*range(to - upper), *range(depth - upper, depth)])


def _marked(depth: int, layers: Iterable[int], mark: Mark) -> Plan:
    chosen = set(layers)
    return Plan(depth, tuple(Slot(i, mark) if i in chosen else Slot(i) for i in range(depth)))


def _without(verb: str, depth: int, layers: Iterable[int]) -> Plan:
    gone = set(layers)
    if len(gone) == depth:
        raise PlanError(f"{verb}: no layer is left", hint="a stack needs at least one layer")
    return Plan.of(depth, (layer for layer in range(depth) if layer not in gone))


def _named(verb: str, depth: int, layers: Iterable[int]) -> tuple[int, ...]:
    """The given layers, each of them there and none of them twice."""
    checked_depth(depth)
    seen: dict[int, None] = {}
    for layer in layers:
        layer = Slot(layer).source
        if layer >= depth:
            raise PlanError(f"{verb}: layer {layer} is not there; the layers are 0..{depth - 1}")
        if layer in seen:
            raise PlanError(f"{verb}: layer {layer} is named twice")
        seen[layer] = None
    if not seen:
        raise PlanError(f"{verb}: no layer is named")
    return tuple(seen)


def _number(verb: str, what: str, value: Any, low: int, high: int | None) -> int:
    number = whole_number(value, f"a number that {verb} can take")
    if number < low or (high is not None and number > high):
        given = f"{what}={number}" if what else f"{number}"
        expected = f"{low}..{high}" if high is not None else f"a whole number from {low}"
        raise PlanError(f"{verb}: {given} is out of range: expected {expected}")
    return number


def _only_one(verb: str, **options: Any) -> tuple[str, Any]:
    given = [(name, value) for name, value in options.items() if value is not None]
    if len(given) != 1:
        names = ", ".join(options)
        raise PlanError(f"{verb}: expected exactly one of {names}, found {len(given)} of them")
    return given[0]
