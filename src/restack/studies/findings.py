"""What a study has found, as plain data: nothing here draws, and a report needs nothing else.

Numbers are in the unit of the axis or column they stand in (fractions stay fractions: an axis with
the unit "%" prints 0.912 as 91.2 %). Layers count from 0 and layer 0 of a curve over states is the
embeddings. What has no interval (fewer than three trials) leaves `low` and `high` out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from restack.errors import DataError
from restack.stats import Mean
from restack.studies.plain import Plain, finite

FigureKind = Literal["curve", "bars", "dots", "density", "heatmap"]
Status = Literal["seen", "not seen", "undecided", "not applicable"]
STATUSES: tuple[Status, ...] = ("seen", "not seen", "undecided", "not applicable")


# --- figures ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Point(Plain):
    """A value with its 95% interval; `n` is the number of trials behind it (0: not known)."""

    x: float | str
    y: float
    low: float | None = None
    high: float | None = None
    n: int = 0
    label: str = ""
    """Said when one points at it, for instance the plan."""

    def __post_init__(self) -> None:
        finite(f"point at {self.x}", self.x, self.y, self.low, self.high)

    @classmethod
    def of(cls, x: float | str, mean: Mean, label: str = "") -> Point:
        """A mean of `restack.stats` at a place."""
        return cls(x, mean.mean, mean.low, mean.high, mean.n, label)


@dataclass(frozen=True, slots=True)
class Series(Plain):
    """Points that belong together: one line, one colour of bars, one density."""

    name: str
    points: tuple[Point, ...]
    published: bool = False
    """From the paper, not measured here: drawn in a mark of its own."""
    facet: str = ""
    """The small panel it stands in, for instance a task; panels share their axes."""

    @classmethod
    def of_values(cls, name: str, values: Sequence[float], facet: str = "") -> Series:
        """Single values for a density, as points on its x axis."""
        return cls(name, tuple(Point(float(value), 0.0) for value in values), facet=facet)


@dataclass(frozen=True, slots=True)
class Axis(Plain):
    """What stands along one side; a domain left out comes from the data."""

    label: str
    unit: str = ""
    """"%" prints fractions as percentages; "points" and all others are printed behind numbers."""
    kind: Literal["number", "layer", "category"] = "number"
    domain: tuple[float, float] | None = None
    order: tuple[str, ...] = ()
    """The categories in their order; those not named follow as they come."""
    log: bool = False

    @classmethod
    def layers(cls, label: str = "layer (0 = embeddings)") -> Axis:
        """Layers in whole steps."""
        return cls(label, kind="layer")


@dataclass(frozen=True, slots=True)
class Rule(Plain):
    """A line across the figure, for instance the untouched model."""

    value: float
    name: str
    axis: Literal["x", "y"] = "y"
    published: bool = False
    facet: str = ""
    """The panel it stands in; all of them if empty."""

    def __post_init__(self) -> None:
        finite(f"rule {self.name!r}", self.value)


@dataclass(frozen=True, slots=True)
class Cell(Plain):
    """One field of a heat map; `value` None is a field that was not measured."""

    x: float | str
    y: float | str
    value: float | None
    label: str = ""
    facet: str = ""

    def __post_init__(self) -> None:
        finite(f"cell {self.x}, {self.y}", self.x, self.y, self.value)


@dataclass(frozen=True, slots=True)
class Figure(Plain):
    """One figure.

    curve    lines over a number or over layers, intervals as bands
    bars     categories on x, values upwards, intervals as whiskers
    dots     categories on x, drawn as rows, values to the right; with numbers on x, a scatter
    density  the x of the points are single values; curves of their density are computed
    heatmap  `cells`, coloured by `colour`; `series` is empty
    """

    key: str
    """Unique among the findings; a short slug, as it becomes an anchor and a file name."""
    title: str
    kind: FigureKind
    x: Axis
    y: Axis
    series: tuple[Series, ...] = ()
    rules: tuple[Rule, ...] = ()
    cells: tuple[Cell, ...] = ()
    colour: Axis | None = None
    """What the colours of a heat map mean."""
    middle: float | None = None
    """The value that counts as neutral in a heat map: colours then diverge from it."""
    note: str = ""
    """How to read it: one or two sentences below the figure."""
    section: str = ""
    """The heading it stands under."""
    paper: str = ""
    """Its counterpart, for instance "Kao et al., figure 2"."""

    def __post_init__(self) -> None:
        if self.kind == "heatmap" and (self.series or self.colour is None):
            raise DataError(f"figure {self.key!r}: a heat map has cells and a colour, no series")
        if self.kind != "heatmap" and self.cells:
            raise DataError(f"figure {self.key!r}: only a heat map has cells")


# --- tables -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Number(Plain):
    """A number in a table with its interval, or one from a paper."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 0
    published: bool = False
    note: str = ""
    """Said when one points at it, for instance that the paper contradicts itself."""

    def __post_init__(self) -> None:
        finite("a number of a table", self.value, self.low, self.high)

    @classmethod
    def of(cls, mean: Mean) -> Number:
        """A mean of `restack.stats`."""
        return cls(mean.mean, mean.low, mean.high, mean.n)


Entry = str | int | float | bool | Number | None


@dataclass(frozen=True, slots=True)
class Column(Plain):
    """A column: how its entries are printed and aligned."""

    name: str
    kind: Literal["text", "number", "plan"] = "text"
    unit: str = ""
    """As for an axis: "%" prints fractions as percentages."""
    digits: int | None = None
    """Behind the point; for "%", of the percentage. None chooses by the size of the number."""
    align: Literal["", "left", "right", "centre"] = ""
    """Numbers go right and texts left if empty."""
    published: bool = False
    """Every entry of this column is from the paper."""


@dataclass(frozen=True, slots=True)
class Table(Plain):
    """Rows of entries, one for each column."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Entry, ...], ...]
    note: str = ""
    section: str = ""
    paper: str = ""
    long: bool = False
    """Of use for looking things up only: the report keeps it folded."""

    def __post_init__(self) -> None:
        for place, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise DataError(
                    f"table {self.key!r}, row {place}: {len(row)} entries for "
                    f"{len(self.columns)} columns"
                )
            finite(f"table {self.key!r}, row {place}", *row)


# --- words --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line(Plain):
    """One line of the summary: a number that stands for itself, and what it says."""

    kind: Literal["kept", "lost", "saved", "found"]
    value: str
    """Short, for large type: "97.2 %", "2.0 x"; empty where only words say it."""
    text: str


@dataclass(frozen=True, slots=True)
class Verdict(Plain):
    """What became of one claim of a paper, on one model."""

    claim: str
    """The key of the claim."""
    paper: str
    statement: str
    status: Status
    why: str
    """In words, with the numbers that decided."""
    figure: str = ""
    """The key of the figure (or table) that shows it."""
    published: str = ""
    """What the paper reports, in words with its numbers."""
    subject: str = ""
    """The model (and task) it was tested on, where there are several."""


@dataclass(frozen=True, slots=True)
class DrawnPlan(Plain):
    """A plan that was tried, to be drawn."""

    plan: str
    depth: int
    name: str = ""
    """What it is in the study, for instance "top, 6 dropped"."""


@dataclass(frozen=True, slots=True)
class DecodedLayer(Plain):
    """What one layer decodes to, token by token."""

    layer: int
    tokens: tuple[str, ...]
    right: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Decoded(Plain):
    """A sentence as every layer decodes it with the model's own head."""

    title: str
    tokens: tuple[str, ...]
    """The tokens that went in."""
    layers: tuple[DecodedLayer, ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.layers:
            if not len(row.tokens) == len(row.right) == len(self.tokens):
                raise DataError(
                    f"layer {row.layer} of {self.title!r} does not have {len(self.tokens)} tokens"
                )


# --- where it comes from ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Split(Plain):
    """The rows of a data set that were used, with what is to be known about them."""

    data: str
    split: str
    rows: int
    note: str = ""
    """For instance "22,484 of the official 392,702": said wherever it is not the whole."""


@dataclass(frozen=True, slots=True)
class Provenance(Plain):
    """On what, with what, and when."""

    date: str
    command: str = ""
    versions: Mapping[str, str] | None = None
    hardware: str = ""
    models: tuple[tuple[str, str], ...] = ()
    """Name and what identifies its weights: a revision or a hash."""
    splits: tuple[Split, ...] = ()
    papers: tuple[str, ...] = ()
    """Full references."""


@dataclass(frozen=True, slots=True)
class Findings(Plain):
    """Everything that one study found in a store."""

    key: str
    """A slug: the study, and the model where findings are of one."""
    title: str
    lead: str = ""
    """One or two sentences: the question, and on what it was asked."""
    summary: tuple[Line, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    plans: tuple[DrawnPlan, ...] = ()
    decoded: tuple[Decoded, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader must bear in mind: partial data, failed trials, differences from the paper."""
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        keys = [*(figure.key for figure in self.figures), *(table.key for table in self.tables)]
        if twice := {key for key in keys if keys.count(key) > 1}:
            raise DataError(f"findings {self.key!r}: {', '.join(sorted(twice))} stands there twice")
        for verdict in self.verdicts:
            if verdict.figure and verdict.figure not in keys:
                raise DataError(
                    f"findings {self.key!r}: claim {verdict.claim!r} is shown by "
                    f"{verdict.figure!r}, which is no figure or table of them"
                )
