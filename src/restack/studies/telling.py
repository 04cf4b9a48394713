"""From rows to findings: what the findings of all studies have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from restack.stats import Difference
from restack.studies.claim import Claim, judged
from restack.studies.findings import (
    Axis,
    Decoded,
    DrawnPlan,
    Figure,
    Findings,
    Line,
    Number,
    Point,
    Provenance,
    Split,
    Table,
)
from restack.studies.published import Score
from restack.studies.scale import NAMES
from restack.studies.subjects import PAPERS
from restack.studies.verdicts import Effect
from restack.studies.view import View, mean_of, metric_of, views
from restack.sweep.rows import Row

TASKS = {
    "sst2": "SST-2",
    "sst2_sentence": "SST-2 sentences",
    "mnli": "MNLI",
    "qnli": "QNLI",
    "qqp": "QQP",
    "stsb": "STS-B",
    "rte": "RTE",
    "mrpc": "MRPC",
    "cola": "CoLA",
    "snli": "SNLI",
    "squad": "SQuAD 1.1",
    "squad_v2": "SQuAD 2.0",
}
"""How tasks are written."""
IN_PAPERS = TASKS | {"sst2_sentence": "SST-2", "squad_v2": "SQuAD2"}
"""What the published tables call them."""


@dataclass(slots=True)
class Part:
    """What there is to say of one model."""

    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    summary: list[Line] = field(default_factory=list)
    plans: list[DrawnPlan] = field(default_factory=list)
    decoded: list[Decoded] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *items: Figure | Table | Line | DrawnPlan | Decoded | None) -> None:
        """Add what there is; None is nothing."""
        for item in items:
            match item:
                case Figure():
                    self.figures.append(item)
                case Table():
                    self.tables.append(item)
                case Line():
                    self.summary.append(item)
                case DrawnPlan():
                    self.plans.append(item)
                case Decoded():
                    self.decoded.append(item)


def findings_of(
    key: str,
    title: str,
    lead: str,
    rows: Sequence[Row],
    claims: Sequence[Claim],
    tell: Callable[[View], Part],
    papers: tuple[str, ...],
) -> Findings:
    """The findings of a study: a part for each of its models, and the verdicts on all claims."""
    found = views(largest_scale(rows))
    parts = [(view, tell(view)) for view in found]
    several = len(parts) > 1
    verdicts, figures, tables = [], [], []
    for view, part in parts:
        end = f"-{slug(view.subject)}" if several else ""
        said = f", {view.subject}" if several else ""
        keys = [*(figure.key for figure in part.figures), *(table.key for table in part.tables)]
        shown = {name: name + end for name in keys}
        figures += [(figure.key, _named(figure, end, said)) for figure in part.figures]
        tables += [(table.key, _named(table, end, said)) for table in part.tables]
        verdicts += judged(claims, view.learned(), shown)
        part.notes += [
            f"{task_name(task)}: fine-tuned as it is, {view.subject} gives one answer to all "
            "examples. With so little training nothing can be said by this task."
            for task in view.unlearned()
        ]
    return Findings(
        key,
        title,
        lead,
        tuple(line for _, part in parts for line in part.summary),
        tuple(verdicts),
        _side_by_side(figures),
        _side_by_side(tables),
        tuple(dict.fromkeys(plan for _, part in parts for plan in part.plans)),
        tuple(text for _, part in parts for text in part.decoded),
        tuple(_settings(rows)),
        tuple(dict.fromkeys([*(n for _, part in parts for n in part.notes), *_notes(rows)])),
        _provenance(rows, papers),
    )


def largest_scale(rows: Sequence[Row]) -> list[Row]:
    """The rows of the largest scale of which anything is finished, as a store may hold several."""
    scales = {row.labels.get("scale") for row in rows if row.status == "done"}
    for scale in reversed(NAMES):
        if scale in scales:
            return [row for row in rows if row.labels.get("scale") == scale]
    return list(rows)


_Item = TypeVar("_Item", Figure, Table)


def _side_by_side(items: Sequence[tuple[str, _Item]]) -> tuple[_Item, ...]:
    """The same figure or table of all models in a row, as the first model has them."""
    order = list(dict.fromkeys(key for key, _ in items))
    return tuple(item for _, item in sorted(items, key=lambda pair: order.index(pair[0])))


def _named(item: _Item, end: str, said: str) -> _Item:
    return replace(item, key=item.key + end, title=item.title + said)


def beside(view: View) -> str | None:
    """Whose published numbers stand beside this model's: its own, or those of the paper's first
    model of as many layers."""
    if view.published is not None:
        return view.published
    study = str(view.labels["study"])
    shape = view.depth, bool(view.labels["shared"])
    models = (s for s in PAPERS.get(study, ()) if (s.depth, s.shared) == shape)
    return next((name for s in models if (name := s.named(study))), None)


def paper_of(view: View) -> str:
    """How published numbers are called: another model than the one at hand is named."""
    name = beside(view)
    return "paper" if name in (None, view.published) else f"paper ({name})"


def slug(text: str) -> str:
    """A name for anchors and files.

    >>> slug("BERT base (uncased)")
    'bert-base-uncased'
    """
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def task_name(task: str | None) -> str:
    """How a task is written; texts that belong to none have no name."""
    return TASKS.get(task or "", task or "texts")


def axis_of(tasks: Iterable[str]) -> Axis:
    """The axis for scores of some tasks."""
    metrics = {metric_of(task) for task in tasks}
    names = {"accuracy": "accuracy", "matthews": "Matthews", "pearson": "Pearson", "f1": "F1"}
    return Axis(names.get(metrics.pop(), "score") if len(metrics) == 1 else "score", "%")


def point(x: float | str, rows: Sequence[Row]) -> Point:
    """The mean score of some trials at a place; their plan is said when one points at it."""
    return Point.of(x, mean_of(rows), rows[0].trial.plan or "")


def number(rows: Sequence[Row]) -> Number:
    """The mean score of some trials, for a table."""
    return Number.of(mean_of(rows))


def points(found: Difference | Effect) -> Number:
    """A difference of fractions for a column in points.

    >>> points(Difference(0.02, 0.01, 0.03, 0.01, 5))
    Number(value=2.0, low=1.0, high=3.0, n=5, published=False, note='')
    """
    low, high = (None if end is None else end * 100 for end in (found.low, found.high))
    return Number(found.mean * 100, low, high, found.n)


def theirs(found: Score | None) -> Number | None:
    """A published score, with what is to be said of it."""
    return None if found is None else Number(found.value, published=True, note=found.note)


def their_points(scores: Mapping[int, Score]) -> tuple[Point, ...]:
    """Published scores for a curve; what is to be said of one is said when one points at it."""
    return tuple(Point(place, found.value, label=found.note) for place, found in scores.items())


def _settings(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """The recipes that occur, by task where they differ, and the scale."""
    scales = sorted({str(row.labels.get("scale")) for row in largest_scale(rows)})
    found = [("scale", ", ".join(scales))]
    by_task: dict[str, dict[str, set[str]]] = {}
    for row in largest_scale(rows):
        if row.trial.kind == "tune":
            kinds = by_task.setdefault(task_name(row.trial.task), {})
            for name, value in row.trial.settings.items():
                kinds.setdefault(name, set()).add(str(value))
    for task, kinds in by_task.items():
        said = "; ".join(f"{name} {' | '.join(sorted(v))}" for name, v in sorted(kinds.items()))
        found.append((f"training on {task}", said))
    for row in largest_scale(rows):
        data, longest = row.trial.data, row.trial.settings.get("max_length")
        if row.trial.task is None and data is not None:
            read = f"the first {data.limit:,}" if data.limit else "all"
            found.append(("texts", read + (f", of at most {longest} tokens" if longest else "")))
    return list(dict.fromkeys(found))


def _notes(rows: Sequence[Row]) -> list[str]:
    """What a reader must bear in mind: trials that are missing, data that are partial."""
    chosen = {row.key: row for row in largest_scale(rows)}.values()
    states = [row.status for row in chosen]
    notes = []
    if missing := sum(state in ("pending", "running") for state in states):
        notes.append(f"Not finished: {missing:,} of {len(states):,} trials.")
    failed = [row for row in chosen if row.status == "failed"]
    for row in failed[:5]:
        reason = (row.error or "").splitlines()[0]
        notes.append(f"A trial failed ({row.trial.kind}, plan {row.trial.plan}): {reason}")
    if len(failed) > 5:
        notes.append(f"{len(failed) - 5} more trials failed.")
    return notes


def _provenance(rows: Sequence[Row], papers: tuple[str, ...]) -> Provenance:
    done = [row for row in largest_scale(rows) if row.status == "done"]
    versions, hardware = ran_with(done)
    models = {
        str(row.labels.get("subject")): row.trial.model.fingerprint
        or row.trial.model.revision
        or ""
        for row in done
        if row.trial.model is not None and row.trial.model.trial is None
    }
    return Provenance(
        "",
        versions=versions,
        hardware=hardware,
        models=tuple(models.items()),
        splits=tuple(_splits(done)),
        papers=papers,
    )


def ran_with(rows: Iterable[Row]) -> tuple[dict[str, str] | None, str]:
    """Versions and hardware of some trials: all that occur, with commas between."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        for name, value in (row.environment or {}).items():
            if name not in ("git", "machine", "threads"):
                found.setdefault(name, {})[str(value)] = None
    said = {name: ", ".join(values) for name, values in found.items()}
    hardware = said.pop("device", "")
    return said or None, hardware


def _splits(rows: Sequence[Row]) -> list[Split]:
    """The examples that training runs used, one line for each task, split and size."""
    found: dict[tuple[str, str, int], Split] = {}
    seen = set()
    for row in rows:
        data = row.trial.data
        place = (row.trial.task, data and data.size, data and data.limit)
        if row.trial.kind != "tune" or place in seen:
            continue
        seen.add(place)
        for note in ((row.payload or {}).get("examples") or {}).values():
            key = (note["task"], note["split"], note["examples"])
            said = note["partial"] or ""
            found[key] = Split(task_name(note["task"]), note["split"], note["examples"], said)
    return list(found.values())
