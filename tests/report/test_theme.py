"""The colours: told apart without full colour vision, and readable on their ground."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from restack.report.theme import SERIES, THEMES, colours, config, paint

# Viénot, Brettel and Mollon 1999: what is left of linear RGB without one kind of cone.
_BLIND = {
    "protan": [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
    "deutan": [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
    "full": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
}
_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    x, y, z = np.cbrt(np.clip(_TO_XYZ @ rgb / (_TO_XYZ @ np.ones(3)), 1e-4, None))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    light, dark = sorted((float((_TO_XYZ @ linear(c))[1]) for c in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("sight", _BLIND)
def test_series_are_told_apart(theme: str, sight: str) -> None:
    seen = [lab(np.clip(np.array(_BLIND[sight]) @ linear(c), 0, 1)) for c in SERIES[theme]]
    paper = lab(np.clip(np.array(_BLIND[sight]) @ linear(colours(theme)["@paper"]), 0, 1))
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(one - other) > 15
    for one in seen:
        assert np.linalg.norm(one - paper) > 15


@pytest.mark.parametrize("theme", THEMES)
def test_marks_and_words_stand_out_from_the_ground(theme: str) -> None:
    named = colours(theme)
    for name in ("@ink", "@muted", "@paper"):
        assert contrast(named[name], named["@ground"]) >= 4.5, name
    for colour in SERIES[theme]:
        assert contrast(colour, named["@ground"]) >= 3, colour


def test_themes_have_the_same_names() -> None:
    assert colours("light").keys() == colours("dark").keys()
    assert config("light").keys() == config("dark").keys()


def test_painting_leaves_data_alone() -> None:
    spec = {
        "mark": {"fill": "@ground"},
        "datasets": {"rows": [{"series": "@ink"}]},
        "scale": {"domain": ["@ink"], "range": ["@ink"]},
        "title": "@ink",
    }
    painted = paint(spec, "light")
    assert painted["mark"]["fill"] == "#ffffff"
    assert painted["datasets"] == spec["datasets"]
    assert painted["scale"] == {"domain": ["@ink"], "range": [colours("light")["@ink"]]}
    assert painted["title"] == "@ink"
