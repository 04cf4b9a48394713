"""The table [search] of a sweep file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from restack.data.metrics import LOWER_IS_BETTER
from restack.errors import RestackError
from restack.sweep import identify
from restack.sweep.axes import recipe_settings
from restack.sweep.prune import PRUNERS
from restack.sweep.reading import Source, Values
from restack.sweep.search import SAMPLERS, Range, Search, Space
from restack.sweep.trial import Trial

KEYS = ("name", "trials", "at_once", "sampler", "pruner", "metric", "seed", "recipe")
_PRUNING = {"median": ("startup", "after"), "halving": ("first", "factor")}


def read_searches(block: Values, templates: Sequence[Trial]) -> list[Search]:
    """A search for each model, task, size, plan and recipe of a block; its seeds go together."""
    found = block.table("search")
    place = block.source.places.get("search", ("search",))
    source = Source(
        block.source.where,
        block.source.lines,
        block.source.folder,
        {key: (*place, key) for key in KEYS},
    )
    source.known(found, KEYS, *place)
    values = Values(found, source)
    groups: dict[str, list[Trial]] = {}
    for trial in templates:
        if trial.kind != "tune":
            with block.at("search"):
                raise RestackError(
                    f"a recipe is searched for trials of the kind {trial.kind!r}",
                    hint='Only those of the kind "tune" have one.',
                )
        groups.setdefault(_but_seed(trial), []).append(trial)
    pruner, pruning = _pruner(values)
    sampler = values.text("sampler", "tpe")
    with values.at("sampler"):
        if sampler not in SAMPLERS:
            raise RestackError(
                f"there is no sampler {sampler!r}", hint=f"Known: {', '.join(SAMPLERS)}."
            )
    return [
        Search(
            tuple(group),
            _space(values, group[0]),
            values.whole("trials", 20, least=1) or 0,
            _metric(values, group[0]),
            values.text("name", "search"),
            values.whole("at_once", 4, least=1) or 0,
            sampler,
            pruner,
            pruning,
            values.whole("seed", 0, least=0) or 0,
        )
        for group in groups.values()
    ]


def _but_seed(trial: Trial) -> str:
    content = trial.to_json() | {"seed": None}
    if trial.data is not None:
        content["data"]["subsample"] = None
    return str(content)


def _space(values: Values, template: Trial) -> Space:
    given = values.table("recipe")
    with values.at("recipe"):
        if not given:
            raise RestackError(
                "nothing is searched for",
                hint="[search.recipe] names settings: rate = {low = 1e-5, high = 1e-3, log = true}",
            )
    found: dict[str, Range | tuple[Any, ...]] = {}
    for name, options in given.items():
        with values.at("recipe", name):
            found[name] = _options(name, options)
            ends = found[name]
            for value in (ends.low, ends.high) if isinstance(ends, Range) else ends:
                recipe_settings({**template.settings, name: value})
    return found


def _options(name: str, given: Any) -> Range | tuple[Any, ...]:
    if isinstance(given, list) and given:
        plain = str | int | float | None
        if not all(isinstance(one, plain) for one in given):
            raise RestackError(f"a choice of {name} is a list", hint="Choose among single values.")
        return tuple(given)
    if isinstance(given, Mapping):
        low, high, log = given.get("low"), given.get("high"), given.get("log", False)
        numbers = [v for v in (low, high) if isinstance(v, int | float) and not _is_truth(v)]
        if len(numbers) == 2 and set(given) <= {"low", "high", "log"} and isinstance(log, bool):
            if numbers[0] >= numbers[1] or (log and numbers[0] <= 0):
                raise RestackError(
                    f"{name} lies between {low} and {high}",
                    hint="low must be below high, and above 0 with log.",
                )
            return Range(numbers[0], numbers[1], log)
    raise RestackError(
        f"{name} is {given!r}",
        hint="Write {low = 1e-5, high = 1e-3, log = true}, or a list of values.",
    )


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _pruner(values: Values) -> tuple[str | None, dict[str, float]]:
    given = values.given.get("pruner")
    with values.at("pruner"):
        own: dict[str, Any] = (
            dict(given) if isinstance(given, Mapping) else {"name": given or "none"}
        )
        name = own.pop("name", None)
        if name == "none" and not own:
            return None, {}
        if not isinstance(name, str) or name not in PRUNERS:
            raise RestackError(
                f"there is no pruner {name!r}", hint=f"Known: none, {', '.join(PRUNERS)}."
            )
        for key, value in own.items():
            if key not in _PRUNING[name]:
                raise RestackError(
                    f"the pruner {name} has no {key!r}", hint=f"Known: {', '.join(_PRUNING[name])}."
                )
            least = {"startup": 1, "factor": 2, "first": 0, "after": 0}[key]
            whole = key in ("startup", "factor")
            number = isinstance(value, int if whole else int | float) and not _is_truth(value)
            if not number or value < least or (key == "first" and not value):
                raise RestackError(f"{key} is {value!r}", hint=f"Give a number from {least}.")
        return name, own


def _metric(values: Values, template: Trial) -> str:
    """The metric as split and name; by default what picks the best weights."""
    assert template.task is not None
    assert template.data is not None
    task = identify.task_of(template.task, template.data)
    default = f"{template.data.validation[0]}/{task.metrics[0]}"
    found = values.text("metric", default)
    split, slash, name = found.rpartition("/")
    split = split if slash else template.data.validation[0]
    with values.at("metric"):
        known = {*task.metrics, *LOWER_IS_BETTER}
        if split not in template.data.validation or name not in known:
            raise RestackError(
                f"{task.name} has no metric {found!r}",
                hint=f"Splits: {', '.join(template.data.validation)}; "
                f"metrics: {', '.join(sorted(known))}.",
            )
    return f"{split}/{name}"
