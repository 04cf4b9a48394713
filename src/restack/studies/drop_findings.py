"""The findings and figures of Sajjad et al., from the rows of a store."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from restack.studies.claims_drop import CLAIMS, layer_scores, loss, moved
from restack.studies.drop import STUDY, counts
from restack.studies.drop_tables import DROPPED, ORDER, published, tables
from restack.studies.findings import (
    Axis,
    DrawnPlan,
    Figure,
    Findings,
    Line,
    Point,
    Rule,
    Series,
)
from restack.studies.telling import (
    Part,
    axis_of,
    beside,
    findings_of,
    paper_of,
    task_name,
    their_points,
)
from restack.studies.view import Unmeasured, View, average, mean_of
from restack.sweep.rows import Row

PAPER = (
    "Sajjad, Dalvi, Durrani, Nakov: Poor Man's BERT: Smaller and Faster Transformer Models (2020)"
)
LOOKED = "Inside the tuned model"


def findings(rows: Sequence[Row]) -> Findings:
    """What the study of dropped layers has found."""
    return findings_of(
        STUDY,
        "Dropped layers",
        "Layers are left out of pretrained models by six strategies, and the rest is fine-tuned: "
        "what that costs and saves.",
        rows,
        CLAIMS,
        _tell,
        (PAPER,),
    )


def _tell(view: View) -> Part:
    part = Part()
    part.add(_strategies(view), _needed(view), _classifiers(view), _moved(view))
    part.add(*tables(view), *_plans(view), *_summary(view))
    return part


def _strategies(view: View) -> Figure | None:
    """Figures 2 and 3: averages over tasks for each strategy and number of layers."""
    tasks = view.tasks("strategies")
    series = []
    for count in counts(view.depth):
        points = []
        for name in ORDER:
            for threshold, rows in _variants(view, name, count):
                mean = average(rows)
                if mean is not None:
                    said = f"{rows[0].trial.plan}{f', threshold {threshold}' if threshold else ''}"
                    points.append(Point.of(name, mean, said))
        if not points:
            continue
        series.append(Series("here", tuple(points), facet=f"{count} dropped"))
        paper = published_average(view, count, tasks)
        if paper is not None:
            point = (Point("top", paper, label="paper, table 1, the same tasks"),)
            series.append(Series(paper_of(view), point, True, f"{count} dropped"))
    whole = average(view.where("strategies", strategy="none"))
    if not series or whole is None:
        return None
    return Figure(
        "strategies",
        f"Strategies, average over {', '.join(map(task_name, tasks))}",
        "dots",
        Axis("strategy", kind="category", order=ORDER),
        Axis("average score", "%"),
        tuple(series),
        (Rule(whole.mean, "untouched"),),
        note="Contribution drops what is above a threshold, which is not always as many layers.",
        section=DROPPED,
        paper="Sajjad et al., figures 2, 3",
    )


def _variants(view: View, strategy: str, count: int) -> list[tuple[str, list[Row]]]:
    """The trials of a strategy; those of contribution by threshold, of the widest alone."""
    rows = view.where("strategies", strategy=strategy, k=count)
    known = sorted({str(row.labels.get("threshold", "")) for row in rows}, reverse=True)
    return [(t, [r for r in rows if str(r.labels.get("threshold", "")) == t]) for t in known[:1]]


def published_average(view: View, count: int, tasks: Sequence[str]) -> float | None:
    """The published average over the same tasks, if all of them are there."""
    found = [published(beside(view), task).get(count) for task in tasks]
    known = [score.value for score in found if score is not None]
    return statistics.fmean(known) if known and len(known) == len(found) else None


def _needed(view: View) -> Figure | None:
    """How scores fall as top layers go one by one."""
    series, rules = [], []
    tasks = view.tasks("needed")
    for task in tasks:
        found = [
            (k, view.where("needed", task=task, k=k))
            for k in view.values_of("needed", "k", task=task)
        ]
        points = tuple(Point.of(k, mean_of(rows), rows[0].trial.plan or "") for k, rows in found)
        series.append(Series("here", points, facet=task_name(task)))
        paper = published(beside(view), task)
        if paper:
            series.append(Series(paper_of(view), their_points(paper), True, task_name(task)))
        if found and found[0][0] == 0:
            rules.append(Rule(mean_of(found[0][1]).mean, "untouched", facet=task_name(task)))
    if not series:
        return None
    return Figure(
        "needed",
        "Scores as more top layers are dropped",
        "curve",
        Axis("top layers dropped"),
        axis_of(tasks),
        tuple(series),
        tuple(rules),
        section=DROPPED,
        paper="Sajjad et al., tables 1, 2",
    )


def _classifiers(view: View) -> Figure | None:
    """Figure 4."""
    rows = view.where("classifiers")
    if not rows:
        return None
    series = [
        Series(
            "here",
            tuple(
                Point(layer["layer"], layer["mean"], layer["low"], layer["high"], layer["n"])
                for layer in row.payload["layers"]
            ),
            facet=task_name(row.trial.task),
        )
        for row in rows
    ]
    if len(rows) > 1:
        mean = tuple(Point(i, value) for i, value in enumerate(layer_scores(rows)))
        series.append(Series("here", mean, facet="average"))
    return Figure(
        "classifiers",
        "A classifier on each layer of the fine-tuned model",
        "curve",
        Axis.layers(),
        axis_of(view.tasks("classifiers")),
        tuple(series),
        note="Linear, on the frozen class token; intervals are over draws of training examples.",
        section=LOOKED,
        paper="Sajjad et al., figure 4",
    )


def _moved(view: View) -> Figure | None:
    """Figure 5."""
    rows = view.where("moved")
    if not rows:
        return None
    series = [
        Series(
            task_name(row.trial.task),
            tuple(
                Point(layer["layer"] + 1, layer["token_cosine"]) for layer in row.payload["layers"]
            ),
        )
        for row in rows
    ]
    if len(rows) > 1:
        points = tuple(Point(i + 1, value) for i, value in enumerate(moved(rows)))
        series.append(Series("average", points))
    return Figure(
        "moved",
        "How alike each layer's states are before and after fine-tuning",
        "curve",
        Axis.layers(),
        Axis("cosine"),
        tuple(series),
        (Rule(0.7, "changed substantially, by the paper", published=True),),
        note="Mean over all real tokens of the validation texts.",
        section=LOOKED,
        paper="Sajjad et al., figure 5",
    )


def _plans(view: View) -> list[DrawnPlan]:
    found = {
        str(row.trial.plan): f"{row.labels['strategy']}, {row.labels['k']} dropped"
        for row in view.where("strategies")
        if row.labels["k"]
    }
    return [DrawnPlan(plan, view.depth, name) for plan, name in found.items()]


def _summary(view: View) -> list[Line]:
    half = counts(view.depth)[-1]
    lines = []
    try:
        found = loss(view, "top", half)
    except Unmeasured:
        return []
    whole = average(view.where("strategies", strategy="none"))
    said = f"on average by {view.subject} without its top {half} of {view.depth} layers"
    lines.append(Line("lost", f"{found.mean * 100:.2f} points", said))
    if whole is not None:
        kept = f"{1 - found.mean / whole.mean:.1%}"
        lines.append(Line("kept", kept, f"of its average score by {view.subject} without them"))
    for row in view.where("cost")[:1]:
        last = row.payload["plans"][-1]
        saved = f"{1 - last['inference']['ratio']:.0%}"
        lines.append(
            Line("saved", saved, f"of the inference time of {view.subject}, {half} layers gone")
        )
    return lines
