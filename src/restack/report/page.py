"""Findings as one self-contained HTML page: no network, scripts inlined, a strict policy inside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import count

from restack.errors import RestackError
from restack.report import theme
from restack.report.charts import altair, chart
from restack.report.html import Markup, data, tag
from restack.report.parts import Part, parts
from restack.studies.findings import Figure, Findings

SIGN = "<!-- a report of restack -->"
"""Among the first bytes of a report, so that only reports are replaced by reports."""


def page(findings: Sequence[Findings], title: str | None = None) -> str:
    """The page of one or several studies.

    Everything in it stands in the file: a policy forbids all else, and every script and style that
    is allowed is named by its hash.
    """
    if not findings:
        raise RestackError("there are no findings to show")
    title = title or (findings[0].title if len(findings) == 1 else "Findings")
    figures: list[Figure] = []
    body: list[Part] = []
    numbers = count()
    for found in findings:
        body += parts(found, figures, numbers, alone=len(findings) == 1)
    style = _file("page.css")
    scripts = [*([_charting()] if figures else []), _file("page.js")]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(style, scripts)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        Markup(f"<style>{style}</style>"),
    )
    heading = None if len(findings) == 1 else tag("header", tag("h1", title))
    return f"<!doctype html>\n{SIGN}\n" + tag(
        "html",
        head,
        tag(
            "body",
            tag("a", "Skip to the findings", href="#main", cls="skip"),
            tag(
                "div",
                _contents(body),
                tag("main", heading, *(part.body for part in body), id="main"),
                cls="frame",
            ),
            tag("div", id="tip", role="tooltip"),
            _charts(figures) if figures else None,
            *(Markup(f"<script>{script}</script>") for script in scripts),
        ),
        lang="en",
    )


def figure_page(figure: Figure) -> str:
    """One figure as an interactive page of its own."""
    return page([Findings(figure.key, figure.title, figures=(figure,))])


def _contents(body: list[Part]) -> Markup:
    entries = (
        tag("li", tag("a", part.title, href=f"#{part.anchor}"), cls="sub" if part.inner else None)
        for part in body
    )
    return tag("nav", tag("ul", *entries), aria_label="Contents")


def _charts(figures: list[Figure]) -> Markup:
    altair()
    themes = {
        name: {"colours": theme.colours(name), "config": theme.config(name)}
        for name in theme.THEMES
    }
    return data({"specs": [chart(figure) for figure in figures], "themes": themes}, "charts")


def _policy(style: str, scripts: list[str]) -> str:
    allowed = " ".join(_hash(script) for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _file(name: str) -> str:
    # browsers hash what they have read, where a line ends in one character
    return (files(__package__) / name).read_text("utf-8").replace("\r\n", "\n")


_SNIPPET = "window.vegaEmbed = vegaEmbed;"


@cache
def _charting() -> str:
    """Vega, Vega-Lite and the interpreter of their expressions, as one script."""
    altair()
    import vl_convert

    bundle = vl_convert.javascript_bundle(_SNIPPET).replace("\r", "")
    if "</script" in bundle or "<!--" in bundle:
        raise RestackError("the scripts of the charts cannot stand inside a page")
    # its short names would else be those of the whole page
    return f"(() => {{{bundle}\n}})();"
