"""What stands in figures and tables: published numbers beside ours, means, what is set apart."""

from __future__ import annotations

from typing import Any

import pytest

from restack.studies import drop_findings, duplicate_findings, reinit_findings
from restack.studies.findings import Figure, Findings, Number, Table
from restack.studies.telling import beside, paper_of
from restack.sweep.rows import Row
from tests.studies.hand import row, seeds, view


def figure(found: Findings, key: str) -> Figure:
    return next(one for one in found.figures if one.key == key)


def table(found: Findings, key: str) -> Table:
    return next(one for one in found.tables if one.key == key)


def column(of: Table, name: str) -> list[Any]:
    place = [one.name for one in of.columns].index(name)
    return [line[place] for line in of.rows]


# --- whose published numbers --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("study", "labels", "name"),
    [
        ("drop", {"layers": 12}, "BERT"),
        ("drop", {"layers": 6}, "DistilBERT"),
        ("drop", {"layers": 9}, None),
        ("drop", {"layers": 12, "published": "XLNet"}, "XLNet"),
        ("drop", {"layers": 12, "shared": True}, None),
        ("duplicate", {"layers": 12, "shared": True}, "ALBERT-base"),
        ("duplicate", {"layers": 24}, "BERT-large"),
        ("shortgpt", {"layers": 12}, None),
    ],
)
def test_the_model_of_the_paper_that_stands_beside(
    study: str, labels: dict[str, Any], name: str | None
) -> None:
    one = view(row("made", 0.9, **{"study": study, **labels}))
    assert beside(one) == name
    own = name is None or name == labels.get("published")
    assert paper_of(one) == ("paper" if own else f"paper ({name})")


def halves(**labels: Any) -> list[Row]:
    """Three seeds untouched, and three without six layers."""
    about = {"study": "drop", "task": "sst2", **labels}
    whole = seeds("strategies", [0.9, 0.91, 0.92], strategy="none", k=0, plan="0-11", **about)
    return [
        *whole,
        *seeds("strategies", [0.87, 0.88, 0.89], strategy="top", k=6, plan="0-5", **about),
    ]


def test_another_models_published_numbers_are_named() -> None:
    found = drop_findings.findings(halves())
    (paper,) = [s for s in figure(found, "strategies").series if s.published]
    assert paper.name == "paper (BERT)"
    assert paper.points[0].y == pytest.approx(0.9025)
    values = column(table(found, "table-tasks"), "paper (BERT)")
    assert [value.value for value in values] == pytest.approx([0.9243, 0.9025])
    assert all(value.published for value in values)
    change = column(table(found, "table-tasks"), "change, paper (BERT)")
    assert change[1].value == pytest.approx(90.25 - 92.43)


def test_the_papers_own_model_needs_no_name() -> None:
    found = drop_findings.findings(halves(published="XLNet"))
    (paper,) = [s for s in figure(found, "strategies").series if s.published]
    assert paper.name == "paper"


def test_beside_a_distilled_model_stand_those_of_the_paper() -> None:
    small = seeds(
        "strategies",
        [0.88, 0.89, 0.9],
        study="drop",
        subject="two",
        layers=6,
        strategy="none",
        k=0,
        plan="0-5",
    )
    found = drop_findings.findings([*halves(), *small])
    rows = table(found, "table-distilled-one").rows
    assert [line[3] for line in rows] == ["two", "DistilBERT beside BERT (paper)"]
    mine, ours = rows[0][2], rows[1][2]
    assert isinstance(mine, Number)
    assert isinstance(ours, Number)
    assert mine.value == pytest.approx(0.88)
    assert (ours.value, ours.published) == (pytest.approx(0.9025), True)


# --- tables of their own ------------------------------------------------------------------------


def test_the_token_behind_the_class_token_is_set_apart() -> None:
    payload = {
        "tokens": 100,
        "first_tokens": 10,
        "layers": [{"layer": n, "accuracy": n / 4} for n in range(3)],
        "after_first": [0.1, None, 0.3],
        "decoded": [],
    }
    found = duplicate_findings.findings(
        [row("lens", payload=payload, study="duplicate", when="pretrained", layers=2)]
    )
    lens = table(found, "table-lens")
    assert column(lens, "token accuracy") == [0, 0.25, 0.5]
    assert column(lens, "behind the class token") == [0.1, None, 0.3]


def test_shuffled_layers_have_a_mean_and_an_interval() -> None:
    about = {"study": "reinit"}
    found = reinit_findings.findings(
        [
            *(
                row("orders", value, seed=n, order="shuffled", permutation=n, **about)
                for n, value in enumerate((0.5, 0.6, 0.7))
            ),
            *seeds("orders", [0.9, 0.9, 0.9], order="whole", **about),
        ]
    )
    shown = table(found, "table-shuffled")
    assert column(shown, "layers") == ["as they were", "shuffled"]
    mean = column(shown, "score")[1]
    assert (mean.value, mean.n) == (pytest.approx(0.6), 3)
    # t with two degrees of freedom: 4.303 standard errors
    assert mean.low == pytest.approx(0.6 - 4.3027 * 0.1 / 3**0.5, abs=1e-4)
