"""The kinds that train and score: `tune` and `ensemble`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from restack.data.splits import Split
from restack.errors import CheckpointError, RestackError
from restack.sweep.bases import base_of
from restack.sweep.identify import splits_of
from restack.sweep.kinds import Context, Result
from restack.sweep.prune import PRUNED, Bars, Pruned, watch
from restack.sweep.trial import Trial
from restack.tune.recipe import Recipe

if TYPE_CHECKING:
    from restack.tune.predictions import Predictions
    from restack.tune.tuned import SplitNote

MODEL = "model"
PREDICTIONS = "predictions"
SAVE_SECONDS = 60.0
POINTS = 200
"""At most about so many updates of a curve are stored, each the mean of its stretch."""


def tune(context: Context) -> Result:
    """Fine-tune the trial's model on its task; goes on from its last checkpoint.

    Settings are those of a `Recipe` without its seed, `init` for fresh slots, and the bars of
    `prune` for a run that is not worth its end.
    """
    from restack.tune.checkpoints import METRICS, work_directory
    from restack.tune.tuning import tune as run

    trial = context.trial
    train, validation = splits(trial)
    place = model_place(context)
    out = context.work / MODEL if MODEL in context.keep else None
    work = context.work / "run" if out is None else work_directory(out)
    bars = Bars.from_json(trial.settings["prune"]) if trial.settings.get("prune") else None

    def told(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        if what == "train":
            context.tell(done / max(1, total))
        elif what == "evaluated" and bars is not None:
            watch(bars, work / METRICS, done, total)

    def attempt() -> Any:
        return run(
            place,
            train,
            validation,
            recipe_of(trial),
            tokenizer=tokenizer_of(place),
            plan=trial.plan,
            stack=None if trial.model is None else trial.model.stack,
            init=str(trial.settings.get("init", "standard")),
            out=out,
            work=work if out is None else None,
            resume=True,
            device=context.device,
            progress=told,
            stop=context.stop,
            save_seconds=SAVE_SECONDS,
        )

    try:
        tuned = attempt()
    except CheckpointError:
        # what an earlier attempt left cannot be read, or is of another version of the program
        if not work.exists():
            raise
        shutil.rmtree(work)
        tuned = attempt()
    except Pruned as pruned:
        return Result({PRUNED: pruned.numbers}, thinned(pruned.points))
    files = {} if out is None else {MODEL: out}
    if saved := save_predictions(context.work, tuned.predictions):
        files[PREDICTIONS] = saved
    payload = about(tuned.to_json(), tuned.train, tuned.validation)
    return Result(tuned.metrics, thinned(tuned.curve), payload, tuned.seconds, files)


def ensemble(context: Context) -> Result:
    """Add up the predictions of the input trials; settings: `best` of them, `against` others.

    `against` are keys of inputs that are an ensemble of their own, to compare with. Metrics are of
    all members by split, and `.../against` of those; the payload has all of `judge`, and what the
    members gain over the others.
    """
    from restack.tune.ensemble import judge
    from restack.tune.ensemble_gain import gain
    from restack.tune.predictions import Predictions

    trial = context.trial
    _, validation = splits(trial)
    against = set(trial.settings.get("against", ()))
    metrics: dict[str, Mapping[str, float]] = {}
    payload: dict[str, Any] = {}
    answers: dict[tuple[str, str], dict[str, Predictions]] = {}
    for group, best in (("members", trial.settings.get("best")), ("against", None)):
        keys = [key for key in trial.inputs if (key in against) == (group == "against")]
        if not keys:
            continue
        for name, split in validation.items():
            members = answers[group, name] = {
                key: Predictions.load(context.inputs[key].directory / PREDICTIONS / f"{name}.npz")
                for key in keys
            }
            found = judge(members, split, k=best, seed=trial.seed)
            metrics[name if group == "members" else f"{name}/against"] = found.all
            payload.setdefault(group, {})[name] = found.to_json()
            if group == "against":
                mine, chosen = answers["members", name], trial.settings.get("best")
                more = gain(mine, members, split, best=chosen, seed=trial.seed)
                payload.setdefault("gain", {})[name] = None if more is None else asdict(more)
    return Result(metrics, payload=payload)


def about(
    said: Mapping[str, Any], train: SplitNote, validation: Mapping[str, SplitNote]
) -> dict[str, Any]:
    """What a training run tells beside its numbers."""
    names = ("source_depth", "depth", "parameters", "trained", "steps", "best_step", "notes")
    notes = {"train": train, **validation}
    examples = {name: note.to_json() for name, note in notes.items()}
    return {name: said[name] for name in names} | {"examples": examples}


def save_predictions(work: Path, found: Mapping[str, Predictions | None]) -> Path | None:
    """Write the predictions of each split into a directory; None if there are none."""
    place = work / PREDICTIONS
    shutil.rmtree(place, ignore_errors=True)
    for name, predictions in found.items():
        if predictions is not None:
            predictions.save(place / f"{name}.npz")
    return place if place.exists() else None


def recipe_of(trial: Trial) -> Recipe:
    """The recipe of a trial, with its seed."""
    beside = ("init", "prune")
    settings = {name: value for name, value in trial.settings.items() if name not in beside}
    return Recipe.from_json({**settings, "seed": trial.seed})


def splits(trial: Trial) -> tuple[Split, dict[str, Split]]:
    """What a trial trains on and is scored on."""
    if trial.task is None or trial.data is None:
        raise RestackError(f"a trial of the kind {trial.kind!r} needs a task and data")
    train, validation = splits_of(trial.task, trial.data)
    if train is None:
        raise RestackError(f"a trial of the kind {trial.kind!r} needs a split to train on")
    return train, validation


def model_place(context: Context) -> str:
    """The directory of the trial's model: as given, or as another trial has left it."""
    model = context.trial.model
    if model is None:
        raise RestackError(f"a trial of the kind {context.trial.kind!r} needs a model")
    if model.trial is not None:
        return str(context.inputs[model.trial].directory / MODEL)
    return base_of(model)


@lru_cache(maxsize=4)
def tokenizer_of(place: str) -> Any:
    """The tokenizer beside a model, loaded once a worker."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{place} has no tokenizer that can be loaded: {str(error).splitlines()[0]}",
            hint="Put the files of its tokenizer beside the model.",
        ) from error


def thinned(curve: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A curve with all evaluations, and updates as means over stretches if they are many.

    >>> thinned([{"step": 1, "loss": 2.0}, {"step": 1, "metrics": {}}])
    [{'step': 1, 'loss': 2.0}, {'step': 1, 'metrics': {}}]
    """
    stretch = -(-sum("loss" in point for point in curve) // POINTS)
    found: list[dict[str, Any]] = []
    some: list[Mapping[str, Any]] = []

    def close() -> None:
        if some:
            names = [name for name in ("loss", "norm") if name in some[-1]]
            means = {name: sum(one[name] for one in some) / len(some) for name in names}
            found.append({**some[-1], **means})
            some.clear()

    for point in curve:
        if "loss" not in point:
            close()
            found.append(dict(point))
            continue
        some.append(point)
        if len(some) >= stretch:
            close()
    close()
    return found
