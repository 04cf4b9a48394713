"""What the demo has found, from the rows of its store: for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from restack.demo.trials import LESS, SMALLER, WHOLE, best
from restack.plan import Plan
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
from restack.studies.telling import Part, findings_of
from restack.studies.view import View, score
from restack.sweep.rows import Row

LEAD = (
    "A masked language model of twelve layers that ships with restack, pretrained on a synthetic "
    "language: what its layers know, what happens when they are left out, repeated, made fresh or "
    "shuffled, and what that saves."
)
UNTRAINED, TUNED, COST = "Without training", "After a short fine-tuning", "What it saves"
_PLAN = (Column("what"), Column("layers", "number"), Column("plan", "plan"))
_READ = Axis("tokens read right", "%")


def findings(rows: Sequence[Row]) -> Findings:
    """What the trials that are finished have found."""
    return findings_of("demo", "Twelve layers, re-stacked", LEAD, rows, (), _tell, ())


def _tell(view: View) -> Part:
    part = Part()
    for told in (_lens, _scores, _untrained, _tuned, _cost, _summary):
        part.add(*told(view))
    return part


def _lens(view: View) -> Iterator[Figure | Table | Decoded]:
    for row in view.where("lens"):
        layers = row.payload["layers"]
        points = tuple(Point(layer["layer"], layer["accuracy"]) for layer in layers)
        yield Figure(
            "lens",
            "What the model's own head reads from each layer",
            "curve",
            Axis.layers(),
            _READ,
            (Series(view.subject, points),),
            note="Inputs are not masked: the head is asked for the token at its own place.",
            section=UNTRAINED,
        )
        yield Table(
            "table-lens",
            "What the model's own head reads from each layer",
            (
                Column("layer (0 = embeddings)", "number", digits=0),
                Column("tokens read right", "number", "%", 1),
                Column("among its first five", "number", "%", 1),
            ),
            tuple((layer["layer"], layer["accuracy"], layer["top5"]) for layer in layers),
            section=UNTRAINED,
            long=True,
        )
        yield from (_decoded(text) for text in row.payload["decoded"])


def _decoded(text: Any) -> Decoded:
    layers = tuple(
        DecodedLayer(
            layer["layer"],
            tuple(token["token"] for token in layer["tokens"]),
            tuple(token["right"] for token in layer["tokens"]),
        )
        for layer in text["layers"]
    )
    return Decoded("One sentence, as each layer decodes it", tuple(text["tokens"]), layers)


def _scores(view: View) -> Iterator[Figure | Table]:
    for row in view.where("scores"):
        layers = row.payload["layers"]
        lost = tuple(Point(str(n), -layer["accuracy_increase"]) for n, layer in enumerate(layers))
        yield Figure(
            "scores",
            "What is lost without one layer",
            "bars",
            Axis("layer left out", kind="category", order=tuple(map(str, range(view.depth)))),
            Axis("tokens no longer read right", "%"),
            (Series(view.subject, lost),),
            section=UNTRAINED,
        )
        yield Table(
            "table-scores",
            "How much each layer matters",
            (
                Column("layer", "number", digits=0),
                Column("cosine of [CLS] before and after", "number", digits=3),
                Column("angle before and after", "number", digits=3),
                Column("tokens lost without it", "number", "%", 2),
            ),
            tuple(
                (n, layer["cls_cosine"], layer["angular_distance"], -layer["accuracy_increase"])
                for n, layer in enumerate(layers)
            ),
            note="The strategy `contribution` leaves out the layers with the highest cosine.",
            section=UNTRAINED,
        )


def _untrained(view: View) -> Iterator[Figure | Table]:
    for row in view.where("untrained"):
        read = [plan["accuracy"] for plan in row.payload["plans"]]
        plans = [plan["plan"] for plan in row.payload["plans"]]
        yield from _by_plan(
            view,
            "untrained",
            ("Read by the model's own head, without training", _READ, UNTRAINED),
            list(zip(row.labels["names"], plans, read, strict=True)),
            "Plans that share their first layers share the work: all of this is one walk.",
        )


def _tuned(view: View) -> Iterator[Figure | Table | DrawnPlan]:
    rows = view.where("tuned")
    if not rows:
        return
    found = [(row.labels["name"], str(row.trial.plan), score(row)) for row in rows]
    data = rows[0].trial.data
    yield from _by_plan(
        view,
        "tuned",
        (f"Fine-tuned on {rows[0].trial.task}", Axis("accuracy", "%"), TUNED),
        found,
        f"One run each, with {data.size if data else 0:,} examples and one seed: differences of a "
        "point or two may be chance.",
    )
    for name, plan, _ in found:
        yield DrawnPlan(plan, view.depth, name)


def _by_plan(
    view: View,
    key: str,
    words: tuple[str, Axis, str],
    found: list[tuple[str, str, float]],
    note: str,
) -> Iterator[Figure | Table]:
    """A value of every plan, as dots and as a table."""
    title, axis, section = words
    names = [name for name, _, _ in found]
    whole = next((value for name, _, value in found if name == WHOLE), None)
    points = tuple(Point(name, value, label=plan) for name, plan, value in found)
    yield Figure(
        key,
        title,
        "dots",
        Axis("plan", kind="category", order=tuple(names)),
        axis,
        (Series(view.subject, points),),
        () if whole is None else (Rule(whole, WHOLE),),
        note=note,
        section=section,
    )
    rows: list[tuple[Entry, ...]] = [
        (
            name,
            len(Plan.parse(plan, view.depth)),
            plan,
            value,
            None if whole is None else 100 * (value - whole),
        )
        for name, plan, value in found
    ]
    columns = (
        *_PLAN,
        Column(axis.label, "number", "%", 1),
        Column(f"beside the {WHOLE}", "number", "points", 1),
    )
    yield Table(f"table-{key}", title, columns, tuple(rows), section=section)


def _cost(view: View) -> Iterator[Table]:
    for row in view.where("cost"):
        rows = [
            (
                entry["depth"],
                entry["plan"],
                entry["parameters"] / 1e6,
                _ratio(entry["inference"]),
                _ratio(entry["training"]),
            )
            for entry in row.payload["plans"]
        ]
        yield Table(
            "table-cost",
            "Cost beside the whole model",
            (
                *_PLAN[1:],
                Column("parameters, millions", "number", digits=2),
                Column("time of inference, whole = 1", "number", digits=2),
                Column("time of an update, whole = 1", "number", digits=2),
            ),
            tuple(rows),
            note=f"Timed in turns, in batches of {row.payload['batch']}; intervals are over "
            f"{row.payload['rounds']} turns.",
            section=COST,
        )


def _ratio(found: dict[str, Any]) -> Number:
    return Number(found["ratio"], found["low"], found["high"], found["n"])


def _summary(view: View) -> Iterator[Line]:
    tuned = {row.labels["name"]: row for row in view.where("tuned")}
    if WHOLE in tuned and tuned.keys() & set(SMALLER):
        small = best(list(tuned.values()))
        said = f"of the accuracy stays with {view.depth - LESS} of {view.depth} layers"
        kept = score(small) / score(tuned[WHOLE])
        yield Line("kept", f"{kept:.1%}", f"{said} ({small.labels['name']}), fine-tuned")
    for row in view.where("untrained"):
        read = dict(zip(row.labels["names"], row.payload["plans"], strict=True))
        points = 100 * (read[WHOLE]["accuracy"] - read["shuffle"]["accuracy"])
        yield Line("lost", f"{points:.1f} points", "of the tokens when the layers are shuffled")
    for row in view.where("cost"):
        saved = 1 - row.payload["plans"][1]["inference"]["ratio"]
        yield Line("saved", f"{saved:.0%}", f"of the time with {view.depth - LESS} layers")
    for row in view.where("lens"):
        first, *_, last = (layer["accuracy"] for layer in row.payload["layers"])
        said = f"of the tokens are read from the embeddings, {last:.0%} from the last layer"
        yield Line("found", f"{first:.0%}", said)
