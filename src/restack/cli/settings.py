"""Options of a command out of the settings of a recipe, so that no setting is written twice."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from restack.errors import RestackError
from restack.tune.recipe import Recipe

PANEL = "Settings of the training"


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each setting of a recipe to a command, which gets them as `settings`."""
    own = inspect.signature(command, eval_str=True)
    hints = typing.get_type_hints(Recipe)
    said = _said()
    added = {
        field.name: inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=_option(field.name, hints[field.name], field.default, said[field.name]),
        )
        for field in fields(Recipe)
    }

    @functools.wraps(command)
    def run(**values: Any) -> None:
        given = {name: values.pop(name) for name in added}
        command(**values, settings={n: v for n, v in given.items() if v is not None})

    kept = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in own.parameters.items()
        if name != "settings"
    ]
    run.__signature__ = inspect.Signature([*kept, *added.values()])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in [*kept, *added.values()]}
    del run.__wrapped__  # type: ignore[attr-defined]  # typer would read its signature instead
    return run


def recipe_from(
    file: Path | None, settings: Mapping[str, Any], assigned: Iterable[str] = ()
) -> Recipe:
    """A recipe: its defaults, then a file, then options, then assignments `name=value`."""
    values: dict[str, Any] = {} if file is None else _read(file)
    values |= {name: _value(name, value) for name, value in settings.items()}
    for text in assigned:
        name, sign, value = text.partition("=")
        if not sign:
            raise RestackError(f"--set {text!r}", hint="Write name=value, such as rate=3e-5.")
        values[name.strip().replace("-", "_")] = _value(name.strip(), _parsed(value.strip()))
    if values.get("batch_tokens") is not None and "batch_size" not in values:
        values["batch_size"] = None  # the one that is asked for takes the place of the default
    if values.get("packing") and "blocks" not in values:
        values["blocks"] = False
    try:
        return Recipe.from_json(values)
    except TypeError as error:
        raise RestackError(
            f"a setting has a value of the wrong kind: {error}",
            hint="`restack tune --help` tells what each one takes.",
        ) from error


def _said() -> dict[str, str]:
    """What stands in the source below each field."""
    tree = ast.parse(inspect.getsource(Recipe)).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    name = ""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            found[name] = " ".join(str(node.value.value).split())
    return found


def _option(name: str, hint: Any, default: Any, said: str) -> Any:
    """The option of one setting, which is None where it is not given."""
    plain = [part for part in get_args(hint) if part is not type(None)] or [hint]
    kind, metavar = plain[0] if get_origin(hint) is not Literal else hint, None
    if get_origin(kind) is Literal:
        metavar, kind = "|".join(get_args(kind)), str
    elif name == "freeze":
        metavar, kind = "N,N-N", str
    elif name == "lora":
        metavar, kind = "RANK[:ALPHA[:DROPOUT]]", str
    elif name == "betas":
        metavar, kind = "FLOAT,FLOAT", str
    flag = f"--{name.replace('_', '-')}"
    flags = [f"{flag}/--no-{flag[2:]}"] if kind is bool else [flag]
    shown = "" if default in (None, (), MISSING, False) else f" ({_shown(default)})"
    return Annotated[
        kind | None,
        typer.Option(*flags, metavar=metavar, help=said + shown, rich_help_panel=PANEL),
    ]


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if value is True:
        return "yes"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _value(name: str, value: Any) -> Any:
    """A value as the recipe has it, from the text that some settings are given as."""
    if not isinstance(value, str):
        return value
    try:
        if name == "freeze":
            return [slot for part in value.split(",") for slot in _range(part)]
        if name == "betas":
            return [float(part) for part in value.split(",")]
        if name == "lora":
            parts = value.split(":")
            numbers = [int(parts[0]), *map(float, parts[1:])]
            return dict(zip(("rank", "alpha", "dropout"), numbers, strict=False))
    except ValueError as error:
        raise RestackError(f"{name} is {value!r}, which cannot be read: {error}") from error
    return value


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _parsed(text: str) -> Any:
    """A value as in JSON, or else a text."""
    if text.lower() in ("none", ""):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read(path: Path) -> dict[str, Any]:
    readers: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": json.loads}
    if path.suffix not in readers:
        raise RestackError(
            f"{path}: a recipe is a .toml or a .json file", hint="Give one with such an ending."
        )
    try:
        values = readers[path.suffix](path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RestackError(f"{path} cannot be read: {error}") from error
    # what `restack tune` writes holds the recipe beside the results
    values = values.get("recipe", values) if isinstance(values, dict) else values
    if not isinstance(values, dict):
        raise RestackError(f"{path} holds no settings", hint="Expected names and values.")
    return values
