"""`restack report`: from a store to a page, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("altair", reason="charts need the extra `report`")
pytest.importorskip("vl_convert", reason="charts need the extra `report`")

from restack.cli import report as _  # noqa: F401 - registers the command
from restack.cli.main import app
from restack.errors import RestackError
from restack.report import files
from restack.report.gather import findings_of, gather
from restack.studies.findings import Findings, Number
from tests.report import samples
from tests.report.stores import PLANS, fill


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("stores") / "runs")


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["report", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_several_stores_are_told_as_one(store: Path, tmp_path: Path) -> None:
    more = fill(tmp_path / "more", plans=("0-3", "0-11"))
    (found,) = gather([store, more])
    # the untouched model is in both; what failed in one is finished in the other
    assert found.lead == "46 finished trials: 6 plans, 2 tasks, 1 model."
    assert [p.x for p in found.figures[0].series[0].points] == [
        "0-11",
        "0-9",
        "0-7",
        "0-5",
        "0-2x2,3-11",
        "0-3",
    ]
    assert run(store, more, "-o", tmp_path / "page.md")


def test_hardware_of_all_trials_is_named(tmp_path: Path) -> None:
    one = fill(tmp_path / "one", seeds=2)
    two = fill(tmp_path / "two", seeds=2, plans=("0-3",), device="cuda: a GPU")
    (found,) = gather([one, two])
    assert found.provenance is not None
    assert found.provenance.hardware == "cpu, cuda: a GPU"


def test_trials_of_no_study_are_told_alike(store: Path) -> None:
    (found,) = gather(store)
    assert found.lead == "38 finished trials: 5 plans, 2 tasks, 1 model."
    assert [(f.key, len(f.series)) for f in found.figures] == [
        ("means-tune-accuracy", 1),
        ("means-tune-matthews", 1),
    ]
    accuracy = found.figures[0]
    assert [p.x for p in accuracy.series[0].points] == list(PLANS)
    assert [rule.name for rule in accuracy.rules] == ["untouched"]
    means, trials = found.tables
    assert len(means.rows) == 10
    number = means.rows[1][7]
    assert isinstance(number, Number)
    assert number.n == 4
    assert number.low is not None
    assert len(trials.rows) == 40
    assert found.notes == (
        "Not finished: 1 of 40 trials.",
        "A trial failed with: out of memory",
    )
    assert {line.kind for line in found.summary} == {"kept", "lost"}
    assert "6 of 12 layers" in found.summary[0].text
    assert found.provenance is not None
    assert found.provenance.versions == {"restack": "0.1.0", "torch": "2.13.0"}
    assert [split.note for split in found.provenance.splits] == ["500 of many"] * 2


def test_a_mean_below_three_trials_has_no_interval(tmp_path: Path) -> None:
    (found,) = gather(fill(tmp_path / "runs", seeds=2))
    point = found.figures[0].series[0].points[0]
    assert (point.n, point.low) == (2, None)


def test_a_page_from_a_store(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "page.html"
    said = run(store, "-o", out)
    assert "38 finished trials" not in said  # the lead is for the page
    assert f"written to {out}" in said
    page = out.read_text()
    assert "Content-Security-Policy" in page
    assert "made-up-bert" in page
    run(store, "-o", out, "--title", "Again")  # a report may replace a report
    assert list(out.parent.iterdir()) == [out]


def test_markdown_with_its_figures(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.md"
    run(store, "-o", out)
    made = out.read_text()
    assert "](<page.figures/trials-means-tune-accuracy.svg>)" in made
    assert "<svg" in (tmp_path / "page.figures" / "trials-means-tune-accuracy.svg").read_text()
    run(store, "-o", out)


def test_figures_in_every_form(store: Path, tmp_path: Path) -> None:
    run(store, "--figures", tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        f"trials-means-tune-{metric}.{end}"
        for metric in ("accuracy", "matthews")
        for end in ("html", "png", "svg")
    ]


def test_json_is_the_findings(store: Path) -> None:
    document = json.loads(run(store, "--json"))
    (found,) = gather(store)
    assert [Findings.from_json(one) for one in document["findings"]] == [found]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nowhere to put"),
        (["-o", "page.html", "--format", "pdf"], "--format 'pdf'"),
        (["--json", "--study", "drop"], "no trials of the study 'drop'"),
        (["--json", "--study", ""], "no trials of the study ''"),
    ],
)
def test_bad_calls(store: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    with pytest.raises(RestackError, match=said):
        run(store, *arguments)
    with pytest.raises(RestackError):
        run(tmp_path / "nowhere", "--json")


def test_only_reports_are_replaced(store: Path, tmp_path: Path) -> None:
    mine = tmp_path / "README.md"
    mine.write_text("# mine\n")
    with pytest.raises(RestackError, match="is no report"):
        run(store, "-o", mine)
    assert mine.read_text() == "# mine\n"
    with pytest.raises(RestackError, match="is a directory"):
        run(store, "-o", tmp_path)


def test_a_file_is_written_wholly_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "no" / "page.html"
    out.parent.write_text("a file")
    with pytest.raises(RestackError, match="not written"):
        files.write(out, b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["no"]


def test_names_of_figures_are_safe_and_different() -> None:
    names = files.file_names([samples.hostile(), samples.everything(1)])
    assert len(set(names.values())) == len(names) == 9
    assert all(name.replace("-", "").isalnum() for name in names.values())


def test_a_store_without_trials_says_so(tmp_path: Path) -> None:
    from restack.sweep.store import Store

    Store.open(tmp_path / "empty", write=True).close()
    with pytest.raises(RestackError, match="no trials"):
        gather(tmp_path / "empty")
    assert findings_of([]) == []
