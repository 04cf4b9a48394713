"""A sweep as a file: models x tasks x plans x sizes x recipes x seeds, as a list of trials.

Everything is checked before anything runs, and an error names the line.
"""

from __future__ import annotations

import difflib
import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from restack.errors import PlanError, RestackError
from restack.plan import Plan
from restack.sweep import braces, identify
from restack.sweep.kinds import find_kind
from restack.sweep.lines import line_numbers, line_of
from restack.sweep.trial import Data, Model, Trial

AXES = ("seeds", "models", "tasks", "sizes", "recipes", "plans")
"""From the slowest to the fastest: all of a sweep is there once before any seed is repeated."""
UNTOUCHED = "untouched"
_SINGULAR = {"seeds": "seed", "sizes": "size", "recipes": "recipe"}
_KEYS = (
    *("name", "kind", "data", "train", "validation", "limit", "subsample", "keep", "labels"),
    *("recipe", "settings", "paired", "only", "skip", "block", *AXES),
)
_Path = tuple[str | int, ...]


class DefinitionError(RestackError):
    """A sweep that is not what it should be; the message names file and line."""


def load(path: str | Path) -> list[Trial]:
    """The trials of a TOML file, or of a Python file that makes a list `trials`."""
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
            f"{place}: {error}", hint="The file must be TOML; see docs/sweeps.md."
        ) from error
    return trials(values, folder=place.parent, where=str(place), lines=line_numbers(text))


def _of_python(place: Path) -> list[Trial]:
    import runpy

    made = runpy.run_path(str(place)).get("trials")
    if not isinstance(made, Sequence) or not all(isinstance(one, Trial) for one in made):
        raise DefinitionError(f"{place} makes no list `trials` of trials")
    return unique(identify.identify(made))


def trials(
    values: Mapping[str, Any],
    *,
    folder: Path = Path(),
    where: str = "the sweep",
    lines: Mapping[_Path, int] | None = None,
) -> list[Trial]:
    """The trials of a definition that was read; paths in it are below `folder`."""
    said = _Said(where, dict(lines or {}), folder)
    blocks = values.get("block", [{}])
    with said.at("block"):
        if not isinstance(blocks, list) or not all(isinstance(b, Mapping) for b in blocks):
            raise RestackError("block is a list of tables", hint="Write [[block]] above each.")
    common = {key: value for key, value in values.items() if key != "block"}
    said.known(common, ())
    found: list[Trial] = []
    for number, block in enumerate(blocks):
        said.known(block, ("block", number))
        # where a key was written decides about the line that an error names
        place = {key: ("block", number, key) if key in block else (key,) for key in _KEYS}
        found += _Block({**common, **block}, replace(said, places=place)).trials()
    if not found:
        raise DefinitionError(f"{where} defines no trial", hint="Are all left out by only or skip?")
    return unique(found)


def unique(trials: Sequence[Trial]) -> list[Trial]:
    """The trials, each once for each set of labels."""
    return list(
        {(trial.key, str(sorted(trial.labels.items()))): trial for trial in trials}.values()
    )


@dataclass(frozen=True, slots=True)
class _Said:
    """Where things stand in the file."""

    where: str
    lines: dict[_Path, int]
    folder: Path
    places: Mapping[str, _Path] = None  # type: ignore[assignment]

    @contextmanager
    def at(self, key: str, *inner: str | int) -> Iterator[None]:
        """Errors inside are of this place."""
        try:
            yield
        except DefinitionError:
            raise
        except RestackError as error:
            path = (*(self.places or {}).get(key, (key,)), *inner)
            line = line_of(self.lines, path)
            place = f"{self.where}, line {line}" if line else f"{self.where}, {key}"
            raise DefinitionError(f"{place}: {error.message}", hint=error.hint) from error

    def known(self, values: Mapping[str, Any], above: _Path) -> None:
        for key in values:
            if key not in _KEYS or (above and key == "block"):
                near = difflib.get_close_matches(key, _KEYS, n=1)
                line = line_of(self.lines, (*above, key))
                raise DefinitionError(
                    f"{self.where}{f', line {line}' if line else ''}: unknown key {key!r}",
                    hint=f"Did you mean {near[0]}?" if near else f"Known: {', '.join(_KEYS)}.",
                )


@dataclass(frozen=True, slots=True)
class _Choice:
    """One value of an axis, where it stands, and what it is to be found by."""

    value: Any
    place: int
    labels: Mapping[str, Any]


class _Block:
    """One set of axes."""

    def __init__(self, values: Mapping[str, Any], said: _Said) -> None:
        self.values, self.said = values, said
        self.kind = self.text("kind", "tune")
        with said.at("kind"):
            find_kind(self.kind)
        self.axes: dict[str, list[_Choice]] = {
            "seeds": self.wholes("seeds", [0], least=0),
            "models": self.models(),
            "tasks": self.tasks(),
            "sizes": self.wholes("sizes", ["all"], least=1),
            "recipes": self.recipes(),
            "plans": self.plans(),
        }

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

    def combinations(self) -> Iterator[dict[str, _Choice]]:
        """One choice of every axis; paired axes go together."""
        pairs = self.values.get("paired", [])
        group = {axis: (axis,) for axis in AXES}
        with self.said.at("paired"):
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

    def seen(self, chosen: Mapping[str, _Choice]) -> dict[str, Any]:
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
            with self.said.at("plans", chosen["plans"].place):
                seen["plan"] = braces.fill(seen["plan"], seen)
        return seen

    def trial(self, chosen: Mapping[str, _Choice], seen: Mapping[str, Any]) -> Trial:
        model: Model | None = chosen["models"].value
        plan = None
        if model is not None:
            with self.said.at("models", chosen["models"].place):
                model = identify.identify_model(model)
                depth = identify.depth_of(model)
            if seen["plan"] is not None:
                with self.said.at("plans", chosen["plans"].place):
                    plan = _plan(seen["plan"], depth)
        name, settings = chosen["recipes"].value
        labels = {k: v for choice in chosen.values() for k, v in choice.labels.items()}
        if self.values.get("name"):
            labels["sweep"] = self.text("name", "")
        if seen["plan"] is not None:
            labels["written"] = seen["plan"]
        if name is not None:
            labels["recipe"] = name
        return Trial(
            kind=self.kind,
            model=model,
            plan=plan,
            task=seen["task"],
            data=self.data(chosen, seen),
            settings=settings,
            seed=chosen["seeds"].value,
            labels={**labels, **self.table("labels")},
            keep=tuple(self.texts("keep", [])),
        )

    def data(self, chosen: Mapping[str, _Choice], seen: Mapping[str, Any]) -> Data | None:
        if seen["task"] is None:
            return None
        own = chosen["tasks"].value[1]
        size, seed = chosen["sizes"].value, chosen["seeds"].value
        subsample = self.values.get("subsample", "seed")
        with self.said.at("subsample"):
            if subsample != "seed" and not _is_whole(subsample, 0):
                raise RestackError(f"subsample is {subsample!r}", hint='Say "seed", or a number.')
        source = self.path(self.text("data", "")) if "data" in self.values else None
        task = identify.task_of(seen["task"], Data(own=own))
        limit = self.values.get("limit")
        with self.said.at("limit"):
            if limit is not None and not _is_whole(limit, 1):
                raise RestackError(f"limit is {limit!r}", hint="Give a whole number from 1.")
        data = Data(
            source=source,
            train=self.text("train", task.train),
            validation=tuple(self.texts("validation", list(task.validation))),
            size=size,
            subsample=None if size is None else seed if subsample == "seed" else subsample,
            limit=limit,
            own=own,
        )
        with self.said.at("sizes" if size is not None else "tasks"):
            return identify.identify_data(seen["task"], data)

    # axes

    def models(self) -> list[_Choice]:
        found = []
        for place, value in self.members("models", [None]):
            with self.said.at("models", place):
                if value is None:
                    found.append(_Choice(None, 0, {}))
                    continue
                given = {"location": value} if isinstance(value, str) else dict(value)
                given, labels = _labelled(given, ("location", "revision", "stack"), "location")
                for location, named in braces.expand(given.pop("location")):
                    model = Model(self.path(location), **given)
                    found.append(_Choice(model, place, {**named, **labels}))
        return found

    def tasks(self) -> list[_Choice]:
        found = []
        known = ("name", "path", "columns", "label", "labels", "kind")
        for place, value in self.members("tasks", [None]):
            with self.said.at("tasks", place):
                if value is None:
                    found.append(_Choice(None, 0, {}))
                    continue
                given = {"name": value} if isinstance(value, str) else dict(value)
                if unknown := [key for key in given if key not in known]:
                    raise RestackError(
                        f"a task has no {unknown[0]!r}", hint=f"Known: {', '.join(known)}."
                    )
                name, own = str(given.pop("name", "")), None
                if "path" in given:
                    own = {**given, "path": self.path(given["path"])}
                    name = name or Path(given["path"]).stem
                for one, named in braces.expand(name):
                    name = identify.task_of(one, Data(own=own)).name if own is None else one
                    found.append(_Choice((name, own), place, named))
        return found

    def plans(self) -> list[_Choice]:
        found = []
        for place, value in self.members("plans", [None]):
            with self.said.at("plans", place):
                if value is None:
                    found.append(_Choice(None, 0, {}))
                    continue
                given = {"plan": value} if isinstance(value, str) else dict(value)
                given, labels = _labelled(given, ("plan",), "plan")
                for text, named in braces.expand(given["plan"]):
                    found.append(_Choice(text, place, {**named, **labels}))
        return found

    def wholes(self, axis: str, default: list[Any], *, least: int) -> list[_Choice]:
        given = self.values.get(axis, default)
        found = []
        with self.said.at(axis):
            if isinstance(given, str):
                given = [given]
            if isinstance(given, int) and not isinstance(given, bool):
                given = [given]
        for place, value in self.listed(axis, given):
            with self.said.at(axis, place):
                values = [value]
                if isinstance(value, str) and not (axis == "sizes" and value == "all"):
                    values = braces.items(value.strip().removeprefix("{").removesuffix("}"))
                for one in values:
                    if axis == "sizes" and one == "all":
                        found.append(_Choice(None, place, {}))
                    elif _is_whole(one, least):
                        found.append(_Choice(one, place, {}))
                    else:
                        raise RestackError(
                            f"{axis}: {one!r} is no whole number from {least}",
                            hint='Write [0, 1, 2], or "0..2".',
                        )
        return found

    def recipes(self) -> list[_Choice]:
        key = "settings" if "settings" in self.values else "recipe"
        common = self.table(key)
        variants = self.table("recipes") or {None: {}}
        found = []
        for place, (name, values) in enumerate(variants.items()):
            with self.said.at("recipes" if name is not None else key, *([name] if name else [])):
                if not isinstance(values, Mapping):
                    raise RestackError(f"recipes.{name} is {values!r}", hint="Give a table.")
                settings = {**common, **values}
                if self.kind == "tune":
                    settings = recipe_settings(settings)
                found.append(_Choice((name, settings), place, {}))
        return found

    # values

    def filters(self, key: str) -> list[Mapping[str, Any]]:
        found = self.values.get(key, [])
        with self.said.at(key):
            found = [found] if isinstance(found, Mapping) else found
            if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
                raise RestackError(
                    f"{key} is a list of tables", hint='skip = [{task = "rte", size = 5000}]'
                )
            known = {name for chosen in self.combinations() for name in self.seen(chosen)}
        for number, one in enumerate(found):
            for name in one:
                with self.said.at(key, number):
                    if name not in known:
                        raise RestackError(
                            f"{key} goes by {name!r}, which no trial has",
                            hint=f"Known: {', '.join(sorted(known))}.",
                        )
        return found

    def members(self, key: str, default: list[Any]) -> list[tuple[int, Any]]:
        given = self.values.get(key, default)
        return self.listed(key, [given] if isinstance(given, str | Mapping) else given)

    def listed(self, key: str, given: Any) -> list[tuple[int, Any]]:
        with self.said.at(key):
            if not isinstance(given, list) or not given:
                raise RestackError(f"{key} is {given!r}", hint="Give a list with something in it.")
        return list(enumerate(given))

    def text(self, key: str, default: str) -> str:
        value = self.values.get(key, default)
        with self.said.at(key):
            if not isinstance(value, str):
                raise RestackError(f"{key} is {value!r}", hint="Give text.")
        return value

    def texts(self, key: str, default: list[str]) -> list[str]:
        value = self.values.get(key, default)
        with self.said.at(key):
            value = [value] if isinstance(value, str) else value
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise RestackError(f"{key} is {value!r}", hint="Give a list of texts.")
        return value

    def table(self, key: str) -> dict[Any, Any]:
        value = self.values.get(key, {})
        with self.said.at(key):
            if not isinstance(value, Mapping):
                raise RestackError(f"{key} is {value!r}", hint=f"Write it as a table [{key}].")
        return dict(value)

    def path(self, text: str) -> str:
        """A place beside the file if there is one; else what it was (a Hub name)."""
        beside = self.said.folder / Path(text).expanduser()
        return str(beside.resolve()) if beside.exists() else text


def recipe_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a recipe but the seed, which the trial has."""
    from restack.tune.recipe import Recipe

    if "seed" in values:
        raise RestackError("a recipe of a sweep has no seed", hint="Give `seeds` instead.")
    try:
        settings = Recipe.from_json(values).to_json()
    except TypeError as error:
        raise RestackError(f"a setting has a wrong value: {error}") from error
    del settings["seed"]
    return settings


def _plan(text: str, depth: int) -> str:
    if text == UNTOUCHED:
        return str(Plan.identity(depth))
    try:
        return str(Plan.parse(text, depth))
    except PlanError as error:
        raise RestackError(error.message, hint=error.hint) from error


def _labelled(
    given: dict[str, Any], known: Sequence[str], needed: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A table's own keys, and those that are labels."""
    if not isinstance(given.get(needed), str):
        raise RestackError(f"a table without {needed}", hint=f'Write {{{needed} = "...", k = 2}}.')
    own = {key: value for key, value in given.items() if key in known}
    return own, {key: value for key, value in given.items() if key not in known}


def _fits(seen: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(
        seen.get(name) in value if isinstance(value, list) else seen.get(name) == value
        for name, value in wanted.items()
    )


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
