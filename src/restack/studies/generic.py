"""Findings of trials that belong to no known study: means by plan and task, and all trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from restack.data.glue import TASKS
from restack.data.metrics import LOWER_IS_BETTER
from restack.plan import Plan
from restack.stats import Mean, mean_interval
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
    Provenance,
    Rule,
    Series,
    Split,
    Table,
)
from restack.studies.telling import ran_with
from restack.sweep.rows import Row

_MOST_PLANS_IN_ROWS = 40  # more are drawn against their depth
_MOST_PLANS_DRAWN = 24
_NO_FRACTIONS = LOWER_IS_BETTER | {"pearson", "spearman", "matthews"}


@dataclass(frozen=True, slots=True)
class Group:
    """The trials that differ in nothing but their seed and subsample."""

    kind: str
    model: str
    plan: str
    task: str
    size: int | None
    split: str
    settings: str
    rows: tuple[Row, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """Their names, that which sums up the task first, what is lower for the better last."""
        known = TASKS.get(self.task)
        first = known.metrics if known else ()
        found = dict.fromkeys(name for row in self.rows for name in row.metrics[self.split])
        order = {name: place for place, name in enumerate([*first, *sorted(found)])}
        return tuple(sorted(found, key=lambda name: (name in LOWER_IS_BETTER, order[name])))

    def mean(self, metric: str) -> Mean | None:
        """Over all of its trials that have a finite value."""
        found = (row.metrics[self.split].get(metric, math.nan) for row in self.rows)
        values = [value for value in found if math.isfinite(value)]
        return mean_interval(values) if values else None


def findings(rows: Sequence[Row], title: str = "All trials") -> Findings:
    """Means with intervals by plan and task, and every trial."""
    rows = list({row.key: row for row in rows}.values())
    groups = list(_groups(row for row in rows if row.status == "done"))
    depths = _depths(groups)
    return Findings(
        "trials",
        title,
        _lead(rows, groups),
        tuple(_summary(groups, depths)),
        figures=tuple(_figures(groups, depths)),
        tables=tuple(_tables(rows, groups)),
        plans=tuple(
            DrawnPlan(plan, depth) for plan, depth in list(depths.items())[:_MOST_PLANS_DRAWN]
        ),
        settings=tuple(_settings(rows)),
        notes=tuple(_notes(rows, depths)),
        provenance=_provenance(rows),
    )


def _groups(rows: Iterable[Row]) -> Iterator[Group]:
    found: dict[Group, list[Row]] = {}
    for row in rows:
        trial = row.trial
        size = None if trial.data is None else trial.data.size
        names = (trial.kind, _model(row), trial.plan or "", trial.task or "")
        settings = ", ".join(f"{k} {v}" for k, v in sorted(trial.settings.items()))
        for split in row.metrics:
            found.setdefault(Group(*names, size, split, settings), []).append(row)
    for group, members in found.items():
        yield replace(group, rows=tuple(members))


def _model(row: Row) -> str:
    """A short name: what a label says, or the last part of its place."""
    if name := row.labels.get("subject"):
        return str(name)
    model = row.trial.model
    if model is None:
        return ""
    return (
        f"of trial {model.trial[:10]}"
        if model.trial
        else model.location.rstrip("/").rpartition("/")[2]
    )


def _depths(groups: Sequence[Group]) -> dict[str, int]:
    """The plans whose source depth is known, as trials that train say it."""
    found: dict[str, int] = {}
    for group in groups:
        if group.plan and group.plan not in found:
            payload = group.rows[0].payload
            depth = payload.get("source_depth") if isinstance(payload, dict) else None
            if isinstance(depth, int):
                found[group.plan] = depth
    return found


def _untouched(group: Group, depths: dict[str, int]) -> bool:
    depth = depths.get(group.plan)
    return not group.plan or (depth is not None and Plan.parse(group.plan, depth).is_identity)


# --- words --------------------------------------------------------------------------------------


def _lead(rows: Sequence[Row], groups: Sequence[Group]) -> str:
    done = sum(row.status == "done" for row in rows)
    counts = (
        (len({group.plan for group in groups if group.plan}), "plan"),
        (len({group.task for group in groups if group.task}), "task"),
        (len({group.model for group in groups if group.model}), "model"),
    )
    said = ", ".join(f"{count} {name}{'s' * (count != 1)}" for count, name in counts if count)
    return f"{done:,} finished trial{'s' * (done != 1)}" + (f": {said}." if said else ".")


def _summary(groups: Sequence[Group], depths: dict[str, int]) -> Iterator[Line]:
    """For each model and main metric, what the shallowest plan keeps of the untouched model."""
    for (model, metric), members in _by_model_and_metric(groups).items():
        if metric in _NO_FRACTIONS:
            continue
        whole = {
            (g.task, g.size, g.split): m.mean
            for g in members
            if _untouched(g, depths) and (m := g.mean(metric))
        }
        cut = {
            len(Plan.parse(g.plan, depths[g.plan])): g.plan
            for g in members
            if g.plan in depths and not _untouched(g, depths)
        }
        if not whole or not cut or min(cut) >= max(depths.values()):
            continue
        plan = cut[min(cut)]
        pairs = [
            (m.mean, whole[g.task, g.size, g.split])
            for g in members
            if g.plan == plan and (g.task, g.size, g.split) in whole and (m := g.mean(metric))
        ]
        if not pairs or not all(before for _, before in pairs):
            continue
        after, before = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
        where = f"{model}, {min(cut)} of {depths[plan]} layers"
        yield Line("kept", f"{after / before:.1%}", f"of the untouched model's {metric}: {where}")
        yield Line("lost", f"{100 * (before - after):.1f} points", f"of {metric}: {where}")


def _notes(rows: Sequence[Row], depths: dict[str, int]) -> Iterator[str]:
    waiting = sum(row.status in ("pending", "running") for row in rows)
    if waiting:
        yield f"Not finished: {waiting:,} of {len(rows):,} trials."
    failed = [row for row in rows if row.status == "failed"]
    if failed:
        reason = (failed[0].error or "no reason is known").splitlines()[0]
        many = f"{len(failed):,} trials failed; the first" if len(failed) > 1 else "A trial failed"
        yield f"{many} with: {reason}"
    if len(depths) > _MOST_PLANS_DRAWN:
        yield f"{_MOST_PLANS_DRAWN} of {len(depths)} plans are drawn."


# --- figures ------------------------------------------------------------------------------------


def _by_model_and_metric(groups: Sequence[Group]) -> dict[tuple[str, str], list[Group]]:
    """The groups by model and by the metric that comes first in them."""
    found: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        if group.metrics:
            found.setdefault((group.model, group.metrics[0]), []).append(group)
    return found


def _figures(groups: Sequence[Group], depths: dict[str, int]) -> Iterator[Figure]:
    by_metric: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        if group.plan and group.metrics:
            by_metric.setdefault((group.kind, group.metrics[0]), []).append(group)
    for (kind, metric), members in by_metric.items():
        plans = dict.fromkeys(group.plan for group in members)
        by_depth = len(plans) > _MOST_PLANS_IN_ROWS and all(plan in depths for plan in plans)
        if len(plans) < 2 or (len(plans) > _MOST_PLANS_IN_ROWS and not by_depth):
            continue
        series: dict[tuple[str, str], list[Point]] = {}
        rules = []
        for group in members:
            mean = group.mean(metric)
            if mean is None:
                continue
            panel = _panel(group, members)
            at = len(Plan.parse(group.plan, depths[group.plan])) if by_depth else group.plan
            series.setdefault((group.model, panel), []).append(Point.of(at, mean, group.plan))
            if _untouched(group, depths):
                rules.append(Rule(mean.mean, "untouched", facet=panel))
        yield Figure(
            f"means-{kind}-{metric}",
            f"{metric} by depth" if by_depth else f"{metric} by plan",
            "dots",
            Axis("layers") if by_depth else Axis("plan", kind="category"),
            _axis(metric),
            tuple(Series(name or "trials", tuple(p), facet=f) for (name, f), p in series.items()),
            # of several models there would be several lines of one name
            tuple(rules) if len({group.model for group in members}) == 1 else (),
            note="Means over seeds with 95% intervals.",
        )


def _panel(group: Group, members: Sequence[Group]) -> str:
    """The task, and of size and split whatever differs among the groups."""
    parts = [group.task]
    if len({other.size for other in members}) > 1:
        parts.append("all examples" if group.size is None else f"{group.size:,} examples")
    if len({(other.task, other.split) for other in members}) > len({g.task for g in members}):
        parts.append(group.split)
    return ", ".join(filter(None, parts))


def _axis(metric: str) -> Axis:
    return Axis(metric) if metric in _NO_FRACTIONS else Axis(metric, "%")


# --- tables -------------------------------------------------------------------------------------


def _tables(rows: Sequence[Row], groups: Sequence[Group]) -> Iterator[Table]:
    names = list(dict.fromkeys(name for group in groups for name in group.metrics))
    if groups:
        yield Table(
            "means",
            "Means",
            (
                Column("kind"),
                Column("model"),
                Column("plan", "plan"),
                Column("task"),
                Column("examples", "number", digits=0),
                Column("split"),
                Column("trials", "number", digits=0),
                *(_column(name) for name in names),
            ),
            tuple(
                (
                    *(group.kind, group.model, group.plan or None, group.task, group.size),
                    *(group.split, len(group.rows)),
                    *(_number(group.mean(name)) for name in names),
                )
                for group in groups
            ),
            note="Over seeds and subsamples, with 95% intervals from three trials on.",
        )
    yield _all_trials(rows)


def _all_trials(rows: Sequence[Row]) -> Table:
    columns = dict.fromkeys(
        (split, name) for row in rows for split, values in row.metrics.items() for name in values
    )
    several = len({split for split, _ in columns}) > 1
    labels = [f"{split} {name}" if several else name for split, name in columns]

    def line(row: Row) -> tuple[Entry, ...]:
        trial = row.trial
        size = None if trial.data is None else trial.data.size
        return (
            *(row.key[:10], row.status, trial.kind, _model(row), trial.plan, trial.task),
            *(size, trial.seed, row.seconds),
            *(_finite(row.metrics.get(split, {}).get(name)) for split, name in columns),
            (row.error or "").splitlines()[0] if row.error else None,
        )

    return Table(
        "trials",
        "All trials",
        (
            *(Column(name) for name in ("trial", "status", "kind", "model")),
            Column("plan", "plan"),
            Column("task"),
            Column("examples", "number", digits=0),
            Column("seed", "number", digits=0),
            Column("time", "number", "s", 1),
            *(_column(name, label) for (_, name), label in zip(columns, labels, strict=True)),
            Column("error"),
        ),
        tuple(line(row) for row in rows),
        long=True,
    )


def _column(metric: str, label: str | None = None) -> Column:
    axis = _axis(metric)
    return Column(label or metric, "number", axis.unit, 2 if axis.unit else 4)


def _number(mean: Mean | None) -> Number | None:
    return None if mean is None else Number.of(mean)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# --- where it comes from ------------------------------------------------------------------------


def _settings(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    found: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        for name, value in row.trial.settings.items():
            found.setdefault((row.trial.kind, name), {})[str(value)] = None
    for (kind, name), values in found.items():
        some = list(values)
        more = f" and {len(some) - 8} more" if len(some) > 8 else ""
        yield f"{kind}: {name}", " | ".join(some[:8]) + more


def _provenance(rows: Sequence[Row]) -> Provenance:
    done = [row for row in rows if row.status == "done"]
    versions, hardware = ran_with(done)
    models = {
        row.trial.model.location: row.trial.model.fingerprint or row.trial.model.revision or ""
        for row in done
        if row.trial.model is not None and row.trial.model.trial is None
    }
    return Provenance(
        "",
        versions=versions,
        hardware=hardware,
        models=tuple(models.items()),
        splits=tuple(_splits(done)),
    )


def _splits(rows: Sequence[Row]) -> Iterator[Split]:
    """The examples as trials that train tell of them, once for each task and size."""
    seen = set()
    for row in rows:
        data = row.trial.data
        if data is None or (place := (row.trial.task, data.size, data.limit)) in seen:
            continue
        seen.add(place)
        payload = row.payload if isinstance(row.payload, dict) else {}
        for note in (payload.get("examples") or {}).values():
            yield Split(note["task"], note["split"], note["examples"], note.get("partial") or "")
