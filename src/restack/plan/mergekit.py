"""Plans as mergekit passthrough configurations, and back.

A `layer_range` of theirs excludes its end. They have no fresh or tied layers; a no-op copy is a
slice that scales the projections which write into the residual stream by zero. Which ones these
are depends on the architecture, so the caller names them.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Any, NoReturn

from restack.errors import PlanError
from restack.plan.plan import MAX_SLOTS, Mark, Plan, Slot, checked_depth

LLAMA_PROJECTIONS = ("o_proj", "down_proj")
"""Parts of tensor names that write into the residual stream, in Llama and its relatives."""

_MOST_CHARACTERS = 1_000_000
_WHOLE = re.compile(r"[0-9]{1,9}")
_ZERO = re.compile(r"[+-]?0+(\.0*)?")
_ONE = re.compile(r"\+?0*1(\.0*)?")
# These say how the result is stored and which tokenizer it gets, not which layers it is made of.
_NOT_ABOUT_LAYERS = {"name", "dtype", "out_dtype", "tokenizer", "tokenizer_source", "chat_template"}
_PROJECTIONS_HINT = (
    "name the parts of tensor names that write into the residual stream, "
    f"for Llama: projections={LLAMA_PROJECTIONS}"
)


def to_mergekit(
    plan: Plan, model: str, *, dtype: str | None = None, projections: Sequence[str] = ()
) -> str:
    """Write a plan over `model` as a mergekit passthrough configuration.

    >>> print(to_mergekit(Plan.parse("0-1,1-3", 4), "org/model", dtype="bfloat16"), end="")
    slices:
    - sources:
      - model: org/model
        layer_range: [0, 2]
    - sources:
      - model: org/model
        layer_range: [1, 4]
    merge_method: passthrough
    dtype: bfloat16
    """
    import yaml

    _check_projections(projections)
    for position, slot in enumerate(plan):
        if slot.mark in (Mark.FRESH, Mark.TIED):
            raise PlanError(f"slot {position} is {slot}: mergekit has no @{slot.mark} layers")
        if slot.mark is Mark.NOOP and not projections:
            raise PlanError(f"slot {position} is {slot}: nothing to zero", hint=_PROJECTIONS_HINT)
    slices = []
    for start, stop, mark in _runs(plan):
        source: dict[str, Any] = {"model": model, "layer_range": [start, stop]}
        if mark is Mark.NOOP:
            zeroed = [{"filter": name, "value": 0.0} for name in projections]
            source["parameters"] = {"scale": [*zeroed, {"value": 1.0}]}
        slices.append({"sources": [source]})
    config: dict[str, Any] = {"slices": slices, "merge_method": "passthrough"}
    if dtype is not None:
        config["dtype"] = dtype
    return yaml.safe_dump(config, sort_keys=False, default_flow_style=None, width=1000)


def from_mergekit(text: str, depth: int, *, projections: Sequence[str] = ()) -> tuple[str, Plan]:
    """Read a mergekit passthrough configuration: the name of its model, and the plan over it.

    All slices must come from one model of `depth` layers. A slice that scales exactly
    `projections` by zero is a no-op copy; any other scaling is refused. What does not concern the
    layers, such as dtype and tokenizer, has no place in a plan and is left out.

    >>> from_mergekit(to_mergekit(Plan.parse("0-15,8-23", 24), "org/model"), depth=24)
    ('org/model', Plan.parse('0-15,8-23', depth=24))
    """
    checked_depth(depth)
    _check_projections(projections)
    config = _mapping(
        _loaded(text), "the top level", {"slices", "merge_method", "base_model"} | _NOT_ABOUT_LAYERS
    )
    if config.get("merge_method") != "passthrough":
        _refuse("merge_method", config.get("merge_method"), "passthrough")
    slots: list[Slot] = []
    models = {"base_model": config["base_model"]} if "base_model" in config else {}
    for number, entry in enumerate(_list(config.get("slices"), "slices")):
        where = f"slices[{number}].sources"
        sources = _list(_mapping(entry, f"slices[{number}]", {"sources"}).get("sources"), where)
        if len(sources) != 1:
            _refuse(where, sources, "one entry, as passthrough merges nothing")
        source = _mapping(sources[0], f"{where}[0]", {"model", "layer_range", "parameters"})
        models[f"{where}[0].model"] = source.get("model")
        layers = _layer_range(source.get("layer_range"), f"{where}[0].layer_range", depth)
        mark = _mark(source.get("parameters"), f"{where}[0].parameters", projections)
        if len(slots) + len(layers) > MAX_SLOTS:
            raise PlanError(f"mergekit configuration: more than {MAX_SLOTS} layers in all")
        slots.extend(Slot(layer, mark) for layer in layers)
    return _the_one_model(models), Plan(depth, tuple(slots))


def _runs(plan: Plan) -> Iterator[tuple[int, int, Mark]]:
    """Neighbouring slots that one slice can hold, as start, end (excluded) and mark."""
    # Within a slice the source rises with the position, so their difference stays the same.
    for (_, mark), run in groupby(enumerate(plan), lambda at: (at[1].source - at[0], at[1].mark)):
        sources = [slot.source for _, slot in run]
        yield sources[0], sources[-1] + 1, mark


def _check_projections(projections: Sequence[str]) -> None:
    # Filters fit any part of a tensor name, so "" or the letters of a single string fit too much.
    if isinstance(projections, str) or not all(name.strip("* ") for name in projections):
        raise PlanError(f"projections={projections!r}: expected parts of tensor names, in a tuple")


def _loaded(text: str) -> Any:
    import yaml

    if len(text) > _MOST_CHARACTERS:
        raise PlanError(f"mergekit configuration: more than {_MOST_CHARACTERS} characters")
    try:
        # The base loader leaves every scalar a string, so that no tag can construct anything.
        return yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        place = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = f"{error.problem or error.context}{place}"
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        # The last three are what the parser itself trips over: \U escapes, version numbers, depth.
        problem = str(error).partition("\n")[0]
    raise PlanError(f"mergekit configuration: not readable as YAML: {problem}")


def _mapping(value: Any, where: str, allowed: Collection[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(where, value, "keys with values")
    for key in value:
        if key not in allowed:
            raise PlanError(
                f"mergekit configuration: {where} has the key {_shown(key)}, "
                "which a plan over one model cannot express",
                hint=f"expected only {', '.join(sorted(allowed))}",
            )
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        _refuse(where, value, "a list with entries")
    return value


def _layer_range(value: Any, where: str, depth: int) -> range:
    expected = f"[start, end] with 0 <= start < end <= {depth}"
    if not isinstance(value, list) or len(value) != 2:
        _refuse(where, value, expected)
    if not all(isinstance(end, str) and _WHOLE.fullmatch(end) for end in value):
        _refuse(where, value, expected)
    layers = range(int(value[0]), int(value[1]))
    if not layers or layers.stop > depth:
        _refuse(where, value, expected)
    return layers


def _mark(parameters: Any, where: str, projections: Sequence[str]) -> Mark:
    """Whether a slice is a plain or a no-op copy, from its parameters."""
    if parameters is None:
        return Mark.COPY
    scale = _list(_mapping(parameters, where, {"scale"}).get("scale"), f"{where}.scale")
    zeroed: list[str] = []
    for number, entry in enumerate(scale):
        at = f"{where}.scale[{number}]"
        value = _mapping(entry, at, {"filter", "value"}).get("value")
        name = entry.get("filter", "*")
        if not isinstance(name, str):
            _refuse(f"{at}.filter", name, "a part of tensor names")
        # The first filter that fits a tensor counts; the one for all the rest must come last.
        is_rest = name == "*" and number == len(scale) - 1
        if not isinstance(value, str) or not (_ONE if is_rest else _ZERO).fullmatch(value):
            _refuse(f"{at}.value", value, "1.0" if is_rest else "0.0")
        if not is_rest:
            zeroed.append(name)
    if not zeroed:
        return Mark.COPY
    if sorted(zeroed) != sorted(projections):
        raise PlanError(
            f"mergekit configuration: {where}.scale zeroes {', '.join(zeroed)[:100]}; "
            f"a no-op copy would zero {', '.join(projections) or 'projections that are not named'}",
            hint=_PROJECTIONS_HINT,
        )
    return Mark.NOOP


def _the_one_model(models: dict[str, Any]) -> str:
    first, *_ = names = list(models.items())
    for where, name in names:
        if not isinstance(name, str) or not name:
            _refuse(where, name, "the name of a model")
        if name != first[1]:
            _refuse(where, name, f"{first[1]!r} as in {first[0]}: a plan has one source")
    return str(first[1])


def _shown(value: Any) -> str:
    # Aliases let a few lines of YAML stand for a value of any size, so repr() is not for it.
    short = reprlib.Repr()
    short.maxlevel = 2
    return short.repr(value)[:100]


def _refuse(where: str, found: Any, expected: str) -> NoReturn:
    shown = "is missing" if found is None else f"is {_shown(found)}"
    raise PlanError(f"mergekit configuration: {where} {shown}; expected {expected}")
