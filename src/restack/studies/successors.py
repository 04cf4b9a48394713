"""What came after the three papers, with the same plans and without training.

shortgpt   Men et al.: layers with the least block influence go first
gromov     Gromov et al.: the block whose two ends are most alike goes
shortened  Kim et al.: layers whose absence costs the least perplexity go first
upscale    SOLAR (two overlapping copies) and LLaMA-Pro (no-op copies)
repeat     every block of consecutive layers, repeated once
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from restack.errors import RestackError
from restack.plan import Plan, drop, duplicate, expand, upscale
from restack.studies.laying import Layout
from restack.studies.scale import SUCCESSORS, Successors, scale_of
from restack.studies.subjects import Subject
from restack.sweep.rows import Row
from restack.sweep.trial import Data, Trial

NAMES = ("shortgpt", "gromov", "shortened", "upscale", "repeat")


def definition(
    study: str,
    subjects: Sequence[Subject],
    scale: str,
    texts: Data,
    *,
    rows: Sequence[Row] = (),
) -> list[Trial]:
    """All trials that can be laid out so far: what is removed follows from what is measured."""
    size = scale_of(SUCCESSORS, scale)
    layout = Layout(study, scale, texts=replace(texts, limit=size.texts))
    for subject in subjects:
        if not subject.head:
            raise RestackError(
                f"{subject.name} has no language-modelling head, and without one there is no "
                "perplexity and no token to name",
                hint="Give a checkpoint saved with its head, such as ...ForCausalLM.",
            )
    return [
        trial
        for subject in subjects
        for trial in _STUDIES[study](_Lay(layout, size, subject), rows)
    ]


class _Lay:
    """The trials of one model."""

    def __init__(self, layout: Layout, size: Successors, subject: Subject) -> None:
        self.layout, self.size, self.subject = layout, size, subject
        self.depth = subject.depth
        self.most = max(1, int(subject.depth * size.removed))

    def plans(self, part: str, plans: Sequence[Plan]) -> Trial:
        texts = list(dict.fromkeys(str(plan) for plan in (Plan.identity(self.depth), *plans)))
        read = "loss" if self.subject.causal else "tokens"
        return self._look("plans", part, {"plans": texts, "read": read})

    def score(self, part: str, measures: Sequence[str], blocks: Sequence[int] = (1,)) -> Trial:
        return self._look("score", part, {"measures": list(measures), "blocks": list(blocks)})

    def _look(self, kind: str, part: str, settings: Mapping[str, object]) -> Trial:
        return self.layout.look(
            kind,
            self.subject,
            {**settings, "max_length": self.size.max_length},
            self.layout.labels(self.subject, part, causal=self.subject.causal),
            data=self.layout.texts,
        )


def _done(rows: Sequence[Row], trial: Trial) -> Row | None:
    """What has come of a measurement, once it is finished."""
    return next((row for row in rows if row.key == trial.key and row.status == "done"), None)


def removals(order: Sequence[int], most: int) -> list[Plan]:
    """Plans without the first layer of an order, the first two, and so on.

    >>> [str(plan) for plan in removals([2, 0, 1, 3], 2)]
    ['0-1,3', '1,3']
    """
    return [drop(len(order), sorted(order[:count])) for count in range(1, most + 1)]


def order_by(values: Sequence[float | None], *, highest: bool = False) -> list[int]:
    """Layers from the least value up; of equal ones the upper layer first, unknown ones last."""
    known = [(v if not highest else -v, -i) for i, v in enumerate(values) if v is not None]
    unknown = [i for i, v in enumerate(values) if v is None]
    return [-i for _, i in sorted(known)] + unknown


def blocks_without(starts: Mapping[int, int], depth: int) -> list[Plan]:
    """Plans without one block each: length to first layer."""
    return [drop(depth, range(start, start + n)) for n, start in sorted(starts.items())]


def _shortgpt(lay: _Lay, rows: Sequence[Row]) -> Iterator[Trial]:
    yield (measured := lay.score("influence", ["block_influence"]))
    found = _done(rows, measured)
    if found is not None:
        values = [row["block_influence"] for row in found.payload["layers"]]
        orders = {
            "least influence": order_by(values),
            "most influence": order_by(values, highest=True),
            "top": list(range(lay.depth - 1, -1, -1)),
            "bottom": list(range(lay.depth)),
        }
        yield lay.plans("removed", [p for o in orders.values() for p in removals(o, lay.most)])


def _gromov(lay: _Lay, rows: Sequence[Row]) -> Iterator[Trial]:
    yield (measured := lay.score("angles", ["angular_distance"], range(1, lay.most + 1)))
    found = _done(rows, measured)
    if found is not None:
        best = best_blocks(found)
        plans = blocks_without(best, lay.depth)
        # the paper's simple rule: the layers just below the last one
        plans += blocks_without({n: lay.depth - 1 - n for n in best}, lay.depth)
        plans += blocks_without({n: lay.depth - n for n in best}, lay.depth)
        plans += blocks_without(dict.fromkeys(best, 1), lay.depth)
        yield lay.plans("removed", plans)


def best_blocks(row: Row) -> dict[int, int]:
    """For each length, the first layer of the block whose ends are most alike."""
    best: dict[int, tuple[float, int]] = {}
    for block in row.payload["blocks"]:
        angle, n = block["angular_distance"], block["length"]
        if angle is not None and n < len(row.payload["layers"]):
            best[n] = min(best.get(n, (2.0, 0)), (angle, block["start"]))
    return {n: start for n, (_, start) in best.items()}


def _shortened(lay: _Lay, rows: Sequence[Row]) -> Iterator[Trial]:
    alone = [drop(lay.depth, [layer]) for layer in range(lay.depth)]
    yield (without := lay.plans("one out", alone))
    yield (score := lay.score("influence", ["block_influence"]))
    one, influence = _done(rows, without), _done(rows, score)
    if one is not None and influence is not None:
        harm = harms(one, alone)
        values = [row["block_influence"] for row in influence.payload["layers"]]
        orders = (order_by(harm), order_by(values), list(range(lay.depth - 1, -1, -1)))
        yield lay.plans("removed", [p for o in orders for p in removals(o, lay.most)])


def harms(row: Row, plans: Sequence[Plan]) -> list[float]:
    """What each plan loses: the loss that it adds, or the accuracy that it takes."""
    found = {entry["plan"]: entry for entry in row.payload["plans"]}
    whole = row.payload["plans"][0]
    if "loss" in whole:
        return [found[str(plan)]["loss"] - whole["loss"] for plan in plans]
    return [whole["accuracy"] - found[str(plan)]["accuracy"] for plan in plans]


def _upscale(lay: _Lay, rows: Sequence[Row]) -> Iterator[Trial]:
    yield lay.plans("deeper", list(upscaled(lay.depth, noop=lay.subject.causal).values()))


def upscaled(depth: int, *, noop: bool = True) -> dict[str, Plan]:
    """Half as many layers again, in three ways; no-op copies where layers can be switched off."""
    to = depth + depth // 2
    every = max(1, round(depth / max(1, to - depth)))
    ways = {"overlap (SOLAR)": upscale(depth, to)}
    if noop:  # post-norm layers, as in BERT, cannot be made to pass their input on
        ways["no-op copies (LLaMA-Pro)"] = expand(depth, every=every)
    ways["first layers twice (Kao et al.)"] = duplicate(depth, to=to)
    ways["last layers twice"] = duplicate(depth, last=to - depth)
    return ways


def _repeat(lay: _Lay, rows: Sequence[Row]) -> Iterator[Trial]:
    yield lay.plans("blocks twice", list(repeated(lay.depth, lay.size.pairs).values()))


def repeated(depth: int, longest: int | None = None) -> dict[tuple[int, int], Plan]:
    """Every block i..j of layers run twice in a row.

    >>> str(repeated(5)[1, 3])
    '0-3,1-4'
    """
    longest = depth if longest is None else longest
    return {
        (i, j): Plan.of(depth, [*range(j + 1), *range(i, depth)])
        for i in range(depth)
        for j in range(i, min(depth, i + longest))
    }


_STUDIES: dict[str, Callable[[_Lay, Sequence[Row]], Iterator[Trial]]] = {
    "shortgpt": _shortgpt,
    "gromov": _gromov,
    "shortened": _shortened,
    "upscale": _upscale,
    "repeat": _repeat,
}
