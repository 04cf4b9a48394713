"""The page as a file: what stands in it, what cannot, how large it is."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

pytest.importorskip("altair", reason="charts need the extra `report`")
pytest.importorskip("vl_convert", reason="charts need the extra `report`")

from restack.errors import RestackError
from restack.report.html import Markup, data, tag
from restack.report.markdown import markdown, text
from restack.report.page import figure_page, page
from restack.studies.findings import Column, Findings, Number, Table
from tests.report import samples


class Reader(HTMLParser):
    """The elements of a page, the texts of scripts and styles, and all text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, dict[str, str | None], str]] = []
        self.words: list[str] = []
        self._open: tuple[str, dict[str, str | None]] | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = (tag, dict(attrs)) if tag in ("script", "style") else None

    def handle_endtag(self, tag: str) -> None:
        self._open = None

    def handle_data(self, data: str) -> None:
        if self._open:
            self.raw.append((*self._open, data))
        else:
            self.words.append(data)


@pytest.fixture(scope="module")
def whole() -> str:
    return page([samples.everything(2000)])


@pytest.fixture(scope="module")
def hostile() -> str:
    return page([samples.hostile(), samples.everything(3)])


def policy(page: str) -> dict[str, list[str]]:
    metas = [a for t, a in Reader(page).elements if t == "meta"]
    content = next(a["content"] for a in metas if a.get("http-equiv") == "Content-Security-Policy")
    parts = (part.split() for part in (content or "").split(";"))
    return {name: values for name, *values in parts}


def test_it_is_small_enough(whole: str) -> None:
    assert len(whole.encode()) < 8_000_000
    assert whole.count("<tr>") > 2000


def test_the_policy_allows_what_stands_there_and_nothing_else(whole: str) -> None:
    allowed = policy(whole)
    assert allowed["default-src"] == ["'none'"]
    assert allowed["base-uri"] == allowed["form-action"] == ["'none'"]
    assert "unsafe" not in str(allowed)
    raw = Reader(whole).raw
    for kind, source in (("script", "script-src"), ("style", "style-src")):
        bodies = [body for tag, attrs, body in raw if tag == kind and "type" not in attrs]
        hashes = {
            f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'"
            for body in bodies
        }
        assert hashes == set(allowed[source]), kind


@pytest.mark.parametrize("which", ["whole", "hostile"])
def test_nothing_is_fetched_or_styled_inline(which: str, request: pytest.FixtureRequest) -> None:
    for name, attributes in Reader(request.getfixturevalue(which)).elements:
        assert name not in ("img", "link", "iframe", "object", "embed", "base", "form"), name
        assert not {"src", "style", "srcdoc", "action"} & set(attributes), (name, attributes)
        assert not [key for key in attributes if key.startswith("on")]
        href = attributes.get("href")
        assert href is None or re.fullmatch(r"#[a-z0-9-]+", href)


def test_hostile_texts_stay_texts(hostile: str) -> None:
    reader = Reader(hostile)
    words = "".join(reader.words)
    for string in samples.HOSTILE:
        assert re.sub(r"[\x00-\x08]", "\ufffd", string) in words, string
    # scripts are two of ours and the data of the charts, as on a page without hostile texts
    assert [t for t, _, _ in reader.raw].count("script") == 3
    known = {"html", "head", "meta", "title", "style", "body", "a", "div", "nav", "ul", "li"}
    assert {t for t, _ in reader.elements if t in ("svg", "img")} == set()
    assert known <= {t for t, _ in reader.elements}


def test_links_lead_somewhere_and_names_occur_once(hostile: str) -> None:
    elements = Reader(hostile).elements
    names = [a["id"] for _, a in elements if "id" in a]
    assert len(names) == len(set(names))
    targets = {(a["href"] or "")[1:] for _, a in elements if "href" in a}
    assert targets <= set(names)


def test_words_come_before_figures(whole: str) -> None:
    order = [
        "97.6%",
        "To bear in mind",
        "Claims and verdicts",
        "1 seen, 1 not seen, 1 undecided, 1 not applicable",
        "What each layer decodes to",
        "Show all 2,000 rows",
        "Underlined: not the token",
        "fresh weights",
        "9,999 rows: 9,999 of 104,743 rows",
    ]
    body = whole[whole.index("<main") :]
    places = [body.index(words) for words in order]
    assert places[0] < places[1] < places[2] < places[3]
    assert sorted(places[4:]) == places[4:]
    assert places[3] < places[5]


def test_tables_hold_exact_numbers_and_mark_published_ones(whole: str) -> None:
    assert 'data-v="91.24"' in whole
    assert 'data-low="90.71"' in whole
    assert "±0.53" in whole
    assert "n = 2" in whole
    cells = re.findall(r'<td class="right published"[^>]*>(.*?)</td>', whole)
    assert len(cells) == 4
    assert all('class="mark"' in cell for cell in cells)
    assert 'title="table 5 gives 92.25"' in whole


def test_the_same_findings_make_the_same_page(whole: str) -> None:
    assert page([samples.everything(2000)]) == whole


def test_a_page_without_figures_brings_no_charts() -> None:
    made = page([Findings("k", "Only words", "a lead")])
    assert "window.vegaEmbed" not in made
    assert len(made) < 40_000
    with pytest.raises(RestackError, match="no findings"):
        page([])


def test_one_figure_alone() -> None:
    assert "What each layer decodes to" in figure_page(samples.curve())


def test_data_cannot_end_its_element() -> None:
    block = data({"a": "</script><!--<script>&"}, "x")
    assert block.count("<") == 2
    body = block.partition(">")[2].rpartition("<")[0]
    assert json.loads(body) == {"a": "</script><!--<script>&"}


def test_tags_escape_what_is_not_markup() -> None:
    assert tag("p", "<b>", Markup("<b></b>"), title='"') == '<p title="&quot;">&lt;b&gt;<b></b></p>'
    assert tag("p", "\x00\ud800") == "<p>\ufffd\ufffd</p>"


def test_markdown_has_the_same_content() -> None:
    made = markdown([samples.everything(12)], lambda figure, _: f"f/{figure.key}.svg")
    for words in (
        "- **97.6%** of the accuracy",
        "1 seen, 1 not seen, 1 undecided, 1 not applicable.",
        "- **undecided** Dropping half costs",
        "![Strategies of dropping](<f/strategies.svg>)",
        "| bge-small | 12 | 91.24 ±0.53 | ◆ 92.43 | 0-11 |",
        "<details><summary>12 rows</summary>",
        "| 0 | **film** | a |",
        "12 -> 15 layers  0-2x2,3-11",
        "| torch | 2.13.0 |",
    ):
        assert words in made, words


def test_markdown_escapes_hostile_texts() -> None:
    made = markdown([samples.hostile()], lambda *_: "x.svg")
    assert "<script" not in made.replace("\\<script", "")
    assert "<img" not in made.replace("\\<img", "")
    assert text("a | b\n`c` [d](e) <f>") == r"a \| b \`c\` \[d\](e) \<f\>"


def test_what_is_to_be_said_of_a_number_stands_below_its_table() -> None:
    odd = Number(0.9225, published=True, note="tables 1 & 4 give 90.25")
    table = Table("t", "T", (Column("score", "number", "%"),), ((odd,), (Number(0.9),)))
    found = Findings("f", "F", tables=(table,))
    html = page([found])
    assert 'data-v="92.25"' in html
    assert html.count('<sup class="mark">1</sup>') == 1
    assert "<sup>1</sup> tables 1 &amp; 4 give 90.25" in html
    said = markdown([found], lambda *_: "x.svg")
    assert "92.2 (1)" in said or "92.3 (1)" in said
    assert "(1) tables 1 \\& 4 give 90.25." in said
