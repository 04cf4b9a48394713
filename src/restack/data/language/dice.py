"""Random choices that are the same everywhere, for ever.

Of Python's random numbers only `random()` is promised to stay as it is, so all is made of it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Choices that follow from what the dice were seeded with."""

    def __init__(self, *seed: str | int) -> None:
        self._next = random.Random("/".join(map(str, seed))).random

    def chance(self, part: float) -> bool:
        return self._next() < part

    def below(self, count: int) -> int:
        return int(self._next() * count)

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._next() * len(items))]

    def often(self, items: Sequence[T]) -> T:
        """The first items more often than the last ones, about as words are in a language."""
        at = self._next()
        return items[int(len(items) * at * at * at)]

    def weighed(self, items: Sequence[tuple[T, float]]) -> T:
        sums = list(accumulate(weight for _, weight in items))
        at = self._next() * sums[-1]
        return next(item for (item, _), total in zip(items, sums, strict=True) if at < total)

    def some(self, items: Sequence[T], count: int) -> list[T]:
        """So many different items, in random order."""
        left = list(items)
        return [left.pop(int(self._next() * len(left))) for _ in range(count)]
