"""The docs say what the program does: `make docs` writes anew what these tests find stale."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from restack.plan import VERBS, Plan
from tools import docs

ROOT = docs.ROOT
PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
)
STALE = "stale: run `make docs`"
# A row whose first two cells are code: a plan for 12 layers, and what it is.
_PLAN_ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \|", re.MULTILINE)
_PRINT = re.compile(r"^print\(.*\)  # (.*)$", re.MULTILINE)


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands_are_current() -> None:
    # how lines are broken is a matter of the library that prints them
    assert docs.cli().split() == read("docs/cli.md").split(), STALE


def test_models_are_current() -> None:
    assert docs.models() == read("docs/models.md"), STALE


@pytest.mark.parametrize("page", docs.TOURS)
def test_tours_are_current(page: str, tmp_path: Path) -> None:
    text = read(page)
    assert docs.tour(text, tmp_path) == text, STALE


def test_every_command_is_documented() -> None:
    text = read("README.md") + read("docs/cli.md")
    names = [name for name, _ in docs.helps("restack")]
    assert {"restack", "restack plan", "restack edit"} <= set(names)
    assert [name for name in names if name not in text] == []


@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in read(page)])
def test_python_of_the_docs_runs(page: str, place: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", read(page), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, page, "exec"), names)
        assert printed.getvalue().splitlines() == _PRINT.findall(block)


@pytest.mark.parametrize("page", ["README.md", "docs/plans.md"])
def test_plans_in_tables_are_what_they_are_said_to_be(page: str) -> None:
    rows = _PLAN_ROW.findall(read(page))
    assert len(rows) > 10
    for text, resolved in rows:
        assert str(Plan.parse(text, 12)) == resolved, text


@pytest.mark.parametrize("page", ["README.md", "docs/plans.md"])
def test_every_verb_is_documented(page: str) -> None:
    assert [verb for verb in VERBS if not re.search(rf"`{verb}[:`]", read(page))] == []


def test_every_form_of_a_verb_is_documented() -> None:
    text = read("docs/plans.md")
    for verb, known in VERBS.items():
        forms = known.form.removeprefix(f"{verb}:").split(" | ")
        missing = [form for form in forms if f"`{verb}:{form}`" not in text and form != verb]
        assert not missing, verb


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", read(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / page).parent / path if path else ROOT / page
        assert there.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors(there.read_text()), f"{page} links to {target}"


def anchors(text: str) -> set[str]:
    """The anchors of the headings of a Markdown page."""
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_page_can_be_reached() -> None:
    reached, new = set(), {"README.md"}
    while new:
        reached |= new
        links = {
            ((ROOT / page).parent / target.partition("#")[0]).resolve()
            for page in new
            for target in re.findall(r"\]\(([^)\s:]+)\)", read(page))
        }
        new = {path.relative_to(ROOT).as_posix() for path in links if path.suffix == ".md"}
        new -= reached
    assert set(PAGES) <= reached
