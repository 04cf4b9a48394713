"""Results as tables for a terminal; characters say what matters, not colours."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table

from restack.observe.lens import LensResult
from restack.observe.probe import LayerProbe, ProbeResult
from restack.observe.score_result import Row, ScoreResult, high_is_dispensable
from restack.observe.similarity import SimilarityResult

MARK = "*"
_BAR = 20  # characters for 1.0
_HEADS = {
    "own": "its own head",
    "fitted": "a head FITTED on these texts, the body frozen (the model has none of its own)",
}


def lens_tables(result: LensResult) -> RenderableType:
    """How well the right tokens are read from every layer, and behind every plan."""
    asked = {"same": "the token at its place", "next": "the next token"}[result.reads]
    head = _HEADS.get(result.head, f"the head of {result.head}")
    table = _table("layer")
    names = ["accuracy", "top 5", "mean\nrank", "log-\nprob", "as the\nlast"]
    if result.first_tokens:
        names.append({"same": "behind\n\\[CLS]", "next": "the\nfirst"}[result.reads])
    if result.tuned:
        names.append("accuracy\ntuned")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("accuracy")
    for place, row in enumerate(result.layers):
        first = result.after_first[place]
        cells = [f"{row.accuracy:.2%}", f"{row.top5:.2%}", f"{row.rank:,.1f}"]
        cells += [f"{row.logprob:.3f}", f"{row.agreement:.2%}"]
        cells += [] if first is None else [f"{first:.2%}"]
        cells += [f"{result.tuned.layers[place].accuracy:.2%}"] if result.tuned else []
        table.add_row(_state(row.layer), *cells, _bar(row.accuracy))
    parts: list[RenderableType] = [
        f"{result.model}: {result.tokens:,} tokens, read by {head}, which is asked for {asked}",
        table,
    ]
    if result.plans:
        curve = _table("plan")
        for name in ("depth", "accuracy"):
            curve.add_column(name, justify="right")
        curve.add_column("of the last layer, untrained")
        for plan in result.plans:
            accuracy = plan.accuracy
            curve.add_row(str(plan.plan), str(len(plan.plan)), f"{accuracy:.2%}", _bar(accuracy))
        parts += ["", curve]
    return Group(*parts)


def probe_tables(result: ProbeResult) -> RenderableType:
    """What linear readers find in each layer, and in the control, if there is one."""
    many = len({row.size for row in result.layers}) > 1
    table = _table("layer")
    for name in (["examples"] if many else []) + [result.metric, "95% interval"]:
        table.add_column(name, justify="right")
    if result.control:
        fresh = {"model": "all weights fresh", "layers": "layers fresh"}[result.control]
        table.add_column(fresh, justify="right")
    table.add_column(result.metric)
    controls = {(row.layer, row.size): row for row in result.control_layers}
    for row in result.layers:
        cells = [f"{row.size:,}"] if many else []
        cells += [f"{row.mean.mean:.4f}", _interval(row)]
        if result.control:
            cells.append(f"{controls[row.layer, row.size].mean.mean:.4f}")
        table.add_row(_state(row.layer), *cells, _bar(row.mean.mean))
    trials = len(result.layers[0].scores)
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in result.seconds.items())
    parts: list[RenderableType] = [
        f"{result.model}, {result.task}: trained on {result.train}, scored on {result.validation}",
        f"{trials} trials a layer, {result.settings.solver}, {result.pooling} pooling; one answer "
        f"for all would score {result.baseline[result.metric]:.4f}",
        *([f"{result.cut:,} texts were too long and lost their end"] if result.cut else []),
        table,
        f"{result.layer_applications:,} applications of a layer to a text; {seconds}",
    ]
    return Group(*parts)


def _interval(row: LayerProbe) -> str:
    low, high = row.mean.low, row.mean.high
    return "-" if low is None or high is None else f"{low:.4f} .. {high:.4f}"


def _state(layer: int) -> str:
    """What to call a state: 0 is what enters the stack."""
    return str(layer) if layer else "0 (embeddings)"


def _bar(value: float) -> str:
    return "█" * round(_BAR * max(0.0, value))


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
