"""How large the page of a report is, and how long a browser takes to open it and to draw it.

A page of made-up findings with a table of so many trials is opened in headless Chromium:

- `open`: from the navigation to the end of the load event, as the browser itself counts;
- `drawn`: until its first chart is there;
- `all drawn`: until every chart of the page is there, after scrolling through it.

    python bench/report.py
    python bench/report.py --trials 10000
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common import ROOT, Claim, Spread, add_options, finish, note, table

sys.path.insert(0, str(ROOT))  # the browser and the findings are those of the tests

if TYPE_CHECKING:
    from tests.report.browser import Page

WIDTHS = (1280, 390)
_LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"
_DRAWN = "[...document.querySelectorAll('.chart')].{}(e => e.querySelector('svg'))"


def opened(browser: Page, place: Path) -> tuple[float, float, float]:
    """Seconds until it has loaded, until the first chart and until all charts are drawn."""
    start = time.perf_counter()
    browser.open(place)
    browser.until(f"{_LOADED} > 0")
    loaded = float(browser.js(_LOADED)) / 1000
    browser.until(_DRAWN.format("some"))
    first = time.perf_counter() - start
    browser.js("document.querySelectorAll('.chart').forEach(e => e.scrollIntoView())")
    browser.until(_DRAWN.format("every"))
    return loaded, first, time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=2000, help="rows of the table (%(default)s)")
    add_options(parser, repeats=5)
    options = parser.parse_args(arguments)

    from restack.report.page import page
    from tests.report import samples
    from tests.report.browser import chromium

    text = page([samples.everything(options.trials)]).encode()
    rows, values = [], {}
    with tempfile.TemporaryDirectory() as work, chromium() as browser:
        place = Path(work, "page.html")
        place.write_bytes(text)
        for width in WIDTHS:
            note(f"opening at {width} pixels")
            browser.look(width)
            found = zip(*(opened(browser, place) for _ in range(options.repeats)), strict=True)
            spreads = [Spread.of(list(seconds)) for seconds in found]
            rows.append((f"{width} pixels", "", *(spread.text() for spread in spreads)))
            names = ("open", "drawn", "all drawn")
            values[str(width)] = {
                name: spread.to_json() for name, spread in zip(names, spreads, strict=True)
            }
    slowest = max(values[str(width)]["open"]["median"] for width in WIDTHS)
    claims = [
        Claim("the page in MB", len(text) / 1e6, 8.0, "MB"),
        Claim("seconds to open", slowest, 2.0, "s"),
    ]
    said = [
        f"{options.trials:,} trials, {len(text) / 1e6:.2f} MB; {options.repeats} rounds, medians "
        "(lowest-highest), seconds",
        "",
        table(("", "", "open", "first chart drawn", "all drawn"), rows),
    ]
    about = {"trials": options.trials, "bytes": len(text), "seconds": values}
    return finish(options, "\n".join(said), about, claims)


if __name__ == "__main__":
    sys.exit(main())
