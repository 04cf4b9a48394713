"""The figures and tables of the successors, from the rows of a store."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from restack.plan import Plan, drop
from restack.studies.claims_successors import (
    CLAIMS,
    influences,
    leave_one_out,
    outcomes,
    repeated_harm,
)
from restack.studies.findings import (
    Axis,
    Cell,
    Column,
    DrawnPlan,
    Entry,
    Figure,
    Findings,
    Line,
    Point,
    Rule,
    Series,
    Table,
)
from restack.studies.successors import best_blocks, order_by, removals, upscaled
from restack.studies.telling import Part, findings_of
from restack.studies.view import View
from restack.sweep.rows import Row

_PAPERS = {
    "shortgpt": "Men et al.: ShortGPT: Layers in Large Language Models are More Redundant Than You "
    "Expect (2024)",
    "gromov": "Gromov et al.: The Unreasonable Ineffectiveness of the Deeper Layers (2024)",
    "shortened": "Kim et al.: Shortened LLaMA: Depth Pruning for Large Language Models (2024)",
    "upscale": "Kim et al.: SOLAR 10.7B (2023); Wu et al.: LLaMA Pro (2024)",
    "repeat": "Repeated middle blocks: a practice, without a paper of its own",
}
_TITLES = {
    "shortgpt": ("Layers removed by block influence", "Which layers change their input least?"),
    "gromov": ("Blocks removed by angle", "Which block of layers has ends that are most alike?"),
    "shortened": ("Layers removed by perplexity", "What does the loss gain without each layer?"),
    "upscale": ("Deeper without training", "Half as many layers again, in several ways."),
    "repeat": ("Blocks run twice", "Every block of consecutive layers, repeated once."),
}


def findings(study: str, rows: Sequence[Row]) -> Findings:
    """What one of these studies has found."""
    title, lead = _TITLES[study]
    lead += " Without any training."
    return findings_of(study, title, lead, rows, CLAIMS[study], _TELL[study], (_PAPERS[study],))


def _axis(row: Row) -> Axis:
    """The axis for what plans give."""
    if "loss" in row.payload["plans"][0]:
        return Axis("perplexity", log=True)
    return Axis("token accuracy", "%", domain=(0.0, 1.0))


def _value(row: Row, plan: Plan | str) -> float | None:
    """Perplexity or accuracy along a plan."""
    for entry in row.payload["plans"]:
        if entry["plan"] == str(plan):
            value = entry.get("perplexity", entry["accuracy"])
            return float(value) if math.isfinite(value) else None
    return None


def _removed(view: View, orders: dict[str, list[Plan]], paper: str) -> Figure | None:
    """What is left as more and more goes, by several orders."""
    rows = view.where("removed")
    if not rows:
        return None
    whole = _value(rows[0], Plan.identity(view.depth))
    series = []
    for name, plans in orders.items():
        points = [Point(0, whole)] if whole is not None else []
        for plan in plans:
            value = _value(rows[0], plan)
            if value is not None:
                points.append(Point(view.depth - len(plan), value, label=str(plan)))
        series.append(Series(name, tuple(points)))
    return Figure(
        "removed",
        "What is left as layers are removed",
        "curve",
        Axis("layers removed"),
        _axis(rows[0]),
        tuple(series),
        () if whole is None else (Rule(whole, "untouched"),),
        section="Removed",
        paper=paper,
    )


def _most(view: View) -> int:
    """How many layers at most were removed."""
    rows = view.where("removed")
    return max((view.depth - e["depth"] for r in rows for e in r.payload["plans"]), default=0)


def _bars(key: str, title: str, values: Sequence[float | None], label: str, paper: str) -> Figure:
    points = tuple(Point(i, value) for i, value in enumerate(values) if value is not None)
    return Figure(
        key,
        title,
        "curve",
        Axis("layer", kind="layer"),
        Axis(label),
        (Series("here", points),),
        note="Layers count from 0.",
        section="Layers",
        paper=paper,
    )


def _shortgpt(view: View) -> Part:
    part = Part()
    if view.where("influence"):
        values = influences(view)
        part.add(
            _bars(
                "influence",
                "Block influence",
                values,
                "1 - cosine of a layer's input and output",
                "Men et al., section 2",
            )
        )
        orders = {
            "least influence first": order_by(values),
            "most influence first": order_by(values, highest=True),
            "from the top": list(range(view.depth - 1, -1, -1)),
            "from the bottom": list(range(view.depth)),
        }
        plans = {name: removals(order, _most(view)) for name, order in orders.items()}
        part.add(_removed(view, plans, "Men et al., section 3"))
        part.add(*_quarter(view, plans["least influence first"], "by block influence"))
    return part


def _quarter(view: View, plans: Sequence[Plan], how: str) -> list[Line | DrawnPlan]:
    """A line of the summary and the plan for a quarter of the layers."""
    rows, count = view.where("removed"), max(1, view.depth // 4)
    if not rows or len(plans) < count:
        return []
    before, after = _value(rows[0], Plan.identity(view.depth)), _value(rows[0], plans[count - 1])
    if before is None or after is None:
        return []
    axis = _axis(rows[0])
    form = "{:.1%}" if axis.unit == "%" else "{:.1f}"
    said = (
        f"{axis.label} of {view.subject} without {count} of {view.depth} layers {how}; "
        f"{form.format(before)} with all"
    )
    plan = DrawnPlan(str(plans[count - 1]), view.depth, f"{count} layers removed {how}")
    return [Line("found", form.format(after), said), plan]


def _gromov(view: View) -> Part:
    part = Part()
    rows = view.where("angles")
    if not rows:
        return part
    best = best_blocks(rows[0])
    cells = tuple(
        Cell(block["start"], block["length"], block["angular_distance"])
        for block in rows[0].payload["blocks"]
    )
    part.add(
        Figure(
            "angles",
            "Angle between a block's input and output",
            "heatmap",
            Axis("first layer of the block", kind="layer"),
            Axis("layers in the block", kind="layer"),
            cells=cells,
            colour=Axis("angular distance"),
            note="0: the same direction. Of each length, the least is the block to remove.",
            section="Blocks",
            paper="Gromov et al., figure 4",
        )
    )
    plans = {
        "most alike block": [drop(view.depth, range(s, s + n)) for n, s in sorted(best.items())],
        "just below the last layer": [
            drop(view.depth, range(view.depth - 1 - n, view.depth - 1)) for n in sorted(best)
        ],
        "top layers": [drop(view.depth, top=n) for n in sorted(best)],
        "behind the first layer": [drop(view.depth, range(1, 1 + n)) for n in sorted(best)],
    }
    part.add(_removed(view, plans, "Gromov et al., figures 1, 3"))
    part.add(*_quarter(view, plans["most alike block"], "as the most alike block"))
    return part


def _shortened(view: View) -> Part:
    part = Part()
    if view.where("one out"):
        part.add(
            _bars(
                "one-out",
                "What leaving out each layer costs",
                leave_one_out(view),
                "loss gained, or tokens lost",
                "Kim et al. (Shortened LLaMA), section 3",
            )
        )
        orders = {"by perplexity": order_by(leave_one_out(view))}
        if view.where("influence"):
            orders["by block influence"] = order_by(influences(view))
        orders["from the top"] = list(range(view.depth - 1, -1, -1))
        plans = {name: removals(order, _most(view)) for name, order in orders.items()}
        part.add(_removed(view, plans, "Kim et al. (Shortened LLaMA), section 4"))
        part.add(*_quarter(view, plans["by perplexity"], "by perplexity"))
    return part


def _upscale(view: View) -> Part:
    part = Part()
    rows = view.where("deeper")
    if not rows:
        return part
    plans = {"untouched": Plan.identity(view.depth), **upscaled(view.depth)}
    entries: list[tuple[Entry, ...]] = []
    points = []
    for name, plan in plans.items():
        value = _value(rows[0], plan)
        if value is None:
            continue
        entries.append((name, len(plan), value, outcomes(rows[0])[str(plan)], str(plan)))
        points.append(Point(name, value, label=str(plan)))
        part.add(DrawnPlan(str(plan), view.depth, name))
    axis = _axis(rows[0])
    part.add(
        Figure(
            "deeper",
            "Half as many layers again",
            "dots",
            Axis("way", kind="category", order=tuple(plans)),
            axis,
            (Series("here", tuple(points)),),
            section="Deeper",
            paper="Kim et al. (SOLAR), Wu et al. (LLaMA-Pro): where their training begins",
        ),
        Table(
            "table-deeper",
            "Deeper stacks before training",
            (
                Column("way"),
                Column("layers", "number"),
                Column(axis.label, "number", axis.unit, 2),
                Column("loss, or part of tokens missed", "number", digits=4),
                Column("plan", "plan"),
            ),
            tuple(entries),
            section="Deeper",
        ),
    )
    return part


def _repeat(view: View) -> Part:
    part = Part()
    if not view.where("blocks twice"):
        return part
    harm = repeated_harm(view)
    causal = "loss" in view.where("blocks twice")[0].payload["plans"][0]
    part.add(
        Figure(
            "blocks-twice",
            "What running a block of layers twice costs",
            "heatmap",
            Axis("first layer of the block", kind="layer"),
            Axis("last layer of the block", kind="layer"),
            cells=tuple(Cell(i, j, value) for (i, j), value in harm.items()),
            colour=Axis("loss gained" if causal else "tokens lost", "" if causal else "%"),
            middle=0.0,
            note="Below 0 the model has become better. All blocks in one virtual evaluation.",
            section="Blocks",
        )
    )
    (i, j), best = min(harm.items(), key=lambda item: item[1])
    said = f"the least that a repeated block costs {view.subject} (layers {i} to {j})"
    part.add(Line("found", f"{best:+.4f}", said))
    part.add(DrawnPlan(f"0-{j},{i}-{view.depth - 1}", view.depth, "the best repeated block"))
    return part


_TELL: dict[str, Callable[[View], Part]] = {
    "shortgpt": _shortgpt,
    "gromov": _gromov,
    "shortened": _shortened,
    "upscale": _upscale,
    "repeat": _repeat,
}
