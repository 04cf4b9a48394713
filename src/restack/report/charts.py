"""Figures as specifications of Vega-Lite, one for each kind, all from the same few layers."""

from __future__ import annotations

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
    inner = (width - 76 - (columns - 1) * 30) // columns
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
    x = numbers(alt.X, figure.x, _values(data, "x"), alt)
    y = numbers(alt.Y, figure.y, _values(data, "y", "low", "high"), alt)
    tone = colour(figure, alt)
    line = {"x": x("x:Q"), "y": y("y:Q"), "color": tone, "order": alt.Order("x:Q")}
    band = {"x": x("x:Q"), "y": y("low:Q"), "y2": "high:Q", "color": tone}
    return [
        *_rules(data, x, y, alt),
        _part("point", alt, has="low").mark_area(opacity=0.16).encode(**band),
        _part("paper", alt).mark_line(strokeDash=[4, 3], strokeWidth=1.2).encode(**line),
        _part("point", alt).mark_line(strokeWidth=2).encode(**line),
        *_points(figure, alt, 40, x=x("x:Q"), y=y("y:Q")),
    ]


def _bars(figure: Figure, data: list[Row], alt: Any) -> list[Any]:
    from_zero = figure.y.domain is None or figure.y.domain[0] <= 0 <= figure.y.domain[1]
    x = categories(alt.X, "x", figure.x, data, alt)
    y = numbers(alt.Y, figure.y, _values(data, "y", "low", "high"), alt, zero=from_zero)
    series = [*names(figure, published=False), *names(figure, published=True)]
    at: dict[str, Any] = {"x": x("x:O")}
    if len(series) > 1:
        at["xOffset"] = alt.XOffset("series:N", sort=series)
    whisker = {"y": y("low:Q"), "y2": "high:Q"}
    if not from_zero:  # a bar that begins elsewhere would lie about proportions: points instead
        whisker["color"] = colour(figure, alt)
    bars = _part("point", alt).mark_bar(opacity=0.85, cornerRadiusEnd=2)
    layers = [bars.encode(y=y("y:Q"), color=colour(figure, alt), tooltip="said:N", **at)]
    return [
        *_rules(data, x, y, alt),
        *(layers if from_zero else []),
        _part("point", alt, has="low")
        .mark_rule(strokeWidth=1.6, color="@ink")
        .encode(**whisker, **at),
        *_points(figure, alt, 60, measured=not from_zero, y=y("y:Q"), **at),
    ]


def _dots(figure: Figure, data: list[Row], alt: Any) -> list[Any]:
    tone = colour(figure, alt)
    heights = _values(data, "y", "low", "high")
    whiskers = _part("point", alt, has="low").mark_rule(strokeWidth=2, opacity=0.55)
    if not _by_category(figure):
        x = numbers(alt.X, figure.x, _values(data, "x"), alt)
        y = numbers(alt.Y, figure.y, heights, alt)
        return [
            *_rules(data, x, y, alt),
            whiskers.encode(x=x("x:Q"), y=y("low:Q"), y2="high:Q", color=tone),
            *_points(figure, alt, 60, x=x("x:Q"), y=y("y:Q")),
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
        whiskers.encode(x=across("low:Q"), x2="high:Q", color=tone, **at),
        *_points(figure, alt, 60, x=across("y:Q"), **at),
    ]


def _density(figure: Figure, data: list[Row], alt: Any) -> list[Any]:
    x = numbers(alt.X, figure.x, _values(data, "x"), alt)
    axis = alt.Axis(title=words.axis_title(figure.y), labels=False, grid=False)
    y = alt.Y("y:Q", axis=axis, stack=None)
    common = {"x": x("x:Q"), "color": colour(figure, alt)}
    area = _part("point", alt).mark_area(opacity=0.2, line={"strokeWidth": 2})
    ticks = _part("tick", alt).mark_point(shape="stroke", angle=90, size=90, strokeWidth=1.5)
    return [
        area.encode(y=y, **common),
        _part("paper", alt).mark_line(strokeDash=[4, 3]).encode(y=y, **common),
        ticks.encode(y=alt.value("height"), tooltip="said:N", **common),
        *_rules(data, x, lambda field: y, alt),
    ]


def _heatmap(figure: Figure, data: list[Row], alt: Any) -> list[Any]:
    assert figure.colour is not None  # Figure has seen to it
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
        "tooltip": "said:N",
    }
    cells = alt.Chart()
    known, unknown = (alt.FieldValidPredicate(field="value", valid=v) for v in (True, False))
    border = {"stroke": "@ground", "strokeWidth": 1}
    return [
        cells.mark_rect(color="@empty", **border).transform_filter(unknown).encode(**at),
        cells.mark_rect(**border)
        .transform_filter(known)
        .encode(color=alt.Color("value:Q", scale=scale, legend=legend), **at),
    ]


# --- what they share ----------------------------------------------------------------------------


def _points(figure: Figure, alt: Any, size: int, *, measured: bool = True, **at: Any) -> list[Any]:
    """Discs, open where there are too few trials; what is published in grey shapes."""
    at |= {"tooltip": "said:N", "color": colour(figure, alt), "shape": shape(figure, alt)}
    mark: dict[str, Any] = {"filled": True, "size": size, "opacity": 1}
    found = []
    if measured:
        few, many = (alt.FieldEqualPredicate(field="few", equal=v) for v in (True, False))
        point = _part("point", alt)
        found = [
            point.transform_filter(many).mark_point(**mark).encode(**at),
            point.transform_filter(few)
            .mark_point(**mark, fill="@ground", strokeWidth=1.8)
            .encode(**at),
        ]
    mark["size"] = size + 24  # a diamond looks smaller than a disc
    return [*found, _part("paper", alt).mark_point(**mark).encode(**at)]


def _rules(data: list[Row], x: Place, y: Place, alt: Any, *, turned: bool = False) -> list[Any]:
    """Lines across the panel, each with its name at the end."""
    found = []
    for axis in ("x", "y"):
        if not any(row["part"] == f"rule {axis}" for row in data):
            continue
        upright = (axis == "x") != turned
        at = {"x": x(f"{axis}:Q")} if upright else {"y": y(f"{axis}:Q")}
        beside = {"align": "left", "dx": 4, "baseline": "top"}
        if not upright:
            beside = {"align": "right", "dy": -4, "baseline": "bottom"}
        end = {"y": alt.value(0)} if upright else {"x": alt.value("width")}
        rule = _part(f"rule {axis}", alt)
        found += [
            rule.mark_rule(color="@rule", strokeDash=[2, 3], strokeWidth=1.4).encode(
                **at, tooltip="said:N"
            ),
            rule.mark_text(color="@muted", fontSize=11, **beside).encode(
                **at, **end, text="name:N"
            ),
        ]
    return found


def _part(part: str, alt: Any, has: str | None = None) -> Any:
    """A chart of nothing yet over the rows of one part, or those among them that have a value."""
    base = alt.Chart().transform_filter(alt.FieldEqualPredicate(field="part", equal=part))
    if has:
        base = base.transform_filter(alt.FieldValidPredicate(field=has, valid=True))
    return base


def _by_category(figure: Figure) -> bool:
    return any(isinstance(point.x, str) for series in figure.series for point in series.points)


def _values(data: list[Row], *fields: str) -> list[float]:
    return [row[f] for row in data for f in fields if isinstance(row.get(f), int | float)]
