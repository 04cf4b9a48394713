"""Searches for a good recipe: Optuna suggests, the sweep runs, the store remembers.

A search goes in rounds: all recipes of a round are suggested before any of them has ended, and what
they came to is told in the order of their suggestion. So the recipes depend on the seed and on the
numbers in the store, not on which worker was faster; and nothing else need be kept: a search that
was killed is suggested anew from what the store holds.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from restack.data.metrics import LOWER_IS_BETTER
from restack.errors import RestackError
from restack.sweep.prune import PRUNED, PRUNERS, Bars, curve_of
from restack.sweep.rows import Row
from restack.sweep.store import Store
from restack.sweep.trial import Trial

SAMPLERS = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "gp": "GPSampler",
}
"""Of `optuna.samplers`, by the name of the option."""
_UNUSED = 1 << 32


@dataclass(frozen=True, slots=True)
class Range:
    """A setting that lies between two numbers; whole if both are."""

    low: float
    high: float
    log: bool = False
    """Whether orders of magnitude are equally likely."""


Space = Mapping[str, Range | tuple[Any, ...]]
"""Settings of a recipe, each a range or a choice of values."""


@dataclass(frozen=True, slots=True)
class Search:
    """Recipes to look for, for one model, task, size and plan."""

    templates: tuple[Trial, ...]
    """What is run of each recipe: trials that differ in their seed alone. The mean counts."""
    space: Space
    count: int
    """Recipes to try."""
    metric: str
    """Split and name, such as `validation/accuracy`."""
    name: str = "search"
    at_once: int = 4
    """Recipes of a round."""
    sampler: str = "tpe"
    pruner: str | None = None
    pruning: Mapping[str, float] = field(default_factory=dict)
    """Settings of the pruner: the arguments of `restack.sweep.prune.median` or `halving`."""
    seed: int = 0

    @property
    def lower(self) -> bool:
        """Whether lower values of the metric are better."""
        return self.metric.rpartition("/")[2] in LOWER_IS_BETTER


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A recipe that was tried, and what it came to."""

    number: int
    settings: Mapping[str, Any]
    state: str
    """`done`, `pruned`, `failed`, or `open` while it is not over."""
    values: tuple[float, ...] = ()
    """One a seed; of a pruned recipe the last ones."""

    @property
    def value(self) -> float | None:
        """The mean over the seeds; None if there is none."""
        return statistics.fmean(self.values) if self.values else None

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "settings": dict(self.settings),
            "state": self.state,
            "value": self.value,
            "values": list(self.values),
        }


class Hunt:
    """A search under way, replayed from a store each time it begins."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.told: list[Suggestion] = []
        self.keys: set[str] = set()
        self._curves: list[list[tuple[float, float]]] = []
        self._round: list[tuple[Any, Suggestion, tuple[Trial, ...]]] = []
        self._study = _study(search)

    def more(self, store: Store) -> list[Trial]:
        """The trials of the next round, as soon as the last one is over; else none."""
        ended = [[store.row(trial.key) for trial in trials] for _, _, trials in self._round]
        if any(row is None or row.status not in ("done", "failed") for e in ended for row in e):
            return []
        for (asked, suggestion, _), rows in zip(self._round, ended, strict=True):
            self._tell(asked, suggestion, [row for row in rows if row is not None])
        self._round = []
        bars = self._bars()
        for _ in range(min(self.search.at_once, self.search.count - len(self.told))):
            self._ask(bars)
        found = [trial for _, _, trials in self._round for trial in trials]
        self.keys.update(trial.key for trial in found)
        return found

    @property
    def suggestions(self) -> list[Suggestion]:
        """All recipes so far, with those that are being tried."""
        return [*self.told, *(suggestion for _, suggestion, _ in self._round)]

    @property
    def best(self) -> Suggestion | None:
        """The recipe with the best mean of those that ran to their end."""
        done = [one for one in self.told if one.state == "done" and one.value is not None]
        pick = min if self.search.lower else max
        return pick(done, key=lambda one: one.value or 0.0, default=None)

    def _ask(self, bars: list[tuple[float, float]]) -> None:
        search = self.search
        asked = self._study.ask(_distributions(search.space))
        number = len(self.told) + len(self._round)
        settings = {name: asked.params[name] for name in search.space}
        pruning = {}
        if bars:
            points = tuple((epoch, bar) for epoch, bar in bars)
            pruning["prune"] = Bars(search.metric, search.lower, points).to_json()
        trials = tuple(
            replace(
                template,
                settings={**template.settings, **settings, **pruning},
                labels={**template.labels, "search": search.name, "suggestion": number, **settings},
            )
            for template in search.templates
        )
        self._round.append((asked, Suggestion(number, settings, "open"), trials))

    def _tell(self, asked: Any, suggestion: Suggestion, rows: Sequence[Row]) -> None:
        from optuna.trial import TrialState

        curves = [curve_of(row.curve, self.search.metric) for row in rows]
        split, _, name = self.search.metric.partition("/")
        if any(row.status == "failed" for row in rows):
            state, values = "failed", []
        elif any(PRUNED in row.metrics for row in rows):
            state = PRUNED
            values = [curve[-1][1] for curve in curves if curve]
        else:
            state = "done"
            values = [row.metric(name, split) for row in rows]
        self.told.append(replace(suggestion, state=state, values=tuple(values)))
        if state == "failed" or any(map(math.isnan, values)):
            self._study.tell(asked, state=TrialState.FAIL)
            return
        self._curves += curves
        if state == PRUNED:
            reached = min(curve[-1][0] for curve in curves if curve)
            asked.report(statistics.fmean(values), round(1000 * reached))
            self._study.tell(asked, state=TrialState.PRUNED)
        else:
            self._study.tell(asked, statistics.fmean(values))

    def _bars(self) -> list[tuple[float, float]]:
        search = self.search
        if search.pruner is None:
            return []
        return PRUNERS[search.pruner](self._curves, lower=search.lower, **search.pruning)


@dataclass(frozen=True, slots=True)
class Hunts:
    """Several searches at once, as `restack.sweep.run.run` takes them."""

    all: tuple[Hunt, ...]

    @classmethod
    def of(cls, searches: Sequence[Search]) -> Hunts:
        return cls(tuple(map(Hunt, searches)))

    @property
    def total(self) -> int:
        """How many trials there will be in all."""
        return sum(hunt.search.count * len(hunt.search.templates) for hunt in self.all)

    def more(self, store: Store) -> list[Trial]:
        """Trials that can begin now and could not before."""
        return [trial for hunt in self.all for trial in hunt.more(store)]

    def known(self, store: Store) -> set[str]:
        """The keys of all trials that the searches have come to in a store."""
        while self.more(store):
            pass
        return {key for hunt in self.all for key in hunt.keys}


def expected(searches: Sequence[Search]) -> Iterator[Trial]:
    """As many trials as there may be, with the recipe that is searched around: for a forecast."""
    for search in searches:
        for number in range(search.count):
            for template in search.templates:
                # seeds that no trial of a store has, so that each of them counts
                yield replace(template, seed=_UNUSED + number * _UNUSED + template.seed)


def _distributions(space: Space) -> dict[str, Any]:
    from optuna import distributions as known

    found: dict[str, Any] = {}
    for name, options in space.items():
        if isinstance(options, Range):
            low, high = options.low, options.high
            if isinstance(low, int) and isinstance(high, int):
                found[name] = known.IntDistribution(low, high, log=options.log)
            else:
                found[name] = known.FloatDistribution(low, high, log=options.log)
        else:
            found[name] = known.CategoricalDistribution(options)
    return found


def _study(search: Search) -> Any:
    try:
        import optuna
    except ImportError as error:
        raise RestackError(
            "a search needs Optuna, which is not installed", hint="pip install 'restack[search]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    settings: dict[str, Any] = {"seed": search.seed}
    if search.sampler != "random":  # the first ones are drawn at random
        settings |= {"n_startup_trials": max(4, search.at_once)}
    if search.sampler == "tpe":  # recipes of one round keep away from each other
        settings |= {"constant_liar": True}
    with warnings.catch_warnings():
        # options whose names may change one day: that is for us to follow, not for users
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = getattr(optuna.samplers, SAMPLERS[search.sampler])(**settings)
    return optuna.create_study(
        direction="minimize" if search.lower else "maximize", sampler=sampler
    )
