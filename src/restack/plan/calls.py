"""The verb form of plans: what each verb may be called with, and reading such a call."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from restack.errors import PlanError
from restack.plan import verbs
from restack.plan.plan import Plan
from restack.plan.reader import Reader, suggestion

_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_DECIMAL = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")


@dataclass(frozen=True, slots=True)
class Verb:
    """How a verb is written and which function it stands for.

    `keys` are the `key=` that it knows; `bare` is what may stand without one: "layers", "times"
    (layers, each with an optional xN), "number", "each", or nothing.
    """

    build: Callable[..., Plan]
    form: str
    keys: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()


_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _swap(depth: int, layers: Sequence[int]) -> Plan:
    if len(layers) != 2:
        raise PlanError(f"swap: expected two layers, found {len(layers)}")
    return verbs.swap(depth, *layers)


VERBS: Mapping[str, Verb] = {
    "drop": Verb(
        verbs.drop,
        "drop:top=K | bottom=K | even=K | odd=K | symmetric=K | LAYERS | above=X | lowest=K",
        ("top", "bottom", "even", "odd", "symmetric", "above", "lowest"),
        ("layers",),
    ),
    "duplicate": Verb(
        verbs.duplicate,
        "duplicate:first=K | last=K | to=K | each | LAYERS | LAYERSxN",
        ("first", "last", "to"),
        ("times", "each"),
    ),
    "repeat": Verb(verbs.repeat, "repeat:K", bare=("number",)),
    "reverse": Verb(verbs.reverse, "reverse"),
    "swap": Verb(_swap, "swap:A,B", bare=("layers",)),
    "permute": Verb(verbs.permute, "permute:seed=K", ("seed",)),
    "reinit": Verb(verbs.reinit, "reinit:after=K | LAYERS", ("after",), ("layers",)),
    "keep": Verb(verbs.keep, "keep:LAYERS", bare=("layers",)),
    "noop": Verb(verbs.noop, "noop:LAYERS", bare=("layers",)),
    "expand": Verb(verbs.expand, "expand:every=K", ("every",)),
    "upscale": Verb(verbs.upscale, "upscale:K", bare=("number",)),
}
"""All verbs by name; LAYERS in their forms are numbers and ranges as in 3,5-7."""


def read_verb(reader: Reader, depth: int, scores: Sequence[float] | None) -> Plan:
    """Read one verb call and make its plan for a stack of `depth` layers."""
    start = reader.at
    name = reader.match(_WORD)
    verb = VERBS.get(name)
    if verb is None:
        known = f"the verbs are {', '.join(VERBS)}"
        reader.fail("unknown verb", start, suggestion(name, VERBS, known))
    reader.blank()
    place = start
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = {}
    if reader.take(":"):
        reader.blank()
        place = reader.at
        arguments, options = _arguments(reader, name, verb, depth)
    elif verb.keys or verb.bare:
        reader.fail(f"{name} needs an argument", hint=verb.form)
    try:
        if "above" in options or "lowest" in options:
            return _drop_by_score(depth, scores, **options)
        return verb.build(depth, *arguments, **options)
    except PlanError as error:
        reader.fail(error.message, place, error.hint)


def _arguments(reader: Reader, name: str, verb: Verb, depth: int) -> _Arguments:
    """Read what stands behind the colon, as positional and named arguments."""
    start = reader.at
    key = reader.match(_WORD)
    if key and key in verb.bare and key == "each":
        return (), {"each": True}
    if key in verb.keys:
        reader.blank()
        if not reader.take("="):
            reader.fail(f"expected '=' and a number behind {key}")
        reader.blank()
        return (), {key: _decimal(reader) if key == "above" else reader.whole("a whole number")}
    if key or not verb.bare:
        known = (*verb.keys, *(word for word in verb.bare if word == "each"))
        what = f"{name} cannot be called with this"
        reader.fail(what, start, suggestion(key, known, verb.form))
    if "number" in verb.bare:
        return (reader.whole("a whole number"),), {}
    times = _layers(reader, depth, "times" in verb.bare)
    return (times if "times" in verb.bare else tuple(times),), {}


def _layers(reader: Reader, depth: int, with_times: bool) -> dict[int, int]:
    """Read layer numbers and ranges; how often each is to stand is 2 where nothing is said."""
    layers: dict[int, int] = {}
    while True:
        start = reader.at
        first, last = sorted(reader.span())
        times = reader.whole("a number of times") if with_times and reader.take("x") else 2
        if times < 1:
            reader.fail("a layer cannot stand 0 times", start, "drop it instead")
        if last >= depth:
            reader.fail(f"layer {last} is not there; the layers are 0..{depth - 1}", start)
        for layer in range(first, last + 1):
            if layer in layers:
                reader.fail(f"layer {layer} is named twice", start)
            layers[layer] = times
        reader.blank()
        if not reader.take(","):
            return layers
        reader.blank()


def _decimal(reader: Reader) -> float:
    start = reader.at
    digits = reader.match(_DECIMAL)
    if not digits:
        reader.fail("expected a number like 0.925", start)
    return float(digits)


def _drop_by_score(
    depth: int,
    scores: Sequence[float] | None,
    above: float | None = None,
    lowest: int | None = None,
) -> Plan:
    if scores is None:
        raise PlanError(
            "dropping by contribution needs scores, and none are given",
            hint="`restack score MODEL` measures how alike each layer's input and output are, and "
            "gives the plan; in Python, Plan.parse(text, depth, scores=...)",
        )
    return verbs.drop_by_score(depth, scores, above=above, count=lowest)
