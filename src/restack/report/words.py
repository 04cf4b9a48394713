"""Numbers, intervals and entries of tables as people read them."""

from __future__ import annotations

import math

from restack.studies.findings import Axis, Column, Entry, Findings, Number, Provenance

MINUS = "\u2212"


def digits_for(values: list[float], unit: str) -> int:
    """How many digits behind the point tell such values apart."""
    if unit == "%":
        return 1
    largest = max((abs(value) for value in values), default=0.0)
    if all(float(value).is_integer() for value in values):
        return 0
    return max(0, min(4, 3 - math.ceil(math.log10(largest)))) if largest else 0


def number(value: float, unit: str = "", digits: int | None = None, *, sign: bool = True) -> str:
    """A number without its unit; a fraction as a percentage where the unit is "%"."""
    shown = value * 100 if unit == "%" else value
    if digits is None:
        digits = digits_for([value], unit)
    text = f"{shown:,.{digits}f}"
    if text.strip("-0.,") == "":
        text = text.lstrip("-")  # no minus zero
    return text.replace("-", MINUS) if sign else text


def with_unit(value: float, unit: str, digits: int | None = None) -> str:
    """A number with its unit: 91.2%, 3.1 points."""
    text = number(value, unit, digits)
    return f"{text}%" if unit == "%" else f"{text} {unit}".rstrip()


def spread(value: float, low: float | None, high: float | None, unit: str, digits: int) -> str:
    """An interval beside a mean: ±0.5 if it is symmetric, else both ends."""
    if low is None or high is None:
        return ""
    half = (high - low) / 2
    if abs((value - low) - half) <= 1e-9 + 0.01 * half:
        return f"±{number(half, unit, digits)}"
    return f"({number(low, unit, digits)} to {number(high, unit, digits)})"


def axis_title(axis: Axis) -> str:
    """The label with its unit, which "%" carries on its ticks instead."""
    return axis.label if axis.unit in ("", "%") else f"{axis.label} ({axis.unit})"


def column_title(column: Column) -> str:
    """The name with its unit, so that the entries are bare numbers.

    >>> column_title(Column("loss", unit="points")), column_title(Column("paper (BERT)", unit="%"))
    ('loss (points)', 'paper (BERT, %)')
    """
    if not column.unit:
        return column.name
    if column.name.endswith(")"):
        return f"{column.name[:-1]}, {column.unit})"
    return f"{column.name} ({column.unit})"


def column_digits(column: Column, entries: list[Entry]) -> int:
    """The digits that all numbers of a column share."""
    if column.digits is not None:
        return column.digits
    return digits_for([v for entry in entries if (v := numeric(entry)) is not None], column.unit)


def numeric(entry: Entry) -> float | None:
    """The number of an entry, None if it is none."""
    if isinstance(entry, Number):
        return entry.value
    if isinstance(entry, bool) or not isinstance(entry, int | float):
        return None
    return float(entry)


def entry_text(entry: Entry, column: Column, digits: int) -> str:
    """An entry as it is printed, its interval not included."""
    if entry is None:
        return ""
    if isinstance(entry, bool):
        return "yes" if entry else "no"
    value = numeric(entry)
    return str(entry) if value is None else number(value, column.unit, digits)


def entry_spread(entry: Entry, column: Column, digits: int) -> str:
    """The interval of an entry; the number of trials where they are too few for one."""
    if not isinstance(entry, Number):
        return ""
    if few(entry):
        return f"n = {entry.n}"
    return spread(entry.value, entry.low, entry.high, column.unit, digits)


def few(entry: Entry) -> bool:
    """Whether a mean is of too few trials for an interval."""
    return isinstance(entry, Number) and 0 < entry.n < 3 and not entry.published


def is_published(entry: Entry, column: Column) -> bool:
    """Whether an entry is from a paper."""
    return entry is not None and (
        column.published or (isinstance(entry, Number) and entry.published)
    )


def sections(found: Findings) -> list[str]:
    """The headings as figures, then tables name them; those without one come last."""
    named = [figure.section for figure in found.figures]
    named += [table.section for table in found.tables]
    return sorted(dict.fromkeys(named), key=lambda section: section == "")


def made_with(about: Provenance) -> list[tuple[str, str]]:
    """When, on what and with what findings were made, as pairs."""
    made = [("date", about.date), ("hardware", about.hardware), ("command", about.command)]
    made += list((about.versions or {}).items())
    return [(name, said) for name, said in made if said]


def splits(about: Provenance) -> list[tuple[str, str]]:
    """The data, each with what is to be known about it."""
    return [
        (f"{s.data}, {s.split}", f"{s.rows:,} rows" + (f": {s.note}" if s.note else ""))
        for s in about.splits
    ]
