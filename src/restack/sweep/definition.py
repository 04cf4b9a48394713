"""A sweep as a file: models x tasks x plans x sizes x recipes x seeds, as a list of trials.

Everything is checked before anything runs, and an error names the line.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import extract_tb
from typing import Any

from restack.errors import PlanError, RestackError
from restack.plan import Plan
from restack.sweep import braces, identify
from restack.sweep.axes import AXES, Choice, read_axes
from restack.sweep.kinds import find_kind
from restack.sweep.lines import line_numbers
from restack.sweep.reading import DefinitionError, Source, Values, is_whole
from restack.sweep.search import Search
from restack.sweep.search_reading import read_searches
from restack.sweep.trial import Data, Model, Trial

UNTOUCHED = "untouched"
_SINGULAR = {"seeds": "seed", "sizes": "size", "recipes": "recipe"}
_KEYS = (
    *("name", "kind", "data", "train", "validation", "limit", "subsample", "keep", "labels"),
    *("recipe", "settings", "paired", "only", "skip", "search", "block", *AXES),
)


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a file defines."""

    trials: Sequence[Trial]
    searches: Sequence[Search] = ()
    """Trials that come about only while others are done."""


def load(path: str | Path) -> Sweep:
    """What a TOML file defines, or a Python file that makes a list `trials` (or `searches`)."""
    place = Path(path)
    try:
        if place.suffix == ".py":
            return _of_python(place)
        text = place.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(f"{place} cannot be read: {error}") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DefinitionError(
            f"{place}: {error}", hint="The file must be TOML; see docs/sweep.md."
        ) from error
    return define(values, folder=place.parent, where=str(place), lines=line_numbers(text))


def _of_python(place: Path) -> Sweep:
    import runpy

    try:
        made = runpy.run_path(str(place))
    except (OSError, RestackError):
        raise
    except Exception as error:
        lines = [f.lineno for f in extract_tb(error.__traceback__) if f.filename == str(place)]
        where = f"{place}, line {lines[-1]}" if lines else str(place)
        raise DefinitionError(f"{where}: {type(error).__name__}: {error}") from error
    trials, searches = made.get("trials", ()), made.get("searches", ())
    for name, found, kind in (("trials", trials, Trial), ("searches", searches, Search)):
        if not isinstance(found, Sequence) or not all(isinstance(one, kind) for one in found):
            raise DefinitionError(
                f"`{name}` of {place} is no list of {name}",
                hint="See restack.sweep.trial and restack.sweep.search.",
            )
    if not trials and not searches:
        raise DefinitionError(f"{place} makes no list `trials` of trials")
    return Sweep(
        unique(identify.identify(trials)),
        [replace(one, templates=tuple(identify.identify(one.templates))) for one in searches],
    )


def define(
    values: Mapping[str, Any],
    *,
    folder: Path = Path(),
    where: str = "the sweep",
    lines: Mapping[tuple[str | int, ...], int] | None = None,
) -> Sweep:
    """What a mapping as of a TOML file defines; paths in it are below `folder`."""
    source = Source(where, dict(lines or {}), folder)
    blocks = values.get("block", [{}])
    with source.at("block"):
        if not isinstance(blocks, list) or not all(isinstance(b, Mapping) for b in blocks):
            raise RestackError("block is a list of tables", hint="Write [[block]] above each.")
    common = {key: value for key, value in values.items() if key != "block"}
    source.known(common, _KEYS)
    trials: list[Trial] = []
    searches: list[Search] = []
    for number, block in enumerate(blocks):
        source.known(block, [key for key in _KEYS if key != "block"], "block", number)
        # where a key was written decides about the line that an error names
        places = {key: ("block", number, key) for key in block}
        table = Values({**common, **block}, replace(source, places=places))
        found = _Block(table).trials()
        if "search" in table:
            searches += read_searches(table, found)
        else:
            trials += found
    if not trials and not searches:
        raise DefinitionError(f"{where} defines no trial", hint="Are all left out by only or skip?")
    return Sweep(unique(trials), searches)


def unique(trials: Sequence[Trial]) -> list[Trial]:
    """The trials, each once for each set of labels."""
    return list(
        {(trial.key, str(sorted(trial.labels.items()))): trial for trial in trials}.values()
    )


class _Block:
    """One set of axes."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.kind = values.text("kind", "tune")
        with values.at("kind"):
            find_kind(self.kind)
        self.axes = read_axes(values, self.kind)
        for axis in ("models", "tasks"):
            with values.at("kind"):
                if self.kind == "tune" and axis not in values:
                    raise RestackError(
                        f"a sweep that fine-tunes needs {axis}", hint=f'{axis} = ["..."]'
                    )

    def trials(self) -> list[Trial]:
        only, skip = self.filters("only"), self.filters("skip")
        found = []
        for chosen in self.combinations():
            seen = self.seen(chosen)
            if only and not any(_fits(seen, one) for one in only):
                continue
            if any(_fits(seen, one) for one in skip):
                continue
            found.append(self.trial(chosen, seen))
        return found

    def combinations(self) -> Iterator[dict[str, Choice]]:
        """One choice of every axis; paired axes go together."""
        pairs = self.values.given.get("paired", [])
        group = {axis: (axis,) for axis in AXES}
        with self.values.at("paired"):
            if not isinstance(pairs, list) or not all(isinstance(pair, list) for pair in pairs):
                raise RestackError("paired is a list of lists", hint='paired = [["plans","seeds"]]')
            for pair in map(tuple, pairs):
                if unknown := [axis for axis in pair if axis not in AXES]:
                    raise RestackError(
                        f"{unknown[0]!r} is no axis", hint=f"Axes: {', '.join(AXES)}"
                    )
                lengths = {axis: len(self.axes[axis]) for axis in pair}
                if len(set(lengths.values())) > 1:
                    said = ", ".join(f"{n} {axis}" for axis, n in lengths.items())
                    raise RestackError(f"{said} cannot be paired", hint="Give as many of each.")
                if any(len(group[axis]) > 1 for axis in pair):
                    raise RestackError(f"an axis of {', '.join(pair)} is paired twice")
                group |= dict.fromkeys(pair, pair)
        groups = list(dict.fromkeys(group[axis] for axis in AXES))
        columns = [list(zip(*(self.axes[axis] for axis in one), strict=True)) for one in groups]
        for row in itertools.product(*columns):
            chosen = {
                axis: choice
                for one, choices in zip(groups, row, strict=True)
                for axis, choice in zip(one, choices, strict=True)
            }
            yield {axis: chosen[axis] for axis in AXES}

    def seen(self, chosen: Mapping[str, Choice]) -> dict[str, Any]:
        """What filters, references and labels know a combination by."""
        seen: dict[str, Any] = {}
        for axis, choice in chosen.items():
            seen |= choice.labels
            if axis in _SINGULAR and choice.value is not None:
                seen[_SINGULAR[axis]] = choice.value[0] if axis == "recipes" else choice.value
        model, task = chosen["models"].value, chosen["tasks"].value
        seen["model"] = None if model is None else Path(model.location).name
        seen["task"] = None if task is None else task[0]
        seen["plan"] = chosen["plans"].value
        if isinstance(seen["plan"], str):
            with self.values.at("plans", chosen["plans"].place):
                seen["plan"] = braces.fill(seen["plan"], seen)
        return seen

    def trial(self, chosen: Mapping[str, Choice], seen: Mapping[str, Any]) -> Trial:
        model: Model | None = chosen["models"].value
        plan = None
        if model is not None:
            with self.values.at("models", chosen["models"].place):
                model = identify.identify_model(model)
                depth = identify.depth_of(model)
            if seen["plan"] is not None:
                with self.values.at("plans", chosen["plans"].place):
                    plan = _plan(seen["plan"], depth)
        name, settings = chosen["recipes"].value
        if self.kind == "tune" and not (plan and plan.has_fresh):
            # how fresh slots start says nothing where there are none
            settings = {key: value for key, value in settings.items() if key != "init"}
        labels = {k: v for choice in chosen.values() for k, v in choice.labels.items()}
        if "name" in self.values:
            labels["sweep"] = self.values.text("name", "")
        if seen["plan"] is not None:
            labels["written"] = seen["plan"]
        if name is not None:
            labels["recipe"] = name
        return Trial(
            kind=self.kind,
            model=model,
            plan=None if plan is None else str(plan),
            task=seen["task"],
            data=self.data(chosen, seen),
            settings=settings,
            seed=chosen["seeds"].value,
            labels={**labels, **self.values.table("labels")},
            keep=tuple(self.values.texts("keep", [])),
        )

    def data(self, chosen: Mapping[str, Choice], seen: Mapping[str, Any]) -> Data | None:
        if seen["task"] is None:
            return None
        own = chosen["tasks"].value[1]
        size, seed = chosen["sizes"].value, chosen["seeds"].value
        subsample = self.values.given.get("subsample", "seed")
        with self.values.at("subsample"):
            if subsample != "seed" and not is_whole(subsample, 0):
                raise RestackError(f"subsample is {subsample!r}", hint='Say "seed", or a number.')
        source = self.values.path(self.values.text("data", "")) if "data" in self.values else None
        task = identify.task_of(seen["task"], Data(own=own))
        data = Data(
            source=source,
            train=self.values.text("train", task.train),
            validation=tuple(self.values.texts("validation", list(task.validation))),
            size=size,
            subsample=None if size is None else seed if subsample == "seed" else subsample,
            limit=self.values.whole("limit", None, least=1),
            own=own,
        )
        with self.values.at("sizes" if size is not None else "tasks"):
            return identify.identify_data(seen["task"], data)

    def filters(self, key: str) -> list[Mapping[str, Any]]:
        found = self.values.given.get(key, [])
        with self.values.at(key):
            found = [found] if isinstance(found, Mapping) else found
            if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
                raise RestackError(
                    f"{key} is a list of tables", hint='skip = [{task = "rte", size = 5000}]'
                )
            known = {name for chosen in self.combinations() for name in self.seen(chosen)}
        for number, one in enumerate(found):
            for name in one:
                with self.values.at(key, number):
                    if name not in known:
                        raise RestackError(
                            f"{key} goes by {name!r}, which no trial has",
                            hint=f"Known: {', '.join(sorted(known))}.",
                        )
        return found


def _plan(text: str, depth: int) -> Plan:
    if text == UNTOUCHED:
        return Plan.identity(depth)
    try:
        return Plan.parse(text, depth)
    except PlanError as error:
        raise RestackError(error.message, hint=error.hint) from error


def _fits(seen: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(
        seen.get(name) in value if isinstance(value, list) else seen.get(name) == value
        for name, value in wanted.items()
    )
