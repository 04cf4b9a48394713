"""Frozen dataclasses as plain JSON data and back, by their own field types."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from restack.errors import DataError


class Plain:
    """A frozen dataclass whose fields are numbers, texts, tuples, mappings and others like it."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data; fields that hold their default are left out."""
        return {
            field.name: _plain(value)
            for field in fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, field.name)) != field.default or field.default is MISSING
        }

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """What `to_json` has written; anything else is an error that names the place."""
        return _object(cls, data, cls.__name__)  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    if isinstance(value, Plain):
        return value.to_json()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


@cache
def _types(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _object(cls: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise _unfit(where, f"an object of {cls.__name__}", data)
    kinds = _types(cls)
    for name in data:
        if name not in kinds:
            raise DataError(f"{where} has no field {name!r}", hint=f"known: {', '.join(kinds)}")
    for field in fields(cls):
        if field.default is MISSING and field.default_factory is MISSING and field.name not in data:
            raise DataError(f"{where} misses the field {field.name!r}")
    return cls(**{name: _read(kinds[name], item, f"{where}.{name}") for name, item in data.items()})


def _read(kind: Any, data: Any, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _one_of(inner, data, where)
    if origin is Literal:
        if data not in inner:
            raise _unfit(where, " | ".join(map(repr, inner)), data)
        return data
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise _unfit(where, "a list", data)
        parts = [inner[0]] * len(data) if inner[-1] is Ellipsis else list(inner)
        if len(parts) != len(data):
            raise _unfit(where, f"a list of {len(parts)}", data)
        pairs = zip(parts, data, strict=True)
        return tuple(_read(part, item, f"{where}[{i}]") for i, (part, item) in enumerate(pairs))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, dict):
            raise _unfit(where, "an object", data)
        return {key: _read(inner[1], item, f"{where}.{key}") for key, item in data.items()}
    if is_dataclass(kind):
        return _object(kind, data, where)  # type: ignore[arg-type]
    return _scalar(kind, data, where)


def _one_of(kinds: tuple[Any, ...], data: Any, where: str) -> Any:
    """The member of a union that fits, exact types first, so that 3 stays 3 in int | float."""
    for kind in kinds:
        if kind is type(data):
            return data
    for kind in kinds:
        if is_dataclass(kind) and isinstance(data, dict):
            return _object(kind, data, where)  # type: ignore[arg-type]
        if kind is float and isinstance(data, int) and not isinstance(data, bool):
            return float(data)
        if get_origin(kind) is not None and isinstance(data, list | dict):
            return _read(kind, data, where)
    raise _unfit(where, " | ".join(getattr(kind, "__name__", str(kind)) for kind in kinds), data)


def _scalar(kind: type, data: Any, where: str) -> Any:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if type(data) is not kind:
        raise _unfit(where, kind.__name__, data)
    return data


def _unfit(where: str, wanted: str, data: Any) -> DataError:
    return DataError(f"{where} is {str(data)[:60]!r}, not {wanted}")


def finite(where: str, *values: Any) -> None:
    """Refuse numbers that neither a chart nor JSON can show."""
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise DataError(f"{where}: {value} cannot be shown", hint="Leave out what failed.")
