"""The one look of all charts: colours that colour-blind readers tell apart, in light and in dark.

Specifications hold names of colours ("@series0", "@paper", "@ground"); `paint` and the script of
the page replace them by the colours of a theme, so that one specification serves both.
"""

from __future__ import annotations

from typing import Any

Spec = dict[str, Any]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

# Blue, orange, green, pink, olive or yellow, sky: told apart with one kind of cones missing, and
# at least 3:1 against their ground (tests/report/test_theme.py).
SERIES = {
    "light": ("#17509a", "#d4660a", "#128060", "#c777b2", "#54430a", "#3a97e0"),
    "dark": ("#4f9df0", "#f3a24f", "#2f9a74", "#c95fb0", "#f0e05a", "#b9e2fb"),
}
_COLOURS = {
    "light": {
        "ground": "#ffffff",
        "ink": "#1c2026",
        "muted": "#5c6470",
        "faint": "#e6e8ec",
        "paper": "#59616d",
        "rule": "#8a919c",
        "neutral": "#f2f1ee",
        "empty": "#eceef1",
    },
    "dark": {
        "ground": "#1b1e24",
        "ink": "#e8eaee",
        "muted": "#a2a9b4",
        "faint": "#2d323b",
        "paper": "#b4bbc6",
        "rule": "#7c8491",
        "neutral": "#33373f",
        "empty": "#262a31",
    },
}
_SCALES = {  # low to high, and below to above a neutral middle
    "light": (("#f0f4f8", "#a9c6de", "#4d8fbf", "#1f5f96", "#0b2f57"), ("#b04a00", "#1f5f96")),
    "dark": (("#20303f", "#27557d", "#3f86b8", "#86bbdf", "#e3f1fb"), ("#f08c42", "#62a8ea")),
}
THEMES = ("light", "dark")


def colours(theme: str) -> dict[str, str]:
    """The colours of a theme by the names that specifications use."""
    steps, (below, above) = _SCALES[theme]
    named = dict(_COLOURS[theme])
    named |= {f"series{place}": colour for place, colour in enumerate(SERIES[theme])}
    named |= {f"step{place}": colour for place, colour in enumerate(steps)}
    named |= {"below": below, "above": above}
    return {f"@{name}": colour for name, colour in named.items()}


def config(theme: str) -> Spec:
    """The configuration of Vega-Lite for a theme."""
    colour = _COLOURS[theme]
    text = {"labelColor": colour["muted"], "titleColor": colour["ink"]}
    return {
        "background": "transparent",
        "font": FONT,
        "padding": 4,
        "view": {"stroke": None},
        "axis": {
            **text,
            "domainColor": colour["rule"],
            "tickColor": colour["rule"],
            "gridColor": colour["faint"],
            "labelFontSize": 11,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "titlePadding": 8,
            "labelPadding": 4,
            "tickSize": 4,
            "labelLimit": 150,
            "labelOverlap": True,
            "labelFlush": False,
        },
        "axisY": {"domain": False, "ticks": False},
        "axisX": {"grid": False},
        "legend": {
            **text,
            "labelFontSize": 12,
            "orient": "top",
            "direction": "horizontal",
            "title": None,
            "symbolSize": 90,
            "symbolStrokeWidth": 2,
            "labelLimit": 240,
            "columnPadding": 18,
            "offset": 10,
        },
        "header": {
            **text,
            "labelColor": colour["ink"],
            "labelFontSize": 12,
            "labelFontWeight": 600,
            "labelAnchor": "start",
            "labelPadding": 6,
            "labelLimit": 260,
            "title": None,
        },
        "title": {"color": colour["ink"], "fontSize": 14, "anchor": "start", "offset": 12},
    }


def paint(spec: Any, theme: str) -> Any:
    """A specification with the names of colours replaced; data are left alone."""
    return _painted(spec, colours(theme))


def _painted(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [_painted(item, names) for item in value]
    if isinstance(value, dict):
        keep = ("datasets", "domain", "sort", "title", "description")  # texts from the findings
        return {k: v if k in keep else _painted(v, names) for k, v in value.items()}
    return value
