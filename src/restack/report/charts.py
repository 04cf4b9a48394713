"""Figures as specifications of Vega-Lite, one for each kind, all from the same few layers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from restack.errors import RestackError
from restack.report import words
from restack.report.channels import (
    MARKED,
    Place,
    categories,
    colour,
    numbers,
    shape,
    tick_format,
)
from restack.report.rows import Row, names, panels, rows
from restack.report.theme import Spec
from restack.studies.findings import Figure

WIDTH = 720
_HEIGHT = 280
_PANEL_HEIGHT = 190
_ROW = 24  # the height of a row of dots
_COLUMNS = 3
# shown when one points at a mark, and read out to those who do not see it
_SAID = {"tooltip": "said:N", "description": "said:N"}


def chart(figure: Figure, width: int = WIDTH) -> Spec:
    """The specification of a figure, in names of colours (see `theme.paint`).

    Whoever shows it in another place sets the widths again, as `fit` does.
    """
    alt = altair()
    build = {
        "curve": _curve,
        "bars": _bars,
        "dots": _dots,
        "density": _density,
        "heatmap": _heatmap,
    }[figure.kind]
    data = rows(figure)
    several = panels(figure) != ("",)
    made = alt.layer(*build(figure, data, alt))
    made = made.properties(height=_height(figure, data, several))
    if several:
        facet = alt.Facet("panel:N", sort=list(panels(figure)), header=alt.Header(title=None))
        made = made.facet(facet, columns=_COLUMNS, data=alt.NamedData("rows"), spacing=22)
        made = made.resolve_axis(x="independent")  # else only the lowest panels have one
    else:
        made = made.properties(data=alt.NamedData("rows"))
    spec: Spec = made.properties(description=_description(figure)).to_dict()
    del spec["config"]  # that of altair; ours is in the theme
    return fit({**spec, "datasets": {"rows": data}}, width)


def altair() -> Any:
    """The library, or how to get it."""
    try:
        import altair
        import vl_convert  # noqa: F401 - whoever draws needs both
    except ImportError as error:
        raise RestackError(
            "charts need altair and vl-convert", hint="pip install 'restack[report]'"
        ) from error
    return altair


def fit(spec: Spec, width: int) -> Spec:
    """The specification for a width in pixels: fewer panels side by side where it is small."""
    if "facet" not in spec:
        return {**spec, "width": width, "autosize": {"type": "fit-x", "contains": "padding"}}
    count = len({row["panel"] for row in spec["datasets"]["rows"]})
    columns = max(1, min(_COLUMNS, count, (width - 50) // 200))
    inner = (width - 70 - (columns - 1) * 26) // columns
    return {**spec, "columns": columns, "spec": {**spec["spec"], "width": max(120, inner)}}


def _description(figure: Figure) -> str:
    return ". ".join(filter(None, (figure.title, figure.note)))


def _height(figure: Figure, data: list[Row], several: bool) -> int:
    if figure.kind == "dots" and _by_category(figure):
        return _ROW * max(2, len({str(row["x"]) for row in data if row["part"] in MARKED}))
    if figure.kind == "heatmap":
        return max(_PANEL_HEIGHT, min(420, 24 * len({row["y"] for row in data})))
    return _PANEL_HEIGHT if several else _HEIGHT


# --- the kinds ----------------------------------------------------------------------------------


def _curve(figure: Figure, data: list[Row], alt: Any) -> list[Any]:
    layer = partial(_layer, data, alt)
    x = numbers(alt.X, figure.x, _values(data, "x"), alt)
    y = numbers(alt.Y, figure.y, _values(data, "y", "low", "high"), alt)
    tone = colour(figure, alt)
    line = {"x": x("x:Q"), "y": y("y:Q"), "color": tone, "order": alt.Order("x:Q")}
    band = {"x": x("x:Q"), "y": y("low:Q"), "y2": "high:Q", "color": tone}
    return [
        *_rules(data, x, y, alt),
        *layer("point", "area", {"opacity": 0.16}, has="low", **band),
        *layer("paper", "line", {"strokeDash": [4, 3], "strokeWidth": 1.2}, **line),
        *layer("point", "line", {"strokeWidth": 2}, **line),
        *_points(figure, data, alt, 40, x=x("x:Q"), y=y("y:Q")),
    ]


def _bars(figure: Figure, data: list[Row], alt: Any) -> list[Any]:
    layer = partial(_layer, data, alt)
    # a bar that begins elsewhere than at zero would lie about proportions: points instead
    from_zero = figure.y.domain is None or figure.y.domain[0] <= 0 <= figure.y.domain[1]
    x = categories(alt.X, "x", figure.x, data, alt)
    y = numbers(alt.Y, figure.y, _values(data, "y", "low", "high"), alt, zero=from_zero)
    tone = colour(figure, alt)
    series = [*names(figure, published=False), *names(figure, published=True)]
    at: dict[str, Any] = {"x": x("x:O")}
    if len(series) > 1:
        at["xOffset"] = alt.XOffset("series:N", sort=series)
    ends = {"y": y("low:Q"), "y2": "high:Q", "color": alt.value("@ink") if from_zero else tone}
    bar = {"opacity": 0.85, "cornerRadiusEnd": 2}
    bars = layer("point", "bar", bar, y=y("y:Q"), color=tone, **_SAID, **at)
    return [
        *_rules(data, x, y, alt),
        *(bars if from_zero else []),
        *layer("point", "rule", {"strokeWidth": 1.6}, has="low", **ends, **at),
        *_points(figure, data, alt, 60, measured=not from_zero, y=y("y:Q"), **at),
    ]


def _dots(figure: Figure, data: list[Row], alt: Any) -> list[Any]:
    whiskers = partial(
        _layer, data, alt, "point", "rule", {"strokeWidth": 2, "opacity": 0.55}, has="low"
    )
    tone = colour(figure, alt)
    heights = _values(data, "y", "low", "high")
    if not _by_category(figure):
        x = numbers(alt.X, figure.x, _values(data, "x"), alt)
        y = numbers(alt.Y, figure.y, heights, alt)
        return [
            *_rules(data, x, y, alt),
            *whiskers(x=x("x:Q"), y=y("low:Q"), y2="high:Q", color=tone),
            *_points(figure, data, alt, 60, x=x("x:Q"), y=y("y:Q")),
        ]
    # rows: the categories of x go down, the values of y to the right
    across = numbers(alt.X, figure.y, heights, alt)
    down = categories(alt.Y, "x", figure.x, data, alt)
    at: dict[str, Any] = {"y": down("x:O")}
    ours = list(names(figure, published=False))
    if len(ours) > 1:
        at["yOffset"] = alt.YOffset("series:N", sort=ours)
    return [
        *_rules(data, across, down, alt, turned=True),
        *whiskers(x=across("low:Q"), x2="high:Q", color=tone, **at),
        *_points(figure, data, alt, 60, x=across("y:Q"), **at),
    ]


def _density(figure: Figure, data: list[Row], alt: Any) -> list[Any]:
    layer = partial(_layer, data, alt)
    x = numbers(alt.X, figure.x, _values(data, "x"), alt)
    axis = alt.Axis(title=words.axis_title(figure.y), labels=False, grid=False)
    y = alt.Y("y:Q", axis=axis, stack=None)
    at = {"x": x("x:Q"), "color": colour(figure, alt)}
    tick = {"shape": "stroke", "angle": 90, "size": 90, "strokeWidth": 1.5}
    return [
        *layer("point", "area", {"opacity": 0.2, "line": {"strokeWidth": 2}}, y=y, **at),
        *layer("paper", "line", {"strokeDash": [4, 3]}, y=y, **at),
        *layer("tick", "point", tick, y=alt.value("height"), **_SAID, **at),
        *_rules(data, x, lambda field: y, alt),
    ]


def _heatmap(figure: Figure, data: list[Row], alt: Any) -> list[Any]:
    assert figure.colour is not None  # Figure has seen to it
    layer = partial(_layer, data, alt, "cell", "rect")
    values = _values(data, "value")
    low, high = figure.colour.domain or (min(values, default=0), max(values, default=1))
    steps = [f"@step{place}" for place in range(5)]
    domain = [low + ((high - low) or 1) * place / 4 for place in range(5)]
    if figure.middle is not None:
        reach = max(abs(low - figure.middle), abs(high - figure.middle)) or 1.0
        steps = ["@below", "@neutral", "@above"]
        domain = [figure.middle - reach, figure.middle, figure.middle + reach]
    legend = alt.Legend(
        title=words.axis_title(figure.colour),
        titleFontWeight="normal",
        gradientLength=200,
        values=[domain[0], domain[len(domain) // 2], domain[-1]],
        format=tick_format(figure.colour, domain) if figure.colour.unit == "%" else ".3~g",
    )
    scale = alt.Scale(range=steps, domain=domain, interpolate="lab", clamp=True)
    at = {
        "x": categories(alt.X, "x", figure.x, data, alt)("x:O"),
        "y": categories(alt.Y, "y", figure.y, data, alt, upwards=True)("y:O"),
        **_SAID,
    }
    border = {"stroke": "@ground", "strokeWidth": 1}
    return [
        *layer({"color": "@empty", **border}, lacks="value", **at),
        *layer(border, has="value", color=alt.Color("value:Q", scale=scale, legend=legend), **at),
    ]


# --- what they share ----------------------------------------------------------------------------


def _points(
    figure: Figure, data: list[Row], alt: Any, size: int, *, measured: bool = True, **at: Any
) -> list[Any]:
    """Discs, open where there are too few trials; what is published in grey shapes."""
    layer = partial(_layer, data, alt)
    at |= {**_SAID, "color": colour(figure, alt), "shape": shape(figure, alt)}
    mark: dict[str, Any] = {"filled": True, "size": size, "opacity": 1}
    opened = {**mark, "filled": False, "fill": "@ground", "strokeWidth": 1.8}
    larger = {**mark, "size": size + 24}  # a diamond looks smaller than a disc
    return [
        *(layer("point", "point", mark, lacks="few", **at) if measured else []),
        *(layer("point", "point", opened, has="few", **at) if measured else []),
        *layer("paper", "point", larger, **at),
    ]


def _rules(data: list[Row], x: Place, y: Place, alt: Any, *, turned: bool = False) -> list[Any]:
    """Lines across the panel, each with its name at the end."""
    found = []
    for axis in ("x", "y"):
        part = f"rule {axis}"
        upright = (axis == "x") != turned
        at = {"x": x(f"{axis}:Q")} if upright else {"y": y(f"{axis}:Q")}
        end = {"y": alt.value(0)} if upright else {"x": alt.value("width")}
        line = {"color": "@rule", "strokeDash": [2, 3], "strokeWidth": 1.4}
        name: dict[str, Any] = {"color": "@muted", "fontSize": 11}
        found += _layer(data, alt, part, "rule", line, **_SAID, **at)
        said: dict[str, Any] = {"text": "name:N", **at, **end}
        if upright:  # above the panel, towards the side where there is room
            for side in ("left", "right"):
                over = {**name, "align": side, "baseline": "bottom"}
                found += _layer(data, alt, part, "text", {**over, "dy": -3}, has=side, **said)
                raised = {**over, "dy": -16}
                found += _layer(data, alt, part, "text", raised, has=f"{side} raised", **said)
        else:
            above = {**name, "align": "right", "dy": -4, "baseline": "bottom"}
            found += _layer(data, alt, part, "text", above, **said)
    return found


def _layer(
    data: list[Row],
    alt: Any,
    part: str,
    mark: str,
    settings: Mapping[str, Any],
    *,
    has: str | None = None,
    lacks: str | None = None,
    **encoding: Any,
) -> list[Any]:
    """The rows of one part as marks, or only those that have or lack a value; none if none are.

    A layer without rows would leave its scales without an extent.
    """
    rows = [row for row in data if row["part"] == part]
    made = alt.Chart().transform_filter(alt.FieldEqualPredicate(field="part", equal=part))
    for name, wanted in ((has, True), (lacks, False)):
        if name:
            rows = [row for row in rows if (row.get(name) is not None) is wanted]
            made = made.transform_filter(alt.FieldValidPredicate(field=name, valid=wanted))
    return [getattr(made, f"mark_{mark}")(**settings).encode(**encoding)] if rows else []


def _by_category(figure: Figure) -> bool:
    return any(isinstance(point.x, str) for series in figure.series for point in series.points)


def _values(data: list[Row], *fields: str) -> list[float]:
    return [row[f] for row in data for f in fields if isinstance(row.get(f), int | float)]
