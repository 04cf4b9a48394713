"""Every kind of figure as a specification, as SVG and as PNG."""

from __future__ import annotations

import json
import struct
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("altair", reason="charts need the extra `report`")
pytest.importorskip("vl_convert", reason="charts need the extra `report`")

from restack.report import render, rows
from restack.report.charts import chart, fit
from restack.report.theme import SERIES, THEMES, colours
from restack.studies.findings import Axis, Cell, Figure, Point, Rule, Series
from tests.report import samples

FIGURES = [*samples.figures(), *samples.hostile().figures]
_SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    """What is written in a picture."""
    return ["".join(e.itertext()) for e in ElementTree.fromstring(svg).iter(f"{_SVG}text")]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("place", range(len(FIGURES)))
def test_every_figure_as_svg(place: int, theme: str) -> None:
    svg = render.svg(FIGURES[place], theme=theme)
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{_SVG}svg"
    assert float(root.get("width", "0")) > 200
    assert not [e for e in root.iter() if e.tag in (f"{_SVG}script", f"{_SVG}image")]
    assert not [a for e in root.iter() for a in e.attrib if a.startswith("on")]


@pytest.mark.parametrize("figure", samples.figures(), ids=lambda f: f.key)
def test_every_kind_as_png(figure: Figure) -> None:
    png = render.png(figure, theme="dark")
    assert png.startswith(b"\x89PNG\r\n")
    width, height = struct.unpack(">II", png[16:24])
    assert width == pytest.approx(1440, abs=60)
    assert height > 400


def test_axes_say_what_layer_0_is_and_panels_have_their_names() -> None:
    said = texts(render.svg(samples.curve()))
    assert "layer (0 = embeddings)" in said
    assert {"SST-2", "QNLI", "CoLA", "pretrained", "BERT, paper", "chance"} <= set(said)


def test_every_value_is_drawn_with_what_is_said_of_it() -> None:
    figure = samples.curve()
    said = [row["said"] for row in rows.rows(figure) if row["part"] in ("point", "paper")]
    assert len(said) == 3 * 3 * 13
    drawn = ElementTree.fromstring(render.svg(figure)).iter(f"{_SVG}path")
    points = [e.get("aria-label") for e in drawn if e.get("aria-roledescription") == "point"]
    assert sorted(filter(None, points)) == sorted(said)
    assert "SST-2" in said[0]
    assert "95%: " in said[0]
    assert "5 trials" in said[0]
    assert "published" in next(r["said"] for r in rows.rows(figure) if r["part"] == "paper")


def test_published_values_have_a_shape_of_their_own() -> None:
    spec = chart(samples.curve())
    shapes = [
        layer["encoding"]["shape"]["scale"]
        for layer in spec["spec"]["layer"]
        if "shape" in layer["encoding"]
    ]
    assert shapes[0]["domain"] == ["pretrained", "fine-tuned", "BERT, paper"]
    assert shapes[0]["range"] == ["circle", "circle", "diamond"]


def test_few_trials_are_open_and_have_no_interval() -> None:
    few = Series("a", (Point("x", 0.5, n=2), Point("y", 0.6, 0.5, 0.7, 3)))
    figure = Figure("f", "F", "dots", Axis("a", kind="category"), Axis("b"), (few,))
    assert rows.few_trials(figure)
    assert "fewer than three" in rows.marks(figure)[0]
    layers = [layer["mark"] for layer in chart(figure)["layer"]]
    assert [m.get("fill") for m in layers if m["type"] == "point"] == [None, "@ground"]
    # filled with the ground, and an outline that can be seen
    drawn = ElementTree.fromstring(render.svg(figure)).iter(f"{_SVG}path")
    tones = {(mark.get("fill"), mark.get("stroke")) for mark in drawn}
    assert (SERIES["light"][0], None) in tones
    assert (colours("light")["@ground"], SERIES["light"][0]) in tones
    assert not rows.few_trials(samples.curve())


def test_a_bar_begins_at_zero_or_is_none() -> None:
    def kinds(domain: tuple[float, float] | None) -> set[str]:
        figure = replace(samples.bars(), y=Axis("score", "%", domain=domain))
        return {layer["mark"]["type"] for layer in chart(figure)["spec"]["layer"]}

    assert "bar" in kinds(None)
    assert "bar" in kinds((0.0, 1.0))
    assert "bar" not in kinds((0.7, 1.0))


def test_more_series_than_colours_become_panels() -> None:
    series = tuple(Series(f"s{i}", (Point(0, i), Point(1, i + 1))) for i in range(9))
    figure = Figure("f", "F", "curve", Axis.layers(), Axis("y"), series)
    assert rows.panels(figure) == tuple(f"s{i}" for i in range(9))
    assert rows.names(figure, published=False) == ("here",)
    few = replace(figure, series=series[:6])
    assert rows.panels(few) == ("",)


def test_density_is_a_density() -> None:
    found = [r for r in rows.rows(samples.density()) if r["panel"] == "SST-2"]
    curve = [(r["x"], r["y"]) for r in found if r["part"] == "point"]
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(curve))
    assert area == pytest.approx(1, abs=0.02)
    assert sum(r["part"] == "tick" for r in found) == 20


def test_a_density_of_equal_values_is_ticks_only() -> None:
    series = Series.of_values("s", [0.5, 0.5, 0.5])
    figure = Figure("f", "F", "density", Axis("x"), Axis("density"), (series,))
    assert {row["part"] for row in rows.rows(figure)} == {"tick"}
    assert "svg" in render.svg(figure)


def test_a_neutral_middle_is_in_the_middle() -> None:
    cells = (Cell(0, 0, -1.0), Cell(0, 1, 5.0), Cell(1, 0, None))
    figure = Figure(
        "f", "F", "heatmap", Axis("x"), Axis("y"), cells=cells, colour=Axis("c"), middle=1.0
    )
    scale = chart(figure)["layer"][1]["encoding"]["color"]["scale"]
    assert scale["domain"] == [-3.0, 1.0, 5.0]
    assert scale["range"][1] == "@neutral"


@pytest.mark.parametrize("kind", ["curve", "bars", "dots", "density"])
def test_nothing_to_draw_is_drawn(kind: Any) -> None:
    axis = Axis("x", kind="category") if kind == "bars" else Axis("x")
    empty = Figure("f", "F", kind, axis, Axis("y"), rules=(Rule(1.0, "r"),))
    one = replace(empty, series=(Series("s", (Point("a" if kind == "bars" else 0, 1.0),)),))
    assert "svg" in render.svg(one)
    assert "svg" in render.svg(empty)


def test_panels_stand_below_each_other_where_it_is_narrow() -> None:
    spec = chart(samples.curve())
    assert [fit(spec, width)["columns"] for width in (320, 500, 900)] == [1, 2, 3]
    assert fit(chart(samples.dots()), 400)["width"] == 400


def test_specifications_are_json() -> None:
    for figure in FIGURES:
        json.dumps(chart(figure), allow_nan=False)
