"""Scores and similarities as tables for a terminal; characters say what matters, not colours."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table

from restack.observe.score_result import Row, ScoreResult, high_is_dispensable
from restack.observe.similarity import SimilarityResult

MARK = "*"


def score_tables(result: ScoreResult) -> RenderableType:
    """The measures of all layers, the blocks, and how far the measures agree."""
    layers = {str(layer): row for layer, row in enumerate(result.layers)}
    lengths = sorted({n for _, n in result.blocks if n > 1})
    notes = [f"note: {note}" for note in result.notes]
    if result.fallback:
        notes.append(f"note: models were rebuilt to leave layers out: {result.fallback}")
    parts = [
        _head(result),
        _measures(result, "layer", layers),
        *(_blocks(result, n) for n in lengths),
        _agreement(result),
        *notes,
    ]
    return Group(*(part for part in parts if part is not None))


def similarity_table(result: SimilarityResult) -> RenderableType:
    """How alike two models are, a line for each layer."""
    names = ("cls_cosine", "token_cosine", "cka", "weight_change")
    table = _table("layer")
    table.add_column("of the first", justify="right")
    for name in names:
        table.add_column(name.replace("_", "\n"), justify="right")
    for row in (result.entering, *result.layers):
        label = "entering" if row.layer is None else str(row.layer)
        source = "" if row.source is None else str(row.source)
        table.add_row(label, source, *(_shown(getattr(row, name)) for name in names))
    head = (
        f"{result.a} and {result.b}: {result.texts:,} texts, {result.tokens:,} tokens\n"
        f"in cls_cosine the {result.anchor} token stands for its text"
    )
    return Group(head, table)


def _head(result: ScoreResult) -> str:
    whole = ", ".join(f"{name} {_shown(value)}" for name, value in result.whole.items())
    return "\n".join(
        [
            f"{result.model}, `{result.stack}`: {result.texts:,} texts, {result.tokens:,} tokens",
            *([f"whole stack: {whole}"] if whole else []),
            *([f"loss: of {result.loss}"] if result.loss else []),
            f"{MARK} most dispensable by this measure; in cls_cosine the {result.anchor} token "
            "stands for its text",
        ]
    )


def _measures(result: ScoreResult, first: str, rows: Mapping[str, Row]) -> Table:
    """A line for each layer or block, by what it is called."""
    table = _table(first)
    columns = {name: [row.get(name) for row in rows.values()] for name in result.measures}
    best = {name: _most_dispensable(values, name) for name, values in columns.items()}
    for name in columns:
        table.add_column(name.replace("_", "\n"), justify="right")
    for place, label in enumerate(rows):
        cells = (_cell(values[place], place == best[name]) for name, values in columns.items())
        table.add_row(label, *cells)
    return table


def _blocks(result: ScoreResult, length: int) -> Table:
    rows = {
        f"{start}-{start + n - 1}": row for (start, n), row in result.blocks.items() if n == length
    }
    return _measures(result, f"{length} layers", rows)


def _agreement(result: ScoreResult) -> Table | None:
    if len(result.measures) < 2:
        return None
    found = result.agreement()
    table = _table("agreement (Spearman)")
    for number, _ in enumerate(result.measures):
        table.add_column(str(number), justify="right")
    for number, name in enumerate(result.measures):
        cells = (found[name, other].r for other in result.measures)
        table.add_row(f"{number} {name}", *("-" if r is None else f"{r:.2f}" for r in cells))
    return table


def _table(first: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column(first, no_wrap=True)
    return table


def _most_dispensable(values: list[float | None], measure: str) -> int | None:
    sign = 1 if high_is_dispensable(measure) else -1
    known = [(sign * value, place) for place, value in enumerate(values) if value is not None]
    return max(known)[1] if known else None


def _cell(value: float | None, best: bool) -> str:
    return f"{_shown(value)}{MARK if best else ' '}"


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
