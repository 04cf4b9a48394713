"""The figures and tables of Kao et al., from the rows of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from restack.plan import Plan
from restack.stats import Mean, mean_interval
from restack.studies.claims_duplicate import CLAIMS, HIGH, gain_over
from restack.studies.duplicate import RULES, STUDY, curve
from restack.studies.findings import (
    Axis,
    Column,
    Decoded,
    DecodedLayer,
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
from restack.studies.published import Score, duplicate_ensembles, duplicate_scores
from restack.studies.subjects import Subject
from restack.studies.telling import (
    IN_PAPERS,
    Part,
    axis_of,
    beside,
    findings_of,
    paper_of,
    point,
    points,
    task_name,
    their_points,
    theirs,
)
from restack.studies.verdicts import Effect
from restack.studies.view import View, mean_of, metric_of
from restack.sweep.rows import Row
from restack.sweep.trial import Model

PAPER = (
    "Kao, Wu, Chi, Hsieh, Lee: BERT's output layer recognizes all hidden layers? Some intriguing "
    "phenomena and a simple way to boost BERT (2020)"
)
SECTION, TUNED = "Without training", "After fine-tuning"
ACCURACY = Axis("token accuracy", "%", domain=(0.0, 1.0))


def findings(rows: Sequence[Row]) -> Findings:
    """What the study of duplicated layers has found."""
    return findings_of(
        STUDY,
        "Repeated layers",
        "What the model's own head reads from every layer, and what repeating layers does, before "
        "and after fine-tuning.",
        rows,
        CLAIMS,
        _tell,
        (PAPER,),
    )


def _tell(view: View) -> Part:
    part = Part()
    part.add(
        _lens(view),
        _lens_table(view),
        _untrained(view),
        _depths(view),
        _rules(view),
        _ensembles(view),
    )
    part.add(_scores(view), *_plans(view), *_decoded(view), *_summary(view))
    if not view.labels["head"]:
        part.notes.append(
            f"{view.subject} holds no language-modelling head, so nothing can be read from its "
            "layers without training."
        )
    return part


def _lens(view: View) -> Figure | None:
    """Figures 2, 3, 6 and 7, on the left of their lines."""
    series = [
        Series(
            when,
            tuple(Point(layer["layer"], layer["accuracy"]) for layer in row.payload["layers"]),
            facet=task_name(row.trial.task),
        )
        for when in ("pretrained", "fine-tuned")
        for row in view.where("lens", when=when)
    ]
    if not series:
        return None
    return Figure(
        "lens",
        "What the model's own head reads from each layer",
        "curve",
        Axis.layers(),
        ACCURACY,
        tuple(series),
        (Rule(HIGH, "80%", published=True),),
        note="Inputs are not masked; special tokens and padding are not counted. After fine-tuning "
        "the states are read by the pretrained head.",
        section=SECTION,
        paper="Kao et al., figures 2, 3, 6, 7",
    )


def _lens_table(view: View) -> Table | None:
    """The same numbers, and the token behind [CLS] apart."""
    rows: list[tuple[Entry, ...]] = [
        (task_name(row.trial.task), when, layer["layer"], layer["accuracy"], first)
        for when in ("pretrained", "fine-tuned")
        for row in view.where("lens", when=when)
        for layer, first in zip(row.payload["layers"], row.payload["after_first"], strict=True)
    ]
    if not rows:
        return None
    return Table(
        "table-lens",
        "Token accuracy of each layer",
        (
            Column("texts"),
            Column("model"),
            Column("layer", "number"),
            Column("token accuracy", "number", "%", 2),
            Column("behind the class token", "number", "%", 2),
        ),
        tuple(rows),
        note="Layer 0 is the embeddings. Behind the class token: the first token of each text, "
        "for which the paper has 59% at the last layer of BERT-base on SST-2.",
        section=SECTION,
        paper="Kao et al., figures 2, 3, 6, 7; v1: table 2",
        long=True,
    )


def _untrained(view: View) -> Figure | None:
    """The same figures, on the right of their lines; and the other rules."""
    rows = view.where("untrained")
    if not rows:
        return None
    subject = Subject("", Model(""), view.depth, bool(view.labels["shared"]))
    series, rules = [], []
    for row in rows:
        found = {entry["plan"]: entry for entry in row.payload["plans"]}
        deepest = max(entry["depth"] for entry in found.values())
        for rule in ("repeat",) if view.labels["shared"] else RULES:
            plans = [str(plan) for plan in curve(subject, rule, deepest)]
            points = [
                Point(found[plan]["depth"], found[plan]["accuracy"], label=plan)
                for plan in plans
                if plan in found
            ]
            name = {"first": "first layers", "last": "last layers", "one": "layer 0 again"}
            series.append(
                Series(name.get(rule, rule), tuple(points), facet=task_name(row.trial.task))
            )
        whole = row.payload["plans"][0]["accuracy"]
        rules.append(Rule(whole, "untouched", facet=task_name(row.trial.task)))
    return Figure(
        "untrained",
        "Repeated layers without training",
        "curve",
        Axis("depth"),
        ACCURACY,
        tuple(series),
        tuple(rules),
        note="Token accuracy behind the last layer.",
        section=SECTION,
        paper="Kao et al., figures 2, 3, 6, 7 (v1: 4, 5)",
    )


def measures(task: str) -> dict[str, str]:
    """What a task is scored by, as it is written: SQuAD by both of its metrics."""
    name = task_name(task)
    return (
        {f"{name}, F1": "f1", f"{name}, EM": "exact"} if task in SPANS else {name: metric_of(task)}
    )


SPANS = ("squad", "squad_v2")


def _depths(view: View) -> Figure | None:
    """Figures 4, 5 and 8."""
    series, rules = [], []
    tasks = view.tasks("depths")
    for task in tasks:
        by_depth = {
            view.depth + added: view.where("depths", task=task, added=added)
            for added in view.values_of("depths", "added", task=task)
        }
        for name, metric in measures(task).items():
            means = {depth: _mean(found, metric) for depth, found in by_depth.items()}
            points = tuple(
                Point.of(depth, mean, by_depth[depth][0].trial.plan or "")
                for depth, mean in means.items()
            )
            series.append(Series("here", points, facet=name))
            if view.depth in means:
                rules.append(Rule(means[view.depth].mean, "untouched", facet=name))
            paper = published(view, task, metric)
            if paper:
                series.append(Series(paper_of(view), their_points(paper), True, name))
    if not series:
        return None
    return Figure(
        "depths",
        "Fine-tuned with the first layers repeated",
        "curve",
        Axis("depth"),
        axis_of(tasks),
        tuple(series),
        tuple(rules),
        note="The untouched model is trained with several seeds. Deeper models have its settings.",
        section=TUNED,
        paper="Kao et al., figures 4, 5, 8; v1: 6, 7, 8 and tables 3, 4",
    )


def _mean(rows: Sequence[Row], metric: str) -> Mean:
    return mean_interval([row.metric(metric) for row in rows])


def published(view: View, task: str, metric: str) -> dict[int, Score]:
    """The published score of this model on a task, by depth."""
    return {
        score.change: score
        for score in duplicate_scores()
        if score.model == beside(view)
        and score.task == IN_PAPERS.get(task)
        and score.metric == metric
    }


def _rules(view: View) -> Figure | None:
    tasks = view.tasks("rules")
    if not tasks:
        return None
    series, rules = [], []
    for task in tasks:
        found: Mapping[str, list[Row]] = {
            rule: view.where("rules", task=task, rule=rule) for rule in RULES
        }
        points = tuple(point(rule, some) for rule, some in found.items() if some)
        series.append(Series("here", points, facet=task_name(task)))
        whole = view.where("depths", task=task, added=0)
        if whole:
            rules.append(Rule(mean_of(whole).mean, "untouched", facet=task_name(task)))
    added = view.where("rules")[0].labels["added"]
    return Figure(
        "rules",
        f"Which layers are repeated, {added} added",
        "dots",
        Axis("rule", kind="category", order=RULES),
        axis_of(tasks),
        tuple(series),
        tuple(rules),
        note="first, last: so many layers once each. one: layer 0 so many times more.",
        section=TUNED,
        paper="Kao et al. v1, section 4.2 (in words)",
    )


GROUPS = {
    "baseline": "untouched, all seeds",
    "best deeper": "the best three depths",
    "deeper": "all depths",
}


def _ensembles(view: View) -> Table | None:
    """Tables 5 and 6 (v2: 2)."""
    rows: list[tuple[Entry, ...]] = []
    for row in view.where("ensemble"):
        task = str(row.trial.task)
        names = ("exact", "f1") if task in SPANS else (metric_of(task), None)
        first = next(iter(row.metrics.values()))
        group = str(row.labels["members"])
        if group == "best deeper":  # chosen on one half of the examples, scored on the other
            first = next(iter(row.payload["members"].values()))["mean"]
        values = [None if name is None else Number(first[name], n=1) for name in names]
        gain = next(iter((row.payload.get("gain") or {}).values()), None)
        more = None
        if gain is not None:
            more = points(Effect(gain["mean"], gain["low"], gain["high"], gain["n"]))
        rows.append((task_name(task), GROUPS[group], *values, more))
    for ours in duplicate_ensembles():
        if ours.model == beside(view) and ours.metric == "exact":
            other = next(
                e.value
                for e in duplicate_ensembles()
                if (e.model, e.members, e.metric) == (ours.model, ours.members, "f1")
            )
            both = (Number(ours.value, published=True), Number(other, published=True))
            rows.append(("SQuAD 2.0", f"{paper_of(view)}: {ours.members}", *both, None))
    if not rows:
        return None
    return Table(
        "ensembles",
        "Ensembles: summed probabilities",
        (
            Column("task"),
            Column("members"),
            Column("score, or exact", "number", "%", 2),
            Column("F1", "number", "%", 2),
            Column("over the untouched", "number", "points", 2),
        ),
        tuple(rows),
        note="The best three are chosen on one half of the examples and scored on the other, both "
        "ways round; the paper chose them on the examples that it reports. Intervals are over "
        "examples.",
        section=TUNED,
        paper="Kao et al., table 2; v1: tables 5, 6",
    )


def _scores(view: View) -> Table | None:
    """Tables 3 and 4 of v1."""
    rows: list[tuple[Entry, ...]] = []
    for task in view.tasks("depths"):
        whole = view.where("depths", task=task, added=0)
        for name, metric in measures(task).items():
            paper = published(view, task, metric)
            for added in view.values_of("depths", "added", task=task):
                found = view.where("depths", task=task, added=added)
                depth = view.depth + added
                gain = points(gain_over(found, whole, metric)) if whole and added else None
                mean = Number.of(_mean(found, metric))
                row = (name, depth, mean, gain, theirs(paper.get(depth)), found[0].trial.plan)
                rows.append(row)
    if not rows:
        return None
    return Table(
        "table-depths",
        "Single models by depth",
        (
            Column("task"),
            Column("layers", "number"),
            Column("score", "number", "%", 2),
            Column("over the untouched", "number", "points", 2),
            Column(paper_of(view), "number", "%", 2, published=True),
            Column("plan", "plan"),
        ),
        tuple(rows),
        note="Over the untouched: pair by pair of seeds where there are three, else mean by mean.",
        section=TUNED,
        paper="Kao et al. v1, tables 3, 4",
    )


def _plans(view: View) -> list[DrawnPlan]:
    found = {
        row.trial.plan: f"{row.labels['rule']}, {row.labels['added']} added"
        for part in ("depths", "rules")
        for row in view.where(part)
        if row.labels["added"] and row.trial.plan
    }
    return [DrawnPlan(str(plan), view.depth, name) for plan, name in found.items()]


def _decoded(view: View) -> list[Decoded]:
    """Table 1 (v1: 2)."""
    found = []
    for row in view.where("lens", when="pretrained")[:3]:
        for text in row.payload["decoded"]:
            layers = tuple(
                DecodedLayer(
                    layer["layer"],
                    tuple(token["token"] for token in layer["tokens"]),
                    tuple(token["right"] for token in layer["tokens"]),
                )
                for layer in text["layers"]
            )
            title = f"{view.subject}, {task_name(row.trial.task)}"
            note = "As in Kao et al., table 1: what each layer decodes to."
            found.append(Decoded(title, tuple(text["tokens"]), layers, note))
    return found


def _summary(view: View) -> list[Line]:
    lines = []
    rows = view.where("lens", when="pretrained")
    if rows:
        between = [layer["accuracy"] for row in rows for layer in row.payload["layers"][1:-1]]
        said = f"of the tokens are read from the worst intermediate layer of {view.subject}"
        lines.append(Line("found", f"{min(between):.1%}", said))
    for row in view.where("untrained")[:1]:
        whole, deepest = (
            row.payload["plans"][0],
            max(row.payload["plans"], key=lambda entry: entry["depth"]),
        )
        kept = deepest["accuracy"] / whole["accuracy"]
        depth = len(Plan.parse(deepest["plan"], view.depth))
        said = (
            f"of the token accuracy stays when {view.subject} goes from {view.depth} to {depth} "
            "layers without training"
        )
        lines.append(Line("kept", f"{kept:.1%}", said))
    return lines
