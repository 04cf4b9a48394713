"""Fine-tunings as trials: files to trials to numbers, resuming, and seeds trained together."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from restack.errors import RestackError
from restack.sweep.definition import define
from restack.sweep.kinds import Context
from restack.sweep.run import run
from restack.sweep.stacked import Unstackable, tune_together
from restack.sweep.stacking import configuration
from restack.sweep.store import Store
from restack.sweep.trial import Model, Trial
from restack.sweep.tuning import tune
from restack.sweep.work import Job, Part, perform
from restack.tune.interrupts import Stopped
from tests.sweep.reviews import make_data, make_model


def sweep(place: Path, seeds: int = 2, **changes: Any) -> list[Trial]:
    """Seeds of a tiny model on a tiny task."""
    model = place / "model"
    if not model.exists():
        make_model(model, dropout=changes.pop("dropout", 0.0))
        make_data(place / "reviews")
    defined = define(
        {
            "models": [str(model)],
            "tasks": [{"name": "reviews", "path": str(place / "reviews"), "label": "label"}],
            "plans": ["untouched"],
            "seeds": list(range(seeds)),
            "recipe": {"epochs": 2, "batch_size": 8, "rate": 1e-3},
            **changes,
        }
    )
    return list(defined.trials)


def test_a_sweep_of_plans_keeps_predictions_and_a_model_that_is_tuned_again(
    tmp_path: Path,
) -> None:
    first = sweep(tmp_path, 1, plans=["drop:top={k=0,1}"])
    parent = next(trial for trial in first if trial.labels["k"] == 1)
    again = replace(parent, model=Model.of_trial(parent.key), plan=None, labels={})
    summary = run([again, *first], tmp_path / "store", workers=1)
    assert (summary.done, summary.failed) == (3, 0), summary.failures
    with Store.open(tmp_path / "store") as store:
        (row,) = store.rows(k=1)
        assert row.payload["depth"] == 1
        assert (row.artefact("model") / "config.json").exists()
        assert (row.artefact("predictions") / "validation.npz").exists()
        assert row.metrics["validation"]["loss"] > 0
        assert store.rows(key=again.key)[0].payload["source_depth"] == 1


def test_a_stopped_trial_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    trial = sweep(tmp_path, 1)[0]
    whole = tune(Context(trial, _made(tmp_path / "whole")))
    asked = iter(range(100))
    halved = Context(trial, _made(tmp_path / "halved"), stop=lambda: next(asked) == 6)
    with pytest.raises(Stopped):
        tune(halved)
    resumed = tune(Context(trial, tmp_path / "halved"))
    assert (resumed.metrics, resumed.curve) == (whole.metrics, whole.curve)


def test_a_checkpoint_that_cannot_be_read_is_no_end(tmp_path: Path) -> None:
    trial = sweep(tmp_path, 1)[0]
    broken = _made(tmp_path / "work" / "run") / "checkpoint.pt"
    broken.write_bytes(b"half")
    (broken.parent / "job.json").write_text("{}")
    assert tune(Context(trial, tmp_path / "work")).metrics["validation"]["accuracy"] >= 0


@pytest.mark.parametrize(
    "recipe",
    [
        {"epochs": 2, "batch_size": 8, "rate": 1e-3},
        {"steps": 9, "batch_size": 25, "rate": 1e-2, "clip": 0.1, "head": "mean-pool"},
        {"epochs": 1, "batch_size": 10, "layer_decay": 0.5, "label_smoothing": 0.1},
    ],
    ids=["short last batch", "clipped, mean pool", "rates by layer"],
)
def test_seeds_trained_together_are_those_trained_alone(
    tmp_path: Path, recipe: dict[str, Any]
) -> None:
    seeds = sweep(tmp_path, 3, recipe=recipe)
    alone = [tune(Context(t, _made(tmp_path / f"a{t.seed}"))) for t in seeds]
    joined = tune_together([Context(t, _made(tmp_path / f"b{t.seed}")) for t in seeds])
    for one, other in zip(alone, joined, strict=True):
        assert one.payload == other.payload
        assert [list(a) for a in one.curve] == [list(b) for b in other.curve]
        for a, b in zip(one.curve, other.curve, strict=True):
            numbers, theirs = (_numbers(point) for point in (a, b))
            assert numbers == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    assert alone[0].metrics != alone[1].metrics


def test_seeds_with_dropout_part_ways_and_that_is_said_once(tmp_path: Path) -> None:
    seeds = sweep(tmp_path, 2, dropout=0.1, plans=["drop:top={0,1}"])
    with pytest.raises(Unstackable, match=r"dropout_prob is 0\.1"):
        tune_together([Context(t, _made(tmp_path / f"b{t.seed}")) for t in seeds[::2]])
    alone = [tune(Context(t, _made(tmp_path / f"a{t.key}"))) for t in seeds]
    said: list[str] = []
    told = lambda now: said.append(now.news)  # noqa: E731
    summary = run(seeds, tmp_path / "store", workers=1, together=2, progress=told)
    assert summary.done == 4
    assert [news.partition(":")[0] for news in said if news] == [
        "seeds run one by one, not together"
    ]
    with Store.open(tmp_path / "store") as store:
        rows = [store.rows(key=trial.key)[0] for trial in seeds]
        assert [row.metrics for row in rows] == [one.metrics for one in alone]
        assert [row.attempts for row in rows] == [1] * 4


def test_a_model_or_data_that_changed_since_is_not_taken_for_the_other(tmp_path: Path) -> None:
    trial = sweep(tmp_path, 1)[0]
    lines = (tmp_path / "reviews" / "train.jsonl").read_text()
    (tmp_path / "reviews" / "train.jsonl").write_text(lines.rpartition("\n")[0])
    with pytest.raises(RestackError, match="reviews has other examples than this trial is of"):
        tune(Context(trial, _made(tmp_path / "data")))
    (tmp_path / "reviews" / "train.jsonl").write_text(lines)
    shutil.rmtree(tmp_path / "model")
    make_model(tmp_path / "model", hidden=16)
    with pytest.raises(RestackError, match="is not the model that this trial is of"):
        tune(Context(trial, _made(tmp_path / "model-work")))


def test_a_job_of_several_trials_gives_each_its_files_and_its_share_of_the_time(
    tmp_path: Path,
) -> None:
    seeds = sweep(tmp_path, 3)
    assert len({configuration(trial) for trial in seeds}) == 1
    begun = time.monotonic()
    outcomes = perform(Job(tuple(Part(t, tmp_path / f"c{t.seed}") for t in seeds)))
    assert [outcome.status for outcome in outcomes] == ["done"] * 3
    assert all("predictions/validation.npz" in outcome.files for outcome in outcomes)
    assert sum(outcome.seconds for outcome in outcomes) < time.monotonic() - begun


def _made(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def _numbers(point: Any) -> list[float]:
    found = []
    for value in point.values():
        found += _numbers(value) if isinstance(value, dict) else [float(value)]
    return found
