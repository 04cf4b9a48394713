"""A figure as flat rows for a chart, each with the words that are said when one points at it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from restack.report import words
from restack.studies.findings import Axis, Cell, Figure, Point, Rule, Series

Row = dict[str, Any]

_MOST_COLOURS = 6
_GRID = 120  # places at which a density is computed


def panels(figure: Figure) -> tuple[str, ...]:
    """The small panels in their order; one without a name if there is no division."""
    parts = figure.cells if figure.kind == "heatmap" else spread_out(figure)
    return tuple(dict.fromkeys(part.facet for part in parts)) or ("",)


def names(figure: Figure, *, published: bool) -> tuple[str, ...]:
    """The names of series, measured or published, in the order in which they come."""
    return tuple(dict.fromkeys(s.name for s in spread_out(figure) if s.published == published))


def spread_out(figure: Figure) -> tuple[Series, ...]:
    """The series; more than can be told apart by colour get a panel each, and one colour."""
    ours = dict.fromkeys(s.name for s in figure.series if not s.published)
    if len(ours) <= _MOST_COLOURS or any(s.facet for s in figure.series):
        return figure.series
    alone = [Series("here", s.points, facet=s.name) for s in figure.series if not s.published]
    paper = [
        Series(s.name, s.points, True, name) for s in figure.series if s.published for name in ours
    ]
    return (*alone, *paper)


def rows(figure: Figure) -> list[Row]:
    """All rows of a figure; `part` says what each is: point, paper, rule, cell or tick."""
    if figure.kind == "heatmap":
        return [_cell(figure, cell) for cell in figure.cells]
    if figure.kind == "density":
        found = [row for series in spread_out(figure) for row in _density(figure, series)]
    else:
        found = [
            _point(figure, series, point)
            for series in spread_out(figure)
            for point in series.points
        ]
    rules = [
        _rule(figure, rule, name)
        for rule in sorted(figure.rules, key=lambda rule: rule.value)
        for name in _in_panels(figure, rule)
    ]
    seen: dict[tuple[str, str], int] = {}
    for row in rules:  # neighbours have their names at two heights, so that these do not touch
        place = row["panel"], row["part"]
        seen[place] = seen.get(place, 0) + 1
        row[row.pop("side") + (" raised" if seen[place] % 2 == 0 else "")] = True
    return found + rules


def few_trials(figure: Figure) -> bool:
    """Whether some points stand without an interval because they are of one or two trials."""
    return any(_few(s, p) for s in figure.series for p in s.points)


def marks(figure: Figure) -> list[str]:
    """What the marks of a figure mean that its legend does not say."""
    found = []
    if figure.kind != "density" and few_trials(figure):
        found.append("Open marks: fewer than three trials, so no interval.")
    if names(figure, published=True):
        found.append("Grey marks: published.")
    return found


def _few(series: Series, point: Point) -> bool:
    return not series.published and 0 < point.n < 3


def _point(figure: Figure, series: Series, point: Point) -> Row:
    return {
        "part": "paper" if series.published else "point",
        "panel": series.facet,
        "series": series.name,
        "x": point.x,
        "y": point.y,
        "low": point.low,
        "high": point.high,
        "few": True if _few(series, point) else None,
        "said": _said(figure, series, point),
    }


def _said(figure: Figure, series: Series, point: Point) -> str:
    x, y = figure.x, figure.y
    digits = 2 if y.unit == "%" else None
    lines = [" · ".join(filter(None, (series.name, series.facet)))]
    lines.append(f"{_short(x)}: {_value(point.x, x)}")
    value = f"{_short(y)}: {words.with_unit(point.y, y.unit, digits)}"
    if point.low is not None and point.high is not None:
        low, high = (words.with_unit(v, y.unit, digits) for v in (point.low, point.high))
        value += f"\n95%: {low} to {high}"
    lines.append(value)
    if series.published:
        lines.append("published")
    elif point.n:
        lines.append(f"{point.n} trial{'s' if point.n > 1 else ''}")
    if point.label:
        lines.append(point.label)
    return "\n".join(lines)


def _short(axis: Axis) -> str:
    """An axis label without its explanation in brackets."""
    return axis.label.partition(" (")[0]


def _value(value: float | str, axis: Axis) -> str:
    return value if isinstance(value, str) else words.with_unit(value, axis.unit)


def _in_panels(figure: Figure, rule: Rule) -> tuple[str, ...]:
    everywhere = panels(figure)
    return everywhere if not rule.facet else tuple(p for p in everywhere if p == rule.facet)


def _rule(figure: Figure, rule: Rule, panel: str) -> Row:
    axis = figure.x if rule.axis == "x" else figure.y
    digits = 2 if axis.unit == "%" else None
    low, high = axis.domain or _reach(figure, rule.axis)
    return {
        "part": f"rule {rule.axis}",
        "panel": panel,
        rule.axis: rule.value,
        "name": rule.name,
        # of an upright line, the side on which its name does not run out of the panel
        "side": "right" if rule.value > (low + high) / 2 else "left",
        "said": f"{rule.name}: {words.with_unit(rule.value, axis.unit, digits)}"
        + ("\npublished" if rule.published else ""),
    }


def _reach(figure: Figure, axis: str) -> tuple[float, float]:
    values = [p.x if axis == "x" else p.y for series in figure.series for p in series.points]
    found = [value for value in values if not isinstance(value, str)]
    return min(found, default=0.0), max(found, default=0.0)


def _cell(figure: Figure, cell: Cell) -> Row:
    colour = figure.colour or Axis("value")
    value = "not measured" if cell.value is None else words.with_unit(cell.value, colour.unit)
    places = f"{_short(figure.x)}: {cell.x}\n{_short(figure.y)}: {cell.y}"
    lines = (cell.facet, places, f"{colour.label}: {value}", cell.label)
    return {
        "part": "cell",
        "panel": cell.facet,
        "x": cell.x,
        "y": cell.y,
        "value": cell.value,
        "said": "\n".join(filter(None, lines)),
    }


def _density(figure: Figure, series: Series) -> Iterator[Row]:
    """A tick for each value and, from three different ones on, a curve of their density."""
    values = [float(point.x) for point in series.points]
    common = {"panel": series.facet, "series": series.name}
    for point, value in zip(series.points, values, strict=True):
        said = [series.name, words.with_unit(value, figure.x.unit), point.label]
        yield {"part": "tick", "x": value, "said": "\n".join(filter(None, said)), **common}
    if len(set(values)) < 3:
        return
    import numpy as np
    from scipy.stats import gaussian_kde

    kernel = gaussian_kde(values)
    # three widths beyond the values, where the curve has come down, but not beyond what can be
    reach = 3 * float(np.sqrt(kernel.covariance[0, 0]))
    low, high = min(values) - reach, max(values) + reach
    if figure.x.domain:
        low, high = max(low, figure.x.domain[0]), min(high, figure.x.domain[1])
    part = "paper" if series.published else "point"
    for x, y in zip(grid := np.linspace(low, high, _GRID), kernel(grid), strict=True):
        yield {"part": part, "x": round(float(x), 6), "y": round(float(y), 6), **common}
