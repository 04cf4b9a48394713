"""What a sweep will take, before it runs: trials, time from a few timed steps, room on the disk."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from restack.plan.text import parse
from restack.sweep.bases import base_of
from restack.sweep.identify import depth_of
from restack.sweep.memory import weights_of
from restack.sweep.store import Store
from restack.sweep.trial import Data, Trial

_STEPS = 4
_ROWS = 32  # validation examples that are timed
_PER_EXAMPLE = 48  # bytes of a prediction: numbers, and the name of the example


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is to come."""

    trials: int
    new: int
    """Trials that are not done yet."""
    seconds: float | None
    """Of all new ones, shared by the workers; None if nothing is known of any."""
    unknown: int
    """New trials of which no time is known, left out of `seconds`."""
    kept: int
    """Bytes that stay."""
    scratch: int
    """Bytes that checkpoints take while trials run."""
    workers: int
    kinds: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def forecast(
    trials: Sequence[Trial],
    store: Store | None,
    workers: int,
    *,
    device: str = "cpu",
    note: Callable[[str], None] = lambda text: None,
) -> Forecast:
    """Look ahead. Times are those of finished trials of the store, else of a few steps run now."""
    unique = list({trial.key: trial for trial in trials}.values())
    rows = [] if store is None else store.rows(once=True, status="done")
    done = {row.key for row in rows}
    seen: dict[Any, list[float]] = defaultdict(list)
    for row in rows:
        if row.seconds is not None:
            seen[_configuration(row.trial)].append(row.seconds)
    new = [trial for trial in unique if trial.key not in done]
    unknown = [trial for trial in new if _configuration(trial) not in seen]
    total = sum(statistics.mean(seen[_configuration(t)]) for t in new if _configuration(t) in seen)
    timed: dict[Any, _Pace] = {}
    left = 0
    for trial in unknown:
        if trial.kind != "tune" or trial.needs:
            left += 1
            continue
        setting = _setting(trial)
        if setting not in timed:
            note(f"timing {_STEPS} steps of {trial.task} on {_name(trial)}")
            timed[setting] = _time([t for t in unknown if _setting(t) == setting], device)
        total += timed[setting].seconds(trial)
    parents = {trial.model.trial for trial in new if trial.model is not None}
    keeping = [trial for trial in new if "model" in trial.keep or trial.key in parents]
    sizes = [weights_of(trial) for trial in new]
    return Forecast(
        len(unique),
        len(new),
        total / max(1, workers) if len(new) > left or not new else None,
        left,
        sum(map(weights_of, keeping)) + sum(map(_predictions, new)),
        min(workers, len(new)) * 4 * max(sizes, default=0),
        workers,
        {kind: sum(t.kind == kind for t in unique) for kind in sorted({t.kind for t in unique})},
    )


@dataclass(frozen=True, slots=True)
class _Pace:
    """Seconds by depth, from the lowest and the highest that occur."""

    points: Sequence[tuple[int, float, float, float]]
    """Depth; seconds to load, for an example of training, for one of validation."""
    train: int
    validation: int

    def seconds(self, trial: Trial) -> float:
        from restack.sweep.tuning import recipe_of

        load, train, validation = self._at(_depth(trial))
        recipe = recipe_of(trial)
        size = (trial.data.size if trial.data else None) or self.train
        examples = recipe.epochs * size
        if recipe.steps is not None and recipe.batch_size is not None:
            examples = recipe.steps * recipe.batch_size
        each = recipe.evaluate_every
        batch = recipe.batch_size or 32
        passes = max(1.0, examples / (each * batch) if each else examples / size)
        return load + examples * train + passes * self.validation * validation

    def _at(self, depth: int) -> tuple[float, float, float]:
        low, high = self.points[0], self.points[-1]
        part = 0.0 if high[0] == low[0] else (depth - low[0]) / (high[0] - low[0])
        load, train, validation = (
            a + part * (b - a) for a, b in zip(low[1:], high[1:], strict=True)
        )
        return load, train, validation


def _time(trials: Sequence[Trial], device: str) -> _Pace:
    from restack.sweep.tuning import recipe_of, splits, tokenizer_of
    from restack.tune.tuning import tune

    ends = {min(map(_depth, trials)), max(map(_depth, trials))}
    chosen = [next(t for t in trials if _depth(t) == depth) for depth in sorted(ends)]
    points = []
    sizes = (0, 0)
    for trial in chosen:
        assert trial.model is not None
        assert trial.data is not None
        whole, all_rows = splits(trial)
        sizes = (len(whole), sum(map(len, all_rows.values())))
        _, few = splits(replace(trial, data=replace(trial.data, limit=_ROWS, fingerprint=None)))
        recipe = replace(recipe_of(trial), steps=_STEPS, evaluate_every=None)
        place = base_of(trial.model)
        made = tune(
            place,
            whole,
            few,
            recipe,
            tokenizer=tokenizer_of(place),
            plan=trial.plan,
            stack=trial.model.stack,
            device=device,
        )
        rows = sum(map(len, few.values()))
        points.append(
            (
                _depth(trial),
                made.seconds.get("load", 0.0),
                1 / made.examples_per_second,
                made.seconds.get("evaluate", 0.0) / rows,
            )
        )
    return _Pace(points, *sizes)


def _setting(trial: Trial) -> Any:
    """What trials that differ in plan, size and seed have in common."""
    data = replace(trial.data or Data(), size=None, subsample=None)
    return (trial.model, trial.task, str(data), str(trial.settings))


def _configuration(trial: Trial) -> Any:
    size = None if trial.data is None else trial.data.size
    return (*_setting(trial), trial.kind, trial.plan, size)


def _depth(trial: Trial) -> int:
    assert trial.model is not None
    depth = depth_of(trial.model)
    return depth if trial.plan is None else len(parse(trial.plan, depth))


def _name(trial: Trial) -> str:
    return "" if trial.model is None else trial.model.location.rstrip("/").rpartition("/")[2]


def _predictions(trial: Trial) -> int:
    from restack.sweep.tuning import splits

    if trial.kind != "tune":
        return 0
    return _PER_EXAMPLE * sum(map(len, splits(trial)[1].values()))
