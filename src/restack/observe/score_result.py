"""What measures say of layers and blocks, which of them can go, and whether the measures agree."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from restack import stats
from restack.data.metrics import LOWER_IS_BETTER
from restack.errors import DataError, PlanError
from restack.observe.reading import Anchor
from restack.plan import Plan, drop, drop_by_score
from restack.stats import Correlation

if TYPE_CHECKING:
    from rich.console import RenderableType

Row = Mapping[str, float | None]
Span = tuple[int, int]
"""The first layer of a block, and their number."""

# Measures of which a high value says that layers do little. Of all others a low one does: of what
# the loss gains without them, and of metrics that are the better the lower they are.
ALIKE = frozenset({"cls_cosine", "token_cosine", "cka"})
INCREASE = "_increase"  # ends the name of what a metric gains if layers are left out
STATE_MEASURES = (
    *("cls_cosine", "token_cosine", "block_influence", "angular_distance", "relative_update"),
    "cka",
)


def high_is_dispensable(measure: str) -> bool:
    """Whether a high value of this measure says that layers can be left out.

    >>> high_is_dispensable("cls_cosine"), high_is_dispensable("block_influence")
    (True, False)
    >>> high_is_dispensable("loss_increase"), high_is_dispensable("accuracy_increase")
    (False, True)
    """
    if measure.endswith(INCREASE):
        return measure.removesuffix(INCREASE) not in LOWER_IS_BETTER
    return measure in ALIKE


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """The measures of every layer of a stack, and of blocks of consecutive layers."""

    model: str
    stack: str
    texts: int
    tokens: int
    anchor: Anchor
    """Which real token stands for a text in `cls_cosine`."""
    angles_over: str
    """What `angular_distance` is the mean over: `anchors` (Gromov et al.) or all `tokens`."""
    loss: str | None
    """What `taylor` and the increases are about; None where neither was measured."""
    whole: Row
    """The loss and the metrics of the whole stack."""
    layers: tuple[Row, ...]
    blocks: Mapping[Span, Row]
    cka: Mapping[tuple[int, int], float | None]
    """Debiased linear CKA between states; 0 is what enters layer 0."""
    zero_norms: tuple[int, ...]
    """Tokens of each state that are all zeros, and were left out of its cosines."""
    fallback: str | None
    """Why models were rebuilt to leave layers out; None where none was."""
    notes: tuple[str, ...] = ()
    """What could not be measured, and why."""

    @property
    def depth(self) -> int:
        return len(self.layers)

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures that have values, in their order."""
        known = dict.fromkeys(name for row in self.layers for name in row)
        return tuple(name for name in known if any(v is not None for v in self.column(name)))

    def column(self, measure: str) -> list[float | None]:
        """One measure of all layers."""
        return [layer.get(measure) for layer in self.layers]

    def agreement(self) -> dict[tuple[str, str], Correlation]:
        """Spearman's correlation of what measures say of the layers, for each pair of them.

        Measures are turned so that 1 means the same order from dispensable to needed.
        """
        return {(a, b): _correlation(self, a, b) for a in self.measures for b in self.measures}

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        agreement = self.agreement()
        states = range(self.depth + 1)
        return {
            "model": self.model,
            "stack": self.stack,
            "texts": self.texts,
            "tokens": self.tokens,
            "anchor": self.anchor,
            "angles_over": self.angles_over,
            "loss": self.loss,
            "whole": dict(self.whole),
            "layers": [{"layer": i, **row} for i, row in enumerate(self.layers)],
            "blocks": [{"start": i, "length": n, **row} for (i, n), row in self.blocks.items()],
            "cka": [[self.cka.get((min(i, j), max(i, j))) for j in states] for i in states]
            if self.cka
            else None,
            "agreement": {
                "measures": list(self.measures),
                "spearman": [[agreement[a, b].r for b in self.measures] for a in self.measures],
            },
            "zero_norms": list(self.zero_norms),
            "fallback": self.fallback,
            "notes": list(self.notes),
        }

    def __rich__(self) -> RenderableType:
        from restack.observe.showing import score_tables

        return score_tables(self)


def _correlation(result: ScoreResult, a: str, b: str) -> Correlation:
    """Over the layers that have both values."""
    pairs = [
        (x, y)
        for x, y in zip(_turned(result, a), _turned(result, b), strict=True)
        if x is not None and y is not None
    ]
    if not pairs:
        return Correlation(None, None, 0)
    return stats.spearman(*zip(*pairs, strict=True))


def _turned(result: ScoreResult, measure: str) -> list[float | None]:
    """The values of layers, turned so that the dispensable ones are the highest."""
    sign = 1 if high_is_dispensable(measure) else -1
    return [None if value is None else sign * value for value in result.column(measure)]


def plan_from(
    result: ScoreResult,
    measure: str,
    *,
    above: float | None = None,
    below: float | None = None,
    count: int | None = None,
    block: int | None = None,
) -> Plan:
    """Leave out the layers that a measure finds dispensable.

    All beyond a threshold - `above` or `below`, by which end of the measure means dispensable - or
    the `count` most dispensable ones, or the most dispensable `block` of so many consecutive
    layers. Among equals the upper ones go.
    """
    check_choice(result.depth, measure, above=above, below=below, count=count, block=block)
    if measure not in result.measures:
        raise DataError(
            f"{measure!r} was not measured", hint=f"Measured: {', '.join(result.measures)}."
        )
    if block is not None:
        return _without_block(result, measure, block)
    turned = _turned(result, measure)
    unknown = [i for i, value in enumerate(turned) if value is None]
    if count is not None and count > result.depth - len(unknown):
        raise PlanError(
            f"{count} layers cannot go by {measure}, which is not known of {unknown}",
            hint="Ask for fewer, or take another measure.",
        )
    # layers of which nothing is known stay
    scores = [-sys.float_info.max if value is None else value for value in turned]
    limit = -below if below is not None else above
    return drop_by_score(result.depth, scores, above=limit, count=count)


def check_choice(
    depth: int,
    measure: str,
    *,
    above: float | None = None,
    below: float | None = None,
    count: int | None = None,
    block: int | None = None,
) -> None:
    """Refuse what `plan_from` could not do, before anything is measured."""
    given = {"above": above, "below": below, "count": count, "block": block}
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise PlanError(f"expected exactly one of {', '.join(given)}, found {len(chosen)} of them")
    [how] = chosen
    high = high_is_dispensable(measure)
    if how in ("above", "below") and (how == "above") != high:
        right = "above" if high else "below"
        raise PlanError(
            f"a {'high' if high else 'low'} {measure} is what marks a layer as dispensable, so "
            f"`{how}` would leave out those that are needed",
            hint=f"Give `{right}`.",
        )
    if (number := count or block) is not None and number >= depth:
        raise PlanError(
            f"{number} of {depth} layers cannot go", hint="A stack needs at least one layer."
        )


def _without_block(result: ScoreResult, measure: str, length: int) -> Plan:
    rows = {start: row.get(measure) for (start, n), row in result.blocks.items() if n == length}
    known = {start: value for start, value in rows.items() if value is not None}
    if not known:
        lengths = sorted({n for _, n in result.blocks})
        raise DataError(
            f"no block of {length} layers has a {measure}",
            hint=f"Measured blocks have {', '.join(map(str, lengths))} layers.",
        )
    sign = 1 if high_is_dispensable(measure) else -1
    start = max(known, key=lambda start: (sign * known[start], start))
    return drop(result.depth, range(start, start + length))
