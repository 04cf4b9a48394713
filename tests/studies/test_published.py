"""The numbers of the papers: complete, as printed, and consistent where the papers are."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest

from restack.studies import published


def test_every_table_has_a_source_and_a_reader() -> None:
    assert set(published.tables()) == set(published.TYPED)
    for table, read in published.TYPED.items():
        assert "et al." in published.source(table)
        assert "table" in published.source(table) or "section" in published.source(table)
        assert read()


def test_the_mean_losses_of_table_3_follow_from_table_1() -> None:
    scores: dict[tuple[str, int], list[float]] = defaultdict(list)
    for score in published.drop_scores():
        scores[score.model, score.change].append(score.value)
    for size in published.drop_sizes():
        loss = fmean(scores[size.model, 0]) - fmean(scores[size.model, size.dropped])
        assert loss == pytest.approx(size.loss, abs=6e-5)  # printed with two digits


def test_layers_within_points_are_not_contradicted_by_table_1() -> None:
    scores = {(s.model, s.change, s.task): s.value for s in published.drop_scores()}
    within = published.drop_layers_within()
    assert len(within) == 45
    for row in within:
        for (model, dropped, task), score in scores.items():
            if (model, task) == (row.model, row.task) and dropped > row.layers:
                assert scores[model, 0, task] - score > row.points / 100 - 1e-9


def test_oddities_are_kept_and_marked() -> None:
    six = {s.task: s for s in published.drop_from_finetuned() if s.model == "BERT-6"}
    assert six["SST-2"].value == 0.9225
    assert "90.25" in six["SST-2"].note
    assert six["MNLI"].note == ""
    twin = [s for s in published.duplicate_scores() if (s.model, s.change) == ("ALBERT-large", 25)]
    assert {s.value for s in twin if s.task in ("SNLI", "SST-2")} == {0.9436}
    assert ["slip" in s.note for s in twin] == [False, False, True, False]
    sst2 = published.reinit_tasks()[0]
    assert (sst2.validation, sst2.note) == ("872", "validation: printed as 872k")


def test_layers_count_from_0() -> None:
    assert published.drop_contributions()[0].layers == (2, 4)


def test_cells_that_the_paper_leaves_empty_are_left_out() -> None:
    deepest = [s for s in published.duplicate_scores() if s.change == 20 and "xx" in s.model]
    assert [(s.task, s.metric) for s in deepest] == [("SNLI", "accuracy"), ("SST-2", "accuracy")]
    assert {e.members for e in published.duplicate_ensembles()} >= {"baseline x3", "25-32 35"}


@pytest.mark.real
def test_nothing_was_changed_but_the_note_added(shared: Path) -> None:
    for path in sorted((shared / "papers" / "published").glob("*.csv")):
        with path.open(newline="") as file:
            given = list(csv.DictReader(file))
        ours = [{k: v for k, v in r.items() if k != "note"} for r in published.records(path.stem)]
        assert ours == given, path.stem
