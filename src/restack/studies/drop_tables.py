"""The tables of Sajjad et al., from the rows of a store."""

from __future__ import annotations

from restack.stats import layers_within
from restack.studies.claims_drop import dropped, loss
from restack.studies.drop import STRATEGIES, by_contribution, counts
from restack.studies.findings import Column, Entry, Number, Table
from restack.studies.published import (
    Score,
    drop_contributions,
    drop_from_finetuned,
    drop_layers_within,
    drop_scores,
    drop_sizes,
)
from restack.studies.telling import (
    IN_PAPERS,
    beside,
    number,
    paper_of,
    points,
    task_name,
    theirs,
)
from restack.studies.view import Unmeasured, View, difference, mean_of, task_means
from restack.sweep.rows import Row

DROPPED, COST = "Layers dropped before fine-tuning", "Cost"
ORDER = (*STRATEGIES, "contribution")


def tables(view: View) -> tuple[Table | None, ...]:
    """All of them, as far as they are measured."""
    return (
        _contribution(view),
        _loss(view),
        _tasks(view),
        _within(view),
        _cost(view),
        _again(view),
        _distilled(view),
    )


def published(model: str | None, task: str) -> dict[int, Score]:
    """The published score of a model on a task, by top layers dropped."""
    return {
        score.change: score
        for score in drop_scores()
        if score.model == model and score.task == IN_PAPERS.get(task)
    }


def _loss(view: View) -> Table | None:
    """The average loss of each strategy and number."""
    rows: list[tuple[Entry, ...]] = []
    sizes = {(s.model, s.dropped): s.loss for s in drop_sizes()}
    for name in ORDER:
        counted = sorted({r.labels["k"] for r in view.where("strategies", strategy=name)})
        for count in counted:
            try:
                found = loss(view, name, count)
            except Unmeasured:
                continue
            paper = sizes.get((str(beside(view)), count)) if name == "top" else None
            rows.append(
                (
                    name,
                    count,
                    points(found),
                    None if paper is None else Number(paper * 100, published=True),
                    dropped(view, name, count)[0].trial.plan,
                )
            )
    if not rows:
        return None
    return Table(
        "table-loss",
        "Average loss by strategy",
        (
            Column("strategy"),
            Column("dropped", "number"),
            Column("loss", "number", "points", 2),
            Column(paper_of(view), "number", "points", 2, published=True),
            Column("plan", "plan"),
        ),
        tuple(rows),
        note="Against the untouched model, pair by pair of task and seed; the paper's averages are "
        "over its seven tasks.",
        section=DROPPED,
        paper="Sajjad et al., figure 2 and table 3",
    )


def _tasks(view: View) -> Table | None:
    """Tables 1 and 6: top layers dropped, task by task."""
    rows: list[tuple[Entry, ...]] = []
    for task in view.tasks("strategies"):
        whole = [r for r in view.where("strategies", strategy="none") if r.trial.task == task]
        paper = published(beside(view), task)
        for count in (0, *counts(view.depth)):
            found = (
                whole
                if count == 0
                else view.where("strategies", strategy="top", k=count, task=task)
            )
            if not found:
                continue
            gap = points(difference(found, whole)) if count and whole else None
            score, their_gap = paper.get(count), None
            if score is not None and count:
                their_gap = Number((score.value - paper[0].value) * 100, published=True)
            rows.append((task_name(task), count, number(found), gap, theirs(score), their_gap))
    if not rows:
        return None
    return Table(
        "table-tasks",
        "Top layers dropped, task by task",
        (
            Column("task"),
            Column("dropped", "number"),
            Column("score", "number", "%", 2),
            Column("change", "number", "points", 2),
            Column(paper_of(view), "number", "%", 2, published=True),
            Column(f"change, {paper_of(view)}", "number", "points", 2, published=True),
        ),
        tuple(rows),
        section=DROPPED,
        paper="Sajjad et al., tables 1, 6",
    )


def _removed(view: View, task: str) -> dict[int, list[Row]]:
    """The trials on a task by top layers dropped, whichever part they belong to."""
    found = {
        k: view.where("needed", task=task, k=k) for k in view.values_of("needed", "k", task=task)
    }
    found[0] = view.where("strategies", task=task, strategy="none")
    for k in counts(view.depth):
        found[k] = view.where("strategies", task=task, strategy="top", k=k)
    return {k: rows for k, rows in sorted(found.items()) if rows}


def _within(view: View) -> Table | None:
    """Table 2: how many top layers can go within 1, 2 and 3 points."""
    rows: list[tuple[Entry, ...]] = []
    paper = {(w.model, w.points, w.task): w.layers for w in drop_layers_within()}
    for task in view.tasks("strategies"):
        found = _removed(view, task)
        if 0 not in found or len(found) < 2:
            continue
        means = {k: mean_of(some).mean * 100 for k, some in found.items()}
        gaps = {k: difference(found[0], some) for k, some in found.items() if k}
        tried = ", ".join(str(k) for k in found if k)
        for most in (1, 2, 3):
            # what the uncertainty of each mean leaves open: counts that are within, that may be
            sure = [k for k, e in gaps.items() if e.high is not None and e.high * 100 <= most]
            maybe = [k for k, e in gaps.items() if e.low is None or e.low * 100 <= most]
            layers = paper.get((str(beside(view)), most, str(IN_PAPERS.get(task))))
            rows.append(
                (
                    task_name(task),
                    most,
                    layers_within(means, most),
                    f"{max(sure, default=0)} to {max(maybe, default=0)}",
                    None if layers is None else Number(layers, published=True),
                    tried,
                )
            )
    if not rows:
        return None
    return Table(
        "table-within",
        "Top layers that can go within a loss",
        (
            Column("task"),
            Column("points", "number"),
            Column("layers, by the means", "number"),
            Column("layers, by the intervals", align="right"),
            Column(paper_of(view), "number", published=True),
            Column("tried"),
        ),
        tuple(rows),
        note="By the intervals: what can go for certain, and what cannot be excluded. The paper "
        "tried every number of layers.",
        section=DROPPED,
        paper="Sajjad et al., table 2",
    )


def _contribution(view: View) -> Table | None:
    """How alike the class token is before and after each layer, and what thresholds choose."""
    rows = view.where("contribution")
    if not rows:
        return None
    columns = [[layer["cls_cosine"] for layer in row.payload["layers"]] for row in rows]
    means = [sum(values) / len(values) for values in zip(*columns, strict=True)]
    plans = by_contribution(means, (0.95, 0.925, 0.9))
    paper = {c.threshold: c.layers for c in drop_contributions() if c.model == beside(view)}
    chosen = "; ".join(f"{t}: {', '.join(map(str, plan.gone))}" for t, plan in plans.items())
    theirs = "; ".join(f"{t}: {', '.join(map(str, gone))}" for t, gone in paper.items())
    note = f"Thresholds choose here: {chosen or 'none, or more than half'}."
    return Table(
        "table-contribution",
        "How alike a layer's input and output are",
        (Column("layer", "number"), Column("cosine of the class token", "number", digits=4)),
        tuple((layer, value) for layer, value in enumerate(means)),
        note=note + (f" In the {paper_of(view)}: {theirs} (counted from 0)." if theirs else ""),
        section=DROPPED,
        paper="Sajjad et al., sections 2.3, 4.1",
    )


def _cost(view: View) -> Table | None:
    """Table 3."""
    found = view.where("cost")
    if not found:
        return None
    rows: list[tuple[Entry, ...]] = []
    sizes = {s.dropped: s for s in drop_sizes() if s.model == beside(view)}
    for entry in found[0].payload["plans"]:
        gone = view.depth - entry["depth"]
        paper = sizes.get(gone)
        step, inference = entry["training"], entry["inference"]
        saved = None
        if gone:
            saved = Number(
                1 - inference["ratio"], 1 - inference["high"], 1 - inference["low"], inference["n"]
            )
        rows.append(
            (
                gone,
                entry["parameters"] / 1e6,
                Number(1 / step["ratio"], 1 / step["high"], 1 / step["low"], step["n"]),
                saved,
                None if paper is None else Number(paper.parameters / 1e6, published=True),
                None if paper is None else Number(paper.finetune_speedup, published=True),
                None
                if paper is None or paper.inference_time_saved is None
                else Number(paper.inference_time_saved, published=True),
            )
        )
    return Table(
        "table-cost",
        "Size and speed without top layers",
        (
            Column("dropped", "number"),
            Column("parameters, millions", "number", digits=1),
            Column("fine-tuning speed-up", "number", digits=2),
            Column("inference time saved", "number", "%", 0),
            Column(f"parameters, {paper_of(view)}", "number", digits=0, published=True),
            Column(f"speed-up, {paper_of(view)}", "number", digits=2, published=True),
            Column(f"time saved, {paper_of(view)}", "number", "%", 0, published=True),
        ),
        tuple(rows),
        note="Whole and smaller models are timed in turns; intervals are over the turns.",
        section=COST,
        paper="Sajjad et al., table 3",
    )


def _again(view: View) -> Table | None:
    """Table 5, and iterative dropping."""
    rows: list[tuple[Entry, ...]] = []
    half = counts(view.depth)[-1]
    paper = {(score.model, score.task): score for score in drop_from_finetuned()}
    for task in dict.fromkeys([*view.tasks("again"), *view.tasks("iterative")]):
        plain = view.where("strategies", strategy="top", k=half, task=task)
        for name, part, ending in (
            ("dropped from the pretrained model", "", f"-{half}"),
            ("fine-tuned first", "again", f"-FT-{half}"),
            ("one layer after every two epochs", "iterative", "none"),
        ):
            found = view.where(part, task=task) if part else plain
            if not found:
                continue
            gap = points(difference(found, plain)) if part and plain else None
            score = paper.get((f"{beside(view)}{ending}", str(IN_PAPERS.get(task))))
            rows.append((task_name(task), name, number(found), gap, theirs(score)))
    if not rows:
        return None
    return Table(
        "table-again",
        f"Ways to drop the top {half} layers",
        (
            Column("task"),
            Column("procedure"),
            Column("score", "number", "%", 2),
            Column("over plain dropping", "number", "points", 2),
            Column(paper_of(view), "number", "%", 2, published=True),
        ),
        tuple(rows),
        note="Fine-tuned first: with the layers that will go frozen, as the caption of table 5 has "
        "it. Iterative: two epochs, then one layer less, and two epochs at the end.",
        section=DROPPED,
        paper="Sajjad et al., table 5 and section 5",
    )


DISTILLED = {"BERT": "DistilBERT", "XLNet": "DistilBERT", "RoBERTa": "DistilRoBERTa"}
"""The distilled model that the paper sets beside each with half of its layers."""


def _distilled(view: View) -> Table | None:
    """Tables 4 and 6: beside other models of as many layers."""
    rows: list[tuple[Entry, ...]] = []
    for count in counts(view.depth):
        for other in view.others:
            if other.depth != view.depth - count:
                continue
            mine = task_means(view.where("strategies", strategy="top", k=count))
            other_means = task_means(other.where("strategies", strategy="none"))
            rows += [
                (
                    task_name(task),
                    other.depth,
                    Number.of(mine[task]),
                    other.subject,
                    Number.of(other_means[task]),
                )
                for task in mine
                if task in other_means
            ]
    if not rows:
        return None
    half = counts(view.depth)[-1]
    small = DISTILLED.get(str(beside(view)))
    for task in view.tasks("strategies") if small else ():
        mine_there = published(beside(view), task).get(half)
        theirs_there = published(small, task).get(0)
        if mine_there is not None and theirs_there is not None:
            name = f"{small} beside {beside(view)} (paper)"
            both = theirs(mine_there), theirs(theirs_there)
            rows.append((task_name(task), view.depth - half, both[0], name, both[1]))
    return Table(
        "table-distilled",
        f"{view.subject} without its top layers beside models of the same depth",
        (
            Column("task"),
            Column("layers", "number"),
            Column("dropped from the top", "number", "%", 2),
            Column("other model"),
            Column("its score", "number", "%", 2),
        ),
        tuple(rows),
        section=DROPPED,
        paper="Sajjad et al., tables 4, 6",
    )
