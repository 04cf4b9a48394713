"""The page in a real browser: silent, without a network; it sorts, filters, copies and hovers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report import samples
from tests.report.browser import CHROMIUM, Page, chromium

pytest.importorskip("altair", reason="charts need the extra `report`")
pytest.importorskip("vl_convert", reason="charts need the extra `report`")
pytest.importorskip("websockets", reason="the browser is driven through websockets")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")

DRAWN = "[...document.querySelectorAll('.chart')].every(e => e.querySelector('svg'))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with chromium() as page:
        yield page


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from restack.report.page import page

    where = tmp_path_factory.mktemp("pages")
    made = {
        "whole": page([samples.everything(2000)]),
        "hostile": page([samples.hostile(), samples.everything(3)]),
    }
    for name, content in made.items():
        (where / f"{name}.html").write_text(content, encoding="utf-8", newline="\n")
    return {name: where / f"{name}.html" for name in made}


@pytest.fixture
def opened(browser: Page, pages: dict[str, Path]) -> Page:
    browser.look(1280)
    browser.open(pages["whole"])
    browser.until(DRAWN)
    return browser


@pytest.fixture(autouse=True)
def quiet(browser: Page, pages: dict[str, Path]) -> Iterator[None]:
    """Whatever a test does, nothing is complained of and nothing but the page is asked for."""
    browser.complaints.clear()
    browser.requests.clear()
    yield
    browser.js("new Promise(done => setTimeout(done, 50))")
    assert not browser.complaints
    assert {url.partition("#")[0] for url in browser.requests} <= {
        path.as_uri() for path in pages.values()
    }


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_and_fits(browser: Page, pages: dict[str, Path], width: int, dark: bool) -> None:
    browser.look(width, dark=dark)
    browser.open(pages["whole"])
    browser.until(DRAWN)
    assert browser.js("document.querySelectorAll('.chart svg').length") == 6
    assert browser.js("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('.chart svg')].every(e => e.getBoundingClientRect().right"
    assert browser.js(f"{wide} <= innerWidth)")
    ground = browser.js("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 22, 26)" if dark else "rgb(247, 247, 245)")


def test_hostile_texts_are_shown_and_do_nothing(browser: Page, pages: dict[str, Path]) -> None:
    browser.look(1280)
    browser.open(pages["hostile"])
    browser.until(DRAWN)
    shown = browser.js("document.querySelector('main').textContent")
    for string in samples.HOSTILE[:5]:
        assert string in shown
    drawn = browser.js("[...document.querySelectorAll('.chart')].map(e => e.textContent).join(' ')")
    assert "<img src=x onerror=alert(2)>" in drawn
    assert browser.js("document.querySelectorAll('img, main script, svg image').length") == 0


def test_tables_sort_with_mouse_and_keyboard(opened: Page) -> None:
    opened.js("document.querySelector('details:has(.table)').open = true")
    table = "document.querySelector('details .table')"
    column = f"[...{table}.querySelectorAll('tbody tr')].map(r => Number(r.cells[4].dataset.v))"
    before = opened.js(column)
    assert len(before) == 2000
    head = f"{table}.querySelectorAll('thead th')[4]"
    opened.js(f"{head}.scrollIntoView({{block: 'center'}})")
    box = opened.js(f"(({head}).querySelector('button').getBoundingClientRect()).toJSON()")
    opened.click(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
    assert opened.js(column) == sorted(before, reverse=True)
    assert opened.js(f"{head}.getAttribute('aria-sort')") == "descending"
    opened.js(f"{head}.querySelector('button').focus()")
    opened.key("Enter", 13, "\r")
    assert opened.js(column) == sorted(before)
    opened.key("Enter", 13, "\r")
    assert opened.js(column) == before
    assert opened.js(f"{head}.getAttribute('aria-sort')") is None


def test_what_is_missing_is_sorted_last(opened: Page) -> None:
    cells = "[...document.querySelectorAll('.table')[0].querySelectorAll('tbody tr')]"
    button = "document.querySelectorAll('.table')[0].querySelectorAll('th button')[2]"
    for first in (91.24, 89.11):
        opened.js(f"{button}.click()")
        values = opened.js(f"{cells}.map(r => r.cells[2].dataset.v ?? '')")
        assert float(values[0]) == first
        assert values[-1] == ""


def test_tables_filter(opened: Page) -> None:
    opened.js("document.querySelector('details:has(.table)').open = true")
    opened.js("document.querySelector('details .table input').focus()")
    opened.call("Input.insertText", text="cola out of memory")
    shown = "[...document.querySelectorAll('details .table tbody tr')].filter(r => !r.hidden)"
    expected = sum(place % 17 == 0 and place % 3 == 2 for place in range(2000))
    assert opened.js(f"{shown}.length") == expected
    said = opened.js("document.querySelector('details .table .count').textContent")
    assert said == f"{expected} of 2,000 rows"


def test_tables_copy(opened: Page) -> None:
    copied = {}
    opened.js("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    for form in ("csv", "latex", "markdown"):
        opened.js(f"document.querySelector('.table [data-copy={form}]').click()")
        opened.until("window.copied")
        copied[form] = opened.js("window.copied").splitlines()
        opened.js("window.copied = ''")
    assert copied["csv"][0] == (
        'model,layers,SST-2 (%),SST-2 (%) low,SST-2 (%) high,SST-2 (%) n,"SST-2, paper (%)",plan'
    )
    assert copied["csv"][1] == "bge-small,12,91.24,90.71,91.77,5,92.43,0-11"
    assert copied["latex"][0] == r"\begin{tabular}{lrrrl}"
    assert copied["latex"][4] == r"bge-small & 12 & 91.24 $\pm$0.53 & 92.43 & 0-11 \\"
    assert copied["markdown"][2] == "| bge-small | 12 | 91.24 ±0.53 | 92.43 | 0-11 |"


def test_copies_of_hostile_texts_are_harmless(browser: Page, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"])
    browser.js("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    browser.js("document.querySelector('.table [data-copy=csv]').click()")
    browser.until("window.copied")
    assert "\r\n'=cmd|' /C calc'!A0," in browser.js("window.copied")
    browser.js("window.copied = ''; document.querySelector('.table [data-copy=markdown]').click()")
    browser.until("window.copied")
    assert r"\<img src=x onerror=alert(2)\>" in browser.js("window.copied")


def test_pointing_at_a_mark_says_what_it_is(opened: Page) -> None:
    mark = "document.querySelector('#main .chart path[aria-roledescription=point]')"
    opened.js(f"{mark}.scrollIntoView({{block: 'center'}})")
    opened.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    box = opened.js(f"{mark}.getBoundingClientRect().toJSON()")
    opened.hover(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    opened.until("getComputedStyle(document.querySelector('#tip')).visibility === 'visible'")
    said = opened.js("document.querySelector('#tip').textContent").splitlines()
    assert said[0] == "pretrained · SST-2"
    assert said[1] == "layer: 0"
    assert said[3].startswith("95%: ")
    assert said[4:] == ["5 trials", "0-0"]
    opened.hover(5, 5)
    opened.until("getComputedStyle(document.querySelector('#tip')).visibility === 'hidden'")


def test_charts_follow_the_theme_and_the_width(opened: Page) -> None:
    tone = "document.querySelector('.chart path[aria-roledescription=point]').getAttribute('fill')"
    width = "document.querySelector('.chart svg').getBoundingClientRect().width"
    light, wide = opened.js(tone), opened.js(width)
    opened.look(390, dark=True)
    opened.until(f"{tone} !== '{light}'")
    opened.until(f"{width} < {wide / 2}")


def test_the_numbers_behind_a_chart_are_a_table(opened: Page) -> None:
    opened.js("document.querySelector('[data-numbers]').open = true")
    opened.until("document.querySelector('[data-numbers] tbody tr')")
    rows = "[...document.querySelectorAll('[data-numbers] .table tbody tr')]"
    assert opened.js(f"{rows}.length") == 3 * 3 * 13
    assert opened.js(f"{rows}[0].cells[0].textContent") == "SST-2"


def test_all_tools_are_reached_with_the_keyboard(opened: Page) -> None:
    names = []
    for _ in range(60):
        opened.key("Tab", 9)
        names.append(opened.js("document.activeElement.tagName"))
    assert {"A", "SUMMARY", "BUTTON", "DIV"} <= set(names)
