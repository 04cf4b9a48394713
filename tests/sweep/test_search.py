"""Searches for recipes: the same suggestions whatever happens meanwhile, and hopeless runs stop."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from restack.sweep.definition import Sweep, define
from restack.sweep.kinds import Context
from restack.sweep.prune import PRUNED, Bars, best_by, curve_of, halving, median
from restack.sweep.reading import DefinitionError
from restack.sweep.run import Summary, run
from restack.sweep.search import Hunts, Range, Search, Suggestion
from restack.sweep.store import Store
from restack.sweep.trial import Trial
from restack.sweep.tuning import tune
from tests.sweep.reviews import make_data, make_model
from tests.sweep.small import HERE

optuna = pytest.importorskip("optuna")


def hill(**changes: Any) -> Search:
    """Where a known function is highest, from trials that take no time."""
    template = Trial(f"{HERE}:climb", settings={"steps": 3})
    space = {"x": Range(-2.0, 2.0), "kind": ("good", "bad")}
    found = Search((template,), space, 12, "validation/accuracy", at_once=3)
    return replace(found, **changes)


def climb(search: Search, store: Path, **options: Any) -> tuple[Summary, list[Suggestion]]:
    hunts = Hunts.of([search])
    summary = run([], store, more=hunts, **options)
    return summary, hunts.all[0].suggestions


def test_a_search_finds_the_top_and_the_same_one_whatever_the_workers(tmp_path: Path) -> None:
    summary, found = climb(hill(), tmp_path / "one", workers=1)
    assert (summary.total, summary.done, len(found)) == (12, 12, 12)
    assert all(one.state == "done" for one in found)
    assert climb(hill(), tmp_path / "two", workers=2)[1] == found
    assert climb(hill(seed=1), tmp_path / "one", workers=1)[1] != found
    best = max(found, key=lambda one: one.value or 0)
    assert best.value == pytest.approx(1 - (best.settings["x"] - 1) ** 2)
    hunt = Hunts.of([hill()]).all[0]
    with Store.open(tmp_path / "one") as store:
        while hunt.more(store):
            pass
        assert hunt.best == best
        assert len(store.rows(search="search", suggestion=best.number)) == 2  # of both searches


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp"])
def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(
    tmp_path: Path, sampler: str
) -> None:
    search = hill(sampler=sampler, count=8)
    _, whole = climb(search, tmp_path / "whole", workers=1)
    done: list[int] = []
    first, some = climb(
        search,
        tmp_path / "halved",
        workers=1,
        progress=lambda now: done.append(now.ran),
        stop=lambda: bool(done) and done[-1] >= 4,
    )
    assert first.stopped
    assert 4 <= first.ran < 8
    assert first.left == 8 - first.ran
    assert [one.settings for one in some] == [one.settings for one in whole[: len(some)]]
    second, found = climb(search, tmp_path / "halved", workers=1)
    assert (first.ran + second.ran, found) == (8, whole)


def test_a_longer_search_begins_with_the_shorter_one(tmp_path: Path) -> None:
    _, short = climb(hill(count=6), tmp_path, workers=1)
    summary, long = climb(hill(count=9), tmp_path, workers=1)
    assert (long[:6], summary.ran) == (short, 3)


def test_a_recipe_that_fails_is_told_as_failed(tmp_path: Path) -> None:
    search = hill(space={"x": ("no number", 0.5)}, count=4, sampler="random", at_once=2)
    summary, found = climb(search, tmp_path, workers=1)
    states = {one.settings["x"]: one.state for one in found}
    assert states == {"no number": "failed", 0.5: "done"}
    assert summary.failed >= 1


def test_several_seeds_count_by_their_mean(tmp_path: Path) -> None:
    template = hill().templates[0]
    search = hill(templates=tuple(replace(template, seed=seed) for seed in (0, 1)), count=2)
    summary, found = climb(search, tmp_path, workers=1)
    assert summary.done == 4
    assert all(one.values[1] == pytest.approx(one.values[0] + 0.01) for one in found)
    assert found[0].value == pytest.approx(sum(found[0].values) / 2)


@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_hopeless_runs_are_stopped_and_their_numbers_are_no_scores(
    tmp_path: Path, pruner: str
) -> None:
    search = hill(pruner=pruner, count=16, at_once=4, sampler="random")
    _, found = climb(search, tmp_path, workers=2)
    states = [one.state for one in found]
    assert states[:4] == ["done"] * 4  # there is nothing to measure them by
    assert PRUNED in states
    with Store.open(tmp_path) as store:
        for one in found:
            (row,) = store.rows(suggestion=one.number)
            assert row.status == "done"
            if one.state == PRUNED:
                assert set(row.metrics) == {PRUNED}
                assert row.metrics[PRUNED]["value"] < row.metrics[PRUNED]["bar"]
                assert len(row.curve) == row.metrics[PRUNED]["step"] < 3
            else:
                assert one.values == (row.metric("accuracy", "validation"),)
    full = climb(replace(search, pruner=None), tmp_path, workers=1)[1]
    best = max(full, key=lambda one: one.value or 0)
    assert next(one.state for one in found if one.settings == best.settings) == "done"


def test_the_median_by_hand() -> None:
    runs = [[(1.0, 0.5), (2.0, 0.8)], [(1.0, 0.6), (2.0, 0.7)], [(1.0, 0.9)]]
    assert median(runs, lower=False, startup=3) == [(1.0, 0.6)]
    assert median(runs, lower=False, startup=2, after=1.5) == [(2.0, 0.75)]
    assert median(runs, lower=True, startup=3) == [(1.0, 0.6)]
    assert median(runs, lower=True, startup=2)[1] == (2.0, pytest.approx(0.55))
    assert median([], lower=False) == []


def test_halving_by_hand() -> None:
    runs = [[(1.0, n / 10), (2.0, n / 10)] for n in range(6)]
    assert halving(runs, lower=False, factor=2) == [(1.0, 0.3), (2.0, 0.3)]
    assert halving(runs, lower=True, factor=3) == [(1.0, 0.1)]
    assert halving(runs[:2], lower=False, factor=3) == []


def test_bars_look_at_the_best_so_far() -> None:
    bars = Bars("validation/loss", True, ((1.0, 0.5), (3.0, 0.2)))
    assert Bars.from_json(bars.to_json()) == bars
    assert bars.missed([(0.5, 9.0)]) is None
    assert bars.missed([(0.5, 0.4), (1.0, 9.0)]) is None
    assert bars.missed([(2.0, 0.6)]) == 0.5
    assert bars.missed([(3.0, 0.3)]) == 0.2
    assert bars.missed([(3.0, math.nan)]) == 0.2
    assert best_by([(1.0, math.nan)], 2.0, lower=False) is None
    points = [{"step": 1, "loss": 2.0}, {"epoch": 1, "metrics": {"validation": {"loss": 0.5}}}]
    assert curve_of(points, "validation/loss") == [(1.0, 0.5)]


def reviews(place: Path, **search: Any) -> Sweep:
    if not (place / "model").exists():
        make_model(place / "model")
        make_data(place / "reviews")
    return define(
        {
            "models": [str(place / "model")],
            "tasks": [{"name": "reviews", "path": str(place / "reviews"), "label": "label"}],
            "plans": ["drop:top={k=0,1}"],
            "seeds": [0, 1],
            "recipe": {"steps": 6, "evaluate_every": 2, "batch_size": 8},
            "search": {"trials": 3, "recipe": {"rate": {"low": 1e-4, "high": 1e-2}}, **search},
        }
    )


def test_a_file_with_a_search_has_one_for_each_plan_and_a_tuned_recipe(tmp_path: Path) -> None:
    defined = reviews(tmp_path)
    assert not defined.trials
    first, second = defined.searches
    assert [len(one.templates) for one in defined.searches] == [2, 2]
    assert first.metric == "validation/accuracy"
    assert first.space == {"rate": Range(1e-4, 1e-2)}
    hunts = Hunts.of([replace(second, templates=second.templates[:1], count=2, at_once=1)])
    assert run([], tmp_path / "store", more=hunts, workers=1).done == 2
    best = hunts.all[0].best
    assert best is not None
    with Store.open(tmp_path / "store") as store:
        (row,) = store.rows(suggestion=best.number)
        assert row.trial.settings["rate"] == row.labels["rate"] == best.settings["rate"]
        assert row.labels["k"] == 1


def test_a_training_is_stopped_at_a_bar_and_resumed_runs_know_what_they_had(
    tmp_path: Path,
) -> None:
    trial = reviews(tmp_path).searches[0].templates[0]
    bars = Bars("validation/accuracy", False, ((0.5, 1.1),))
    hopeless = replace(trial, settings={**trial.settings, "prune": bars.to_json()})
    assert hopeless.key != trial.key
    (tmp_path / "work").mkdir()
    result = tune(Context(hopeless, tmp_path / "work"))
    assert result.metrics[PRUNED] == {
        "step": 4,
        "of": 6,
        "epoch": pytest.approx(4 / 7, abs=1e-5),
        "value": pytest.approx(result.metrics[PRUNED]["value"]),
        "bar": 1.1,
    }
    assert [p["step"] for p in result.curve if "metrics" in p] == [2, 4]
    assert not result.files


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"sampler": "best"}, "no sampler 'best'"),
        ({"pruner": "asha"}, "no pruner 'asha'"),
        ({"pruner": {"name": "median", "factor": 2}}, "median has no 'factor'"),
        ({"pruner": {"name": "halving", "factor": 1}}, "factor is 1"),
        ({"metric": "f2"}, "no metric 'f2'"),
        ({"recipe": {}}, "nothing is searched for"),
        ({"recipe": {"rates": [1e-3]}}, "no setting 'rates'"),
        ({"recipe": {"rate": {"low": 0.1, "high": 0.01}}}, "between 0.1 and 0.01"),
        ({"recipe": {"rate": {"low": -1.0, "high": 1.0}}}, "rate is -1.0"),
        ({"recipe": {"rate": 3}}, "rate is 3"),
        ({"recipe": {"betas": [[0.9, 0.99]]}}, "a choice of betas is a list"),
        ({"trials": 0}, "trials is 0"),
        ({"tries": 3}, "unknown key 'tries'"),
    ],
)
def test_a_search_that_is_wrong_is_refused(
    tmp_path: Path, search: dict[str, Any], said: str
) -> None:
    with pytest.raises(DefinitionError, match=said):
        reviews(tmp_path, **search)
