"""Figures as SVG and PNG, without a browser or a network."""

from __future__ import annotations

from restack.report.charts import WIDTH, altair, chart
from restack.report.theme import Spec, colours, config, paint
from restack.studies.findings import Figure


def svg(figure: Figure, *, theme: str = "light", width: int = WIDTH) -> str:
    """A figure as SVG, on a transparent ground."""
    import vl_convert

    spec = _alone(figure, theme, width)
    return str(vl_convert.vegalite_to_svg(spec, allowed_base_urls=[]))


def png(figure: Figure, *, theme: str = "light", width: int = WIDTH, scale: float = 2) -> bytes:
    """A figure as PNG, on the ground of the theme, with `scale` dots a pixel."""
    import vl_convert

    spec = _alone(figure, theme, width)
    spec["background"] = colours(theme)["@ground"]
    return bytes(vl_convert.vegalite_to_png(spec, scale=scale, allowed_base_urls=[]))


def _alone(figure: Figure, theme: str, width: int) -> Spec:
    altair()
    spec: Spec = paint(chart(figure, width), theme)
    return {**spec, "title": {"text": figure.title}, "config": config(theme)}
