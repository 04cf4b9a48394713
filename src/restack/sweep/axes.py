"""The axes of a sweep: what can be chosen of each, with braces written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from restack.errors import RestackError
from restack.sweep import braces, identify
from restack.sweep.reading import Values, is_whole
from restack.sweep.trial import Data, Model

AXES = ("seeds", "models", "tasks", "sizes", "recipes", "plans")
"""From the slowest to the fastest: all of a sweep is there once before any seed is repeated."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of an axis, where it stands, and what it is to be found by."""

    value: Any
    place: int
    labels: Mapping[str, Any]


def read_axes(values: Values, kind: str) -> dict[str, list[Choice]]:
    """All choices of every axis; an axis that is not given has one."""
    return {
        "seeds": _wholes(values, "seeds", [0], least=0),
        "models": _models(values),
        "tasks": _tasks(values),
        "sizes": _wholes(values, "sizes", ["all"], least=1),
        "recipes": _recipes(values, kind),
        "plans": _plans(values, ["untouched"] if kind == "tune" else [None]),
    }


def _models(values: Values) -> list[Choice]:
    found = []
    for place, value in values.members("models", [None]):
        with values.at("models", place):
            if value is None:
                found.append(Choice(None, 0, {}))
                continue
            given = {"location": value} if isinstance(value, str) else _mapping(value, "a model")
            given, labels = _labelled(given, ("location", "revision", "stack"), "location")
            for location, named in braces.expand(given.pop("location")):
                model = Model(values.path(location), **given)
                found.append(Choice(model, place, {**named, **labels}))
    return found


def _tasks(values: Values) -> list[Choice]:
    found = []
    known = ("name", "path", "columns", "label", "labels", "kind")
    for place, value in values.members("tasks", [None]):
        with values.at("tasks", place):
            if value is None:
                found.append(Choice(None, 0, {}))
                continue
            given = {"name": value} if isinstance(value, str) else _mapping(value, "a task")
            if unknown := [key for key in given if key not in known]:
                raise RestackError(
                    f"a task has no {unknown[0]!r}", hint=f"Known: {', '.join(known)}."
                )
            name, own = str(given.pop("name", "")), None
            if "path" in given:
                own = {**given, "path": values.path(given["path"])}
                name = name or Path(given["path"]).stem
            for one, named in braces.expand(name):
                name = identify.task_of(one, Data(own=own)).name if own is None else one
                found.append(Choice((name, own), place, named))
    return found


def _plans(values: Values, default: list[Any]) -> list[Choice]:
    found = []
    for place, value in values.members("plans", default):
        with values.at("plans", place):
            if value is None:
                found.append(Choice(None, 0, {}))
                continue
            given = {"plan": value} if isinstance(value, str) else _mapping(value, "a plan")
            given, labels = _labelled(given, ("plan",), "plan")
            for text, named in braces.expand(given["plan"]):
                found.append(Choice(text, place, {**named, **labels}))
    return found


def _wholes(values: Values, axis: str, default: list[Any], *, least: int) -> list[Choice]:
    found = []
    given = values.given.get(axis, default)
    if isinstance(given, int) and not isinstance(given, bool):
        values = Values({**values.given, axis: [given]}, values.source)
    for place, value in values.members(axis, default):
        with values.at(axis, place):
            several = [value]
            if isinstance(value, str) and not (axis == "sizes" and value == "all"):
                several = braces.items(value.strip().removeprefix("{").removesuffix("}"))
            for one in several:
                if axis == "sizes" and one == "all":
                    found.append(Choice(None, place, {}))
                elif is_whole(one, least):
                    found.append(Choice(one, place, {}))
                else:
                    raise RestackError(
                        f"{axis}: {one!r} is no whole number from {least}",
                        hint='Write [0, 1, 2], or "0..2".',
                    )
    return found


def _recipes(values: Values, kind: str) -> list[Choice]:
    key = "settings" if "settings" in values else "recipe"
    common = values.table(key)
    variants = values.table("recipes") or {None: {}}
    found = []
    for place, (name, own) in enumerate(variants.items()):
        with values.at("recipes" if name is not None else key, *([name] if name else [])):
            if not isinstance(own, Mapping):
                raise RestackError(f"recipes.{name} is {own!r}", hint="Give a table.")
        settings = {**common, **own}
        if kind == "tune":
            try:
                settings = recipe_settings(settings)
            except RestackError as error:
                wrong = next((one for one in settings if _blames(error.message, one)), None)
                own_one = name is not None and (wrong is None or wrong in own)
                above = ("recipes", name) if own_one else (key,)
                with values.at(*above, *([] if wrong is None else [wrong])):
                    raise
        found.append(Choice((name, settings), place, {}))
    return found


def _blames(message: str, setting: str) -> bool:
    """Whether a message of a recipe is about this setting: they begin with it, or quote it."""
    return message.startswith(f"{setting} is ") or repr(setting) in message


def recipe_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a recipe but the seed, which the trial has; and how fresh slots start."""
    from restack.surgery.fresh import DEFAULT, FAMILY, choose
    from restack.tune.recipe import Recipe

    own = dict(values)
    if "seed" in own:
        raise RestackError("a recipe of a sweep has no seed", hint="Give `seeds` instead.")
    init = own.pop("init", DEFAULT)
    if init != FAMILY:
        choose(str(init))
    try:
        settings = Recipe.from_json(own).to_json()
    except (TypeError, ValueError) as error:
        raise RestackError(f"a setting has a wrong value: {error}") from error
    del settings["seed"]
    return settings | {"init": init}


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise RestackError(f"{value!r} is not {what}", hint="Give text, or a table.")
    return dict(value)


def _labelled(
    given: dict[str, Any], known: Sequence[str], needed: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A table's own keys, and those that are labels."""
    if not isinstance(given.get(needed), str):
        raise RestackError(f"a table without {needed}", hint=f'Write {{{needed} = "...", k = 2}}.')
    own = {key: value for key, value in given.items() if key in known}
    return own, {key: value for key, value in given.items() if key not in known}
