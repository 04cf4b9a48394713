"""The figures and tables of Tamkin et al., from the rows of a store."""

from __future__ import annotations

from collections.abc import Sequence

from restack.stats import mean_interval, pearson, spearman
from restack.studies.claims_reinit import CLAIMS, curves, probe_curve, sizes, task_pairs
from restack.studies.findings import (
    Axis,
    Column,
    DrawnPlan,
    Entry,
    Figure,
    Findings,
    Line,
    Number,
    Point,
    Rule,
    Series,
    Table,
)
from restack.studies.published import reinit_correlations
from restack.studies.reinit import BLOCK, STUDY
from restack.studies.telling import (
    IN_PAPERS,
    Part,
    axis_of,
    findings_of,
    number,
    point,
    points,
    task_name,
)
from restack.studies.view import (
    View,
    difference,
    in_order,
    mean_of,
    metric_of,
    scores,
)
from restack.sweep.rows import Row

PAPER = (
    "Tamkin, Singh, Giovanardi, Goodman: Investigating Transferability in Pretrained Language "
    "Models (2020)"
)
KEPT, LOCAL, WAYS = "How many layers", "Which layers, in which order", "Changes of the procedure"


def findings(rows: Sequence[Row]) -> Findings:
    """What the study of fresh layers has found."""
    return findings_of(
        STUDY,
        "Fresh layers",
        "Layers of a pretrained model are replaced by fresh weights or shuffled, and all of it is "
        "fine-tuned: what each layer is worth, beside what probes find in it.",
        rows,
        CLAIMS,
        _tell,
        (PAPER,),
    )


def _tell(view: View) -> Part:
    part = Part()
    part.add(
        _incremental(view), _incremental_table(view), _scatter(view), _blocks(view), _single(view)
    )
    part.add(
        _orders(view),
        _shuffled_table(view),
        _orders_table(view),
        _ablations(view),
        _ablation_table(view),
    )
    part.add(_long(view), *_plans(view), *_summary(view))
    return part


def _incremental(view: View) -> Figure | None:
    """Figure 2: layers kept against the score, by number of examples, and the probes."""
    series, rules = [], []
    tasks = list(dict.fromkeys([*view.tasks("incremental"), *view.tasks("probe")]))
    for task in tasks:
        for examples in sizes(view, task):
            points = tuple(point(k, rows) for k, rows in curves(view, task, examples).items())
            series.append(Series(f"{examples:,} examples", points, facet=task_name(task)))
        for row in view.where("probe", task=task):
            points = tuple(
                Point(layer["layer"], layer["mean"], layer["low"], layer["high"], layer["n"])
                for layer in row.payload["layers"]
            )
            series.append(Series("probes", points, facet=task_name(task)))
            base = row.payload["baseline"][metric_of(task)]
            rules.append(Rule(base, "one answer for all", facet=task_name(task)))
    if not series:
        return None
    return Figure(
        "incremental",
        "All layers behind the k-th made fresh, and probes of the k-th layer",
        "curve",
        Axis("layers kept (0: the embeddings alone)", kind="layer"),
        axis_of(tasks),
        tuple(series),
        tuple(rules),
        note="The whole model is fine-tuned; probes read the frozen pretrained one.",
        section=KEPT,
        paper="Tamkin et al., figure 2",
    )


def _incremental_table(view: View) -> Table | None:
    rows: list[tuple[Entry, ...]] = [
        (task_name(task), examples, k, number(found), found[0].trial.plan)
        for task in view.tasks("incremental")
        for examples in sizes(view, task)
        for k, found in curves(view, task, examples).items()
    ]
    if not rows:
        return None
    return Table(
        "table-incremental",
        "Layers kept, all behind them fresh",
        (
            Column("task"),
            Column("examples", "number"),
            Column("layers kept", "number"),
            Column("score", "number", "%", 2),
            Column("plan", "plan"),
        ),
        tuple(rows),
        section=KEPT,
        paper="Tamkin et al., figure 2",
    )


def _scatter(view: View) -> Figure | None:
    """Figure 5: single trials of the smallest size."""
    tasks = view.tasks("incremental")
    if not tasks:
        return None
    joined = {
        task_name(task): tuple(
            Point(k, score, label=f"trial {i}")
            for k, rows in curves(view, task, sizes(view, task)[0]).items()
            for i, score in enumerate(scores(rows))
        )
        for task in tasks
    }
    smallest = min(sizes(view, task)[0] for task in tasks)
    return Figure(
        "scatter",
        f"Every trial with {smallest:,} examples",
        "dots",
        Axis("layers kept", kind="number"),
        axis_of(tasks),
        tuple(Series("trials", points, facet=facet) for facet, points in joined.items()),
        section=KEPT,
        paper="Tamkin et al., figure 5",
    )


def _blocks(view: View) -> Figure | None:
    """Figure 3."""
    series, rules = [], []
    tasks = view.tasks("blocks")
    for task in tasks:
        for way in ("reinitialised", "preserved"):
            rows = view.where("blocks", task=task, way=way)
            points = tuple(point(start, some) for start, some in in_order(rows, "start"))
            series.append(Series(f"block {way}", points, facet=task_name(task)))
        for start, name in ((view.depth, "the whole model"), (0, "embeddings alone")):
            line = view.where("blocks", task=task, way="line", start=start)
            if line:
                rules.append(Rule(mean_of(line).mean, name, facet=task_name(task)))
    if not any(s.points for s in series):
        return None
    return Figure(
        "blocks",
        f"Blocks of {BLOCK} layers: only they fresh, or all but they",
        "curve",
        Axis("first layer of the block", kind="layer"),
        axis_of(tasks),
        tuple(s for s in series if s.points),
        tuple(rules),
        note="Layers count from 0 here: block 0 is what the paper calls layers 1 to 3.",
        section=LOCAL,
        paper="Tamkin et al., figure 3",
    )


def _single(view: View) -> Figure | None:
    """Figure 6."""
    series, rules = [], []
    tasks = view.tasks("single")
    for task in tasks:
        rows = [r for r in view.where("single", task=task) if r.labels["layer"] >= 0]
        points = tuple(point(layer, some) for layer, some in in_order(rows, "layer"))
        if points:
            series.append(Series("one layer fresh", points, facet=task_name(task)))
        whole = view.where("single", task=task, layer=-1)
        if whole:
            rules.append(Rule(mean_of(whole).mean, "the whole model", facet=task_name(task)))
    if not series:
        return None
    return Figure(
        "single",
        "One layer made fresh",
        "curve",
        Axis("fresh layer", kind="layer"),
        axis_of(tasks),
        tuple(series),
        tuple(rules),
        note="Layers count from 0.",
        section=LOCAL,
        paper="Tamkin et al., figure 6",
    )


def _orders(view: View) -> Figure | None:
    """Figure 4."""
    series, rules = [], []
    tasks = view.tasks("orders", order="shuffled")
    for task in tasks:
        rows = view.where("orders", task=task, order="shuffled")
        series.append(Series.of_values("shuffled", scores(rows), task_name(task)))
        rules.append(Rule(mean_of(rows).mean, "mean of them", "x", facet=task_name(task)))
        for order, name in (("whole", "the whole model"), ("fresh", "fresh layers")):
            ends = view.where("orders", task=task, order=order)
            if ends:
                rules.append(Rule(mean_of(ends).mean, name, "x", facet=task_name(task)))
    if not series:
        return None
    return Figure(
        "orders",
        "Shuffled layers, fine-tuned",
        "density",
        axis_of(tasks),
        Axis("density"),
        tuple(series),
        tuple(rules),
        note="Each permutation is one trial; the n-th is the same on every task. The means have "
        "their intervals in the table.",
        section=LOCAL,
        paper="Tamkin et al., figure 4",
    )


def _shuffled_table(view: View) -> Table | None:
    """The means of figure 4."""
    rows: list[tuple[Entry, ...]] = [
        (task_name(task), name, number(found))
        for task in view.tasks("orders", order="shuffled")
        for order, name in (
            ("whole", "as they were"),
            ("shuffled", "shuffled"),
            ("fresh", "all fresh"),
        )
        if (found := view.where("orders", task=task, order=order))
    ]
    if not rows:
        return None
    return Table(
        "table-shuffled",
        "Layers in their order, shuffled, and fresh",
        (Column("task"), Column("layers"), Column("score", "number", "%", 2)),
        tuple(rows),
        note="Means with 95% intervals; each permutation is one trial.",
        section=LOCAL,
        paper="Tamkin et al., figure 4",
    )


def _orders_table(view: View) -> Table | None:
    """Table 1."""
    rows: list[tuple[Entry, ...]] = []
    paper = {frozenset((p.first, p.second)): p for p in reinit_correlations()}
    for (a, b), pairs in task_pairs(view).items():
        if not pairs:
            continue
        x, y = (list(values) for values in zip(*pairs, strict=True))
        ranks, values = spearman(x, y), pearson(x, y)
        theirs = paper.get(frozenset((IN_PAPERS.get(a, a), IN_PAPERS.get(b, b))))
        rows.append(
            (
                f"{task_name(a)}, {task_name(b)}",
                len(pairs),
                ranks.r,
                ranks.p,
                values.r,
                values.p,
                None if theirs is None else Number(theirs.spearman, published=True),
                None if theirs is None else Number(theirs.pearson, published=True),
            )
        )
    if not rows:
        return None
    return Table(
        "table-orders",
        "The same permutations on two tasks",
        (
            Column("tasks"),
            Column("n", "number"),
            Column("Spearman", "number", digits=2),
            Column("p", "number", digits=3),
            Column("Pearson", "number", digits=2),
            Column("p ", "number", digits=3),
            Column("Spearman, paper", "number", digits=2, published=True),
            Column("Pearson, paper", "number", digits=2, published=True),
        ),
        tuple(rows),
        section=LOCAL,
        paper="Tamkin et al., table 1",
    )


def _ablations(view: View) -> Figure | None:
    """Figures 7 and 8, and the other initialiser."""
    series = []
    tasks = view.tasks("ablations")
    for task in tasks:
        for way in view.values_of("ablations", "way", task=task):
            rows = view.where("ablations", task=task, way=way)
            points = tuple(point(k, some) for k, some in in_order(rows, "k"))
            series.append(Series(str(way), points, facet=task_name(task)))
    if not series:
        return None
    return Figure(
        "ablations",
        "Norms kept, a larger rate, another initialiser",
        "curve",
        Axis("layers kept (0: the embeddings alone)", kind="layer"),
        axis_of(tasks),
        tuple(series),
        note="Released code: fresh weights as the authors' program draws them, which differs from "
        "their text (a standard deviation of about 0.0005 instead of 0.02, and biases kept).",
        section=WAYS,
        paper="Tamkin et al., figures 7, 8",
    )


def _ablation_table(view: View) -> Table | None:
    rows: list[tuple[Entry, ...]] = []
    plain = view.where("ablations", way="as in the paper")
    for way in view.values_of("ablations", "way"):
        found = view.where("ablations", way=way)
        if not plain or way == "as in the paper":
            continue
        gap = difference(found, plain)
        rows.append((str(way), points(gap), gap.p))
    if not rows:
        return None
    return Table(
        "table-ablations",
        "What changes of the procedure gain",
        (
            Column("change"),
            Column("over the procedure as it is", "number", "points", 2),
            Column("p", "number", digits=3),
        ),
        tuple(rows),
        note="Pair by pair of task and trial, the mean over all numbers of layers kept.",
        section=WAYS,
        paper="Tamkin et al., figures 7, 8",
    )


def _long(view: View) -> Figure | None:
    """Appendix E: the score behind each epoch."""
    series = []
    tasks = view.tasks("long")
    for task in tasks:
        for examples in view.values_of("long", "examples", task=task):
            for k in view.values_of("long", "k", task=task, examples=examples):
                rows = view.where("long", task=task, examples=examples, k=k)
                by_epoch: dict[int, list[float]] = {}
                for row in rows:
                    for line in row.curve:
                        if "metrics" in line:
                            value = next(iter(line["metrics"].values()))[metric_of(task)]
                            by_epoch.setdefault(round(line["epoch"]), []).append(float(value))
                points = tuple(
                    Point.of(epoch, mean_interval(values))
                    for epoch, values in sorted(by_epoch.items())
                )
                facet = f"{task_name(task)}, {examples:,} examples"
                series.append(Series(f"{k} layers kept", points, facet=facet))
    if not series:
        return None
    return Figure(
        "long",
        "The score behind each epoch",
        "curve",
        Axis("epoch"),
        axis_of(tasks),
        tuple(series),
        section=WAYS,
        paper="Tamkin et al., appendix E",
    )


def _plans(view: View) -> list[DrawnPlan]:
    found: dict[str, str] = {}
    for row in view.where("incremental"):
        found.setdefault(str(row.trial.plan), f"{row.labels['k']} layers kept")
    for row in view.where("orders", order="shuffled"):
        found.setdefault(str(row.trial.plan), f"permutation {row.labels['permutation']}")
    return [DrawnPlan(plan, view.depth, name) for plan, name in found.items()]


def _summary(view: View) -> list[Line]:
    lines = []
    for task in view.tasks("orders", order="shuffled"):
        whole = view.where("orders", task=task, order="whole")
        if whole:
            mean = mean_of(view.where("orders", task=task, order="shuffled")).mean
            said = (
                f"on {task_name(task)} with the layers of {view.subject} shuffled; "
                f"{mean_of(whole).mean:.1%} in their order"
            )
            lines.append(Line("found", f"{mean:.1%}", said))
    for task in view.tasks("probe"):
        row = view.where("probe", task=task)[0]
        best = max(probe_curve(row), key=lambda layer: layer["mean"] or 0.0)
        said = f"by the best probe on {task_name(task)}, of layer {best['layer']:.0f}"
        lines.append(Line("found", f"{best['mean']:.1%}", said))
    return lines
