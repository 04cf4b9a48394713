"""Made-up findings with everything in them, and strings that want to be more than text."""

from __future__ import annotations

import math
import random

from restack.stats import mean_interval
from restack.studies.findings import (
    Axis,
    Cell,
    Column,
    Decoded,
    DecodedLayer,
    DrawnPlan,
    Figure,
    Findings,
    Line,
    Number,
    Point,
    Provenance,
    Rule,
    Series,
    Split,
    Table,
    Verdict,
)

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"'><svg/onload=alert(3)>",
    "{{constructor.constructor('alert(4)')()}}",
    "<!--<script>",
    "]]>&lt;&amp;\u2028\u2029\x00",
    "javascript:alert(5)",
    "=cmd|' /C calc'!A0",
)
SCORE = Axis("accuracy", "%")


def curve() -> Figure:
    rng = random.Random(1)

    def line(name: str, task: str, start: float, published: bool = False) -> Series:
        points = []
        for layer in range(13):
            middle = start + (0.94 - start) * (1 - math.exp(-layer / 3))
            if published:
                points.append(Point(layer, middle + 0.012))
                continue
            mean = mean_interval([middle + rng.gauss(0, 0.008) for _ in range(5)])
            points.append(Point.of(layer, mean, f"0-{layer}"))
        return Series(name, tuple(points), published, task)

    series = tuple(
        line(name, task, start, "paper" in name)
        for task, start in (("SST-2", 0.55), ("QNLI", 0.5), ("CoLA", 0.62))
        for name, start in (
            ("pretrained", start),
            ("fine-tuned", start + 0.1),
            ("BERT, paper", start + 0.05),
        )
    )
    return Figure(
        "lens",
        "What each layer decodes to",
        "curve",
        Axis.layers(),
        SCORE,
        series,
        (Rule(0.5, "chance"),),
        note="Bands are 95% intervals over five trials.",
        section="Without training",
        paper="Kao et al., figure 2",
    )


def bars() -> Figure:
    rng = random.Random(2)
    tasks = ("2 dropped", "4 dropped", "6 dropped")
    strategies = ("top", "even", "odd", "contribution", "symmetric", "bottom")
    series = []
    for number, task in enumerate(tasks):
        ours, paper = [], []
        for place, name in enumerate(strategies):
            middle = 0.9 - 0.01 * number * (1 + place)
            values = [middle + rng.gauss(0, 0.004) for _ in range(4)]
            ours.append(Point.of(name, mean_interval(values), "drop:top=2"))
            paper.append(Point(name, middle + 0.01))
        series.append(Series("here", tuple(ours), facet=task))
        series.append(Series("paper", tuple(paper), published=True, facet=task))
    return Figure(
        "strategies",
        "Strategies of dropping",
        "bars",
        Axis("strategy", kind="category", order=strategies),
        Axis("mean score", "%", domain=(0.7, 0.95)),
        tuple(series),
        (Rule(0.912, "untouched"),),
        section="After fine-tuning",
        paper="Sajjad et al., figure 2",
    )


def dots() -> Figure:
    rng = random.Random(3)
    points = []
    for layer in range(12):
        values = [0.9 - 0.004 * (11 - layer) + rng.gauss(0, 0.006) for _ in range(3)]
        points.append(Point.of(f"layer {layer}", mean_interval(values)))
    paper = tuple(Point(f"layer {layer}", 0.87 + layer * 0.004) for layer in range(12))
    return Figure(
        "single",
        "One layer fresh",
        "dots",
        Axis("fresh layer", kind="category", order=tuple(f"layer {i}" for i in range(12))),
        SCORE,
        (Series("here", tuple(points)), Series("paper", paper, published=True)),
        (Rule(0.905, "untouched"),),
        section="After fine-tuning",
    )


def scatter() -> Figure:
    rng = random.Random(4)
    pairs = [(rng.uniform(0.5, 0.8), rng.gauss(0, 0.03)) for _ in range(10)]
    return Figure(
        "scatter",
        "The same permutation on two tasks",
        "dots",
        Axis("SST-2", "%"),
        Axis("QNLI", "%"),
        (Series("permutations", tuple(Point(x, x - 0.05 + e) for x, e in pairs)),),
        section="After fine-tuning",
    )


def density() -> Figure:
    rng = random.Random(5)
    return Figure(
        "density",
        "Shuffled layers",
        "density",
        Axis("accuracy", "%", domain=(0.4, 1.0)),
        Axis("density"),
        tuple(
            Series.of_values(task, [min(1, rng.gauss(0.62, 0.05)) for _ in range(20)], task)
            for task in ("SST-2", "QNLI")
        ),
        (Rule(0.92, "untouched", axis="x"),),
        section="After fine-tuning",
        note="A tick for every trial.",
    )


def heatmap() -> Figure:
    cells = tuple(
        Cell(start, end, 0.1 * (end - start) - 0.3 if end > start else None, f"{start}-{end}")
        for start in range(12)
        for end in range(1, 13)
    )
    return Figure(
        "blocks",
        "Repeated middle blocks",
        "heatmap",
        Axis("first layer of the block"),
        Axis("end of the block"),
        cells=cells,
        colour=Axis("change of perplexity"),
        middle=0.0,
        section="Without training",
    )


def figures() -> tuple[Figure, ...]:
    return curve(), heatmap(), bars(), dots(), scatter(), density()


def trials(count: int) -> Table:
    rng = random.Random(6)
    rows = tuple(
        (
            f"{place:016x}",
            f"0-{place % 12}",
            ("SST-2", "QNLI", "CoLA")[place % 3],
            place % 5,
            rng.uniform(0.5, 0.95),
            rng.uniform(10, 60),
            None if place % 17 else "out of memory",
        )
        for place in range(count)
    )
    return Table(
        "trials",
        "All trials",
        (
            Column("trial"),
            Column("plan", "plan"),
            Column("task"),
            Column("seed", "number", digits=0),
            Column("accuracy", "number", "%", 1),
            Column("time", "number", "s", 1),
            Column("failed"),
        ),
        rows,
        long=True,
    )


def everything(rows: int = 40) -> Findings:
    """Findings with a figure of every kind."""
    scores = Table(
        "scores",
        "Scores by depth",
        (
            Column("model"),
            Column("layers", "number", digits=0),
            Column("SST-2", "number", "%", 2),
            Column("SST-2, paper", "number", "%", 2, published=True),
            Column("plan", "plan"),
        ),
        (
            ("bge-small", 12, Number(0.9124, 0.9071, 0.9177, 5), 0.9243, "0-11"),
            ("bge-small", 10, Number(0.9071, 0.9012, 0.913, 5), 0.922, "0-9"),
            ("bge-small", 8, Number(0.893, n=2), 0.906, "0-7"),
            (
                "bge-small",
                6,
                Number(0.8911, 0.8841, 0.8981, 5),
                Number(0.9025, note="table 5 gives 92.25"),
                "0-5",
            ),
            ("bge-small", 4, None, None, "0-3"),
        ),
        note="Means of five trials with 95% intervals.",
        section="After fine-tuning",
        paper="Sajjad et al., table 1",
    )
    words = ("[CLS]", "a", "quietly", "moving", "film", "[SEP]")
    decoded = Decoded(
        "A sentence of SST-2",
        words,
        tuple(
            DecodedLayer(
                layer,
                tuple("film" if (layer * 7 + i) % 5 == 0 else w for i, w in enumerate(words)),
                tuple((layer * 7 + i) % 5 != 0 or w == "film" for i, w in enumerate(words)),
            )
            for layer in range(13)
        ),
        note="Layer 0 is the embeddings.",
    )
    return Findings(
        "drop-sample",
        "Dropping layers of a made-up model",
        "How much of a model is needed? All numbers on this page are made up.",
        (
            Line("kept", "97.6%", "of the accuracy of the untouched model with 6 of 12 layers"),
            Line("lost", "2.1 points", "on average over three tasks when the top half is dropped"),
            Line("saved", "1.94×", "faster fine-tuning, and 40% of the parameters"),
            Line(
                "found",
                "",
                "Dropping from the top loses less than dropping from the bottom at every depth.",
            ),
        ),
        (
            Verdict(
                "top",
                "Sajjad et al.",
                "Top-dropping beats bottom-dropping",
                "seen",
                "at 6 of 12 layers by 3.4 points, 95% interval 2.2 to 4.6, n = 5",
                "strategies",
                "BERT: by 5 points",
                "bge-small",
            ),
            Verdict(
                "half",
                "Sajjad et al.",
                "Dropping half costs under 3 points and halves the time",
                "undecided",
                "costs 2.1 points, 95% interval 0.9 to 3.3: the interval holds 3",
                "scores",
                "2.91 points, 1.94 x",
                "bge-small",
            ),
            Verdict(
                "lens",
                "Kao et al.",
                "Intermediate layers decode above 80%",
                "not seen",
                "6 of 11 layers do, the lowest is at 62%",
                "lens",
                "all but layer 0",
                "bge-small",
            ),
            Verdict(
                "order",
                "Tamkin et al.",
                "Shuffled layers fall to near random",
                "not applicable",
                "no permutations were run at this scale",
            ),
        ),
        figures(),
        (scores, trials(rows)),
        (
            DrawnPlan("0-5", 12, "top, 6 dropped"),
            DrawnPlan("0-8,9-11@fresh", 12, "after layer 8 fresh"),
            DrawnPlan("0-2x2,3-11", 12, "first three repeated"),
        ),
        (decoded,),
        (("optimizer", "AdamW"), ("learning rate", "2e-5"), ("epochs", "3"), ("batch", "32")),
        ("The training split of QNLI is 9,999 of 104,743 rows.",),
        Provenance(
            "2026-01-02",
            "restack study drop demo/bert --scale small --store runs",
            {"restack": "0.1.0", "torch": "2.13.0"},
            "two CPU cores",
            (("made-up/bert", "sha256 0123456789abcdef"),),
            (Split("sst2", "train", 67349), Split("qnli", "train", 9999, "9,999 of 104,743 rows")),
            ("Sajjad et al. 2020, Poor Man's BERT (arXiv 2004.03844)",),
        ),
    )


def hostile() -> Findings:
    """Findings in which every text is hostile."""
    a, b, c, d, e, f, g, h = HOSTILE
    axis = Axis(a, b, kind="category", order=(b, c))
    series = (Series(a, (Point(b, 0.5, label=c), Point(d, 0.6, label=e)), facet=g),)
    series += (Series(h, (Point(b, 0.4, label=c),), True, g), Series(b, (Point(b, 0.1),), facet=e))
    return Findings(
        a,
        b,
        c,
        (Line("kept", d, e), Line("found", "", a)),
        (Verdict(a, b, c, "seen", d, f, e, g),),
        (
            Figure(
                f, a, "bars", axis, Axis(c, d), series, (Rule(0.3, a),), note=b, section=c, paper=d
            ),
            Figure("dots", b, "dots", axis, Axis(c), series, (Rule(0.3, a),), section=c),
            Figure(
                "heat",
                h,
                "heatmap",
                axis,
                axis,
                cells=(Cell(a, b, 0.5, c), Cell(c, d, None, e, g)),
                colour=Axis(a, b),
                section=d,
            ),
        ),
        (
            Table(
                g,
                h,
                (Column(a), Column(b, "number", c), Column(d, "plan")),
                tuple((text, Number(0.5, note=text), text) for text in HOSTILE),
                note=e,
                section=c,
                paper=a,
            ),
        ),
        (DrawnPlan("0-1", 3, a),),
        (Decoded(a, HOSTILE, (DecodedLayer(0, HOSTILE, (True,) * 8),), b),),
        ((a, b), (c, d)),
        HOSTILE,
        Provenance(a, b, {c: d}, e, ((f, g),), (Split(a, b, 3, c),), HOSTILE),
    )
