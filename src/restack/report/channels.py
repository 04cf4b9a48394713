"""Where things stand in a chart and in which colour: channels that all kinds of figures share.

A place is a channel of altair with its axis and scale set, waiting for the field:
`x = numbers(alt.X, ...)`, then `x("low:Q")`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from restack.report import words
from restack.report.rows import Row, names, panels
from restack.report.theme import SERIES
from restack.studies.findings import Axis, Figure

Place = Callable[..., Any]

MARKED = ("point", "paper")
_SHAPES = ("diamond", "triangle-up", "square", "triangle-down", "triangle-right")


def numbers(
    channel: Any, axis: Axis, values: Sequence[float], alt: Any, *, zero: bool = False
) -> Place:
    """A scale of numbers that holds `values`, or the domain of the axis."""
    scale: dict[str, Any] = {"zero": zero, "nice": axis.kind != "layer"}
    if axis.log:
        scale = {"type": "log", "nice": False}
    if axis.kind == "layer":
        scale["padding"] = 10
    if axis.domain:
        scale |= {"domain": list(axis.domain), "nice": False}
    ticks: dict[str, Any] = {"title": words.axis_title(axis), "format": tick_format(axis, values)}
    whole = axis.unit != "%" and all(float(value).is_integer() for value in values)
    if axis.kind == "layer" or whole:
        ticks["tickMinStep"] = 1
    if axis.kind != "layer" and not axis.log:
        ticks["tickCount"] = 5
    return partial(channel, scale=alt.Scale(**scale), axis=alt.Axis(**ticks))


def categories(
    channel: Any, field: str, axis: Axis, data: list[Row], alt: Any, *, upwards: bool = False
) -> Place:
    """Categories in the order of the axis and then as they come; numbers in their own order."""
    found = dict.fromkeys(row[field] for row in data if row["part"] in (*MARKED, "cell"))
    given = [name for name in axis.order if name in found]
    rest = [value for value in found if value not in given]
    if not any(isinstance(value, str) for value in rest):
        rest.sort(reverse=upwards)
    labels: dict[str, Any] = {"title": words.axis_title(axis), "grid": False, "ticks": False}
    # a category that has no name cannot be told from its neighbours; of many numbers some will do
    labels["labelOverlap"] = len(found) > 16
    if channel is alt.X:
        longest = max((len(str(value)) for value in found), default=0)
        labels["labelAngle"] = -40 if longest > 4 and len(found) * longest > 24 else 0
    return partial(channel, sort=[*given, *rest], axis=alt.Axis(**labels))


def tick_format(axis: Axis, values: Sequence[float]) -> str:
    """How the ticks are printed: percentages with a digit only where they lie close together."""
    if axis.unit == "%":
        low, high = axis.domain or (min(values, default=0), max(values, default=1))
        return ".0%" if high - low > 0.04 else ".1%"
    return "d" if axis.kind == "layer" else "~g" if axis.log else ",~r"


def colour(figure: Figure, alt: Any) -> Any:
    """A colour for each measured series and grey for the published; a legend if it needs one."""
    ours, domain = _series(figure)
    count = 1 if _panels_say_it(figure) else len(SERIES["light"])
    tones = [f"@series{place % count}" for place in range(len(ours))]
    tones += ["@paper"] * (len(domain) - len(ours))
    scale = alt.Scale(domain=domain, range=tones)
    return alt.Color("series:N", scale=scale, sort=None, legend=_legend(figure, alt))


def shape(figure: Figure, alt: Any) -> Any:
    """Discs for the measured series, other shapes for the published ones."""
    ours, domain = _series(figure)
    shapes = ["circle"] * len(ours)
    shapes += [_SHAPES[place % len(_SHAPES)] for place in range(len(domain) - len(ours))]
    scale = alt.Scale(domain=domain, range=shapes)
    return alt.Shape("series:N", scale=scale, sort=None, legend=_legend(figure, alt))


def _series(figure: Figure) -> tuple[list[str], list[str]]:
    """The names of the measured series, and of all."""
    ours = list(names(figure, published=False))
    paper = names(figure, published=True)
    return ours, [*ours, *(name for name in paper if name not in ours)]


def _panels_say_it(figure: Figure) -> bool:
    ours, domain = _series(figure)
    return ours == domain == list(panels(figure))


def _legend(figure: Figure, alt: Any) -> Any:
    if len(_series(figure)[1]) < 2 or _panels_say_it(figure):
        return None
    # alike for colour and shape, so that the two are merged; opaque, or the bands make it faint
    return alt.Legend(title=None, symbolOpacity=1)
