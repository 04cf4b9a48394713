"""What models cost: sizes, and times and memory measured side by side.

Each model runs in a process of its own, which ends when the asking one does. In every round all
models run the same batches, one after the other, every other round in reverse; a ratio is that of
two times of one round. So what else happens on the machine meets all alike, and the interval of a
ratio says how far it can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from restack.errors import RestackError
from restack.tune.cost_process import Stop, Worker, started
from restack.tune.cost_worker import Facts, Subject, Workload

ROUND_SECONDS = 0.5
"""A round is about as long for the first model, so that single hiccups do not make it."""
_MOST = 200  # batches of a round
_DRAWS = 4000

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio to the first model, and the interval that holds the true one."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Times:
    """Times of one kind of work."""

    p50: float
    """Seconds of a batch: the median of all."""
    p95: float
    examples_per_second: float
    """The median of rounds."""
    tokens_per_second: float
    """Padding is not counted."""
    rounds: tuple[float, ...]
    """Seconds of each."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one model costs."""

    subject: Subject
    facts: Facts
    inference: Times
    inference_peak: int
    """Bytes held at most: weights and what a batch needs."""
    training: Times | None
    """Of updates: forward, backward, clipping, AdamW."""
    training_peak: int | None

    def sizes(self) -> dict[str, float]:
        """What is known without a clock, by name."""
        sizes = {
            "parameters": float(self.facts.parameters),
            "bytes": float(self.facts.nbytes),
            "flops_per_token": self.facts.flops_per_token,
            "inference_peak": float(self.inference_peak),
        }
        if self.training_peak is not None:
            sizes["training_peak"] = float(self.training_peak)
        return sizes


@dataclass(frozen=True, slots=True)
class CostResult:
    """Costs side by side; ratios are to the first."""

    workload: Workload
    rounds: int
    batches: int
    """Of a round."""
    level: float
    costs: tuple[Cost, ...]

    def sizes(self, cost: Cost) -> dict[str, float]:
        """How many times the first model's sizes."""
        first = self.costs[0].sizes()
        return {name: value / first[name] for name, value in cost.sizes().items() if first[name]}

    def inference(self, cost: Cost) -> Ratio:
        """How many times the first model's time for inference."""
        return ratio(cost.inference.rounds, self.costs[0].inference.rounds, level=self.level)

    def training(self, cost: Cost) -> Ratio | None:
        """How many times the first model's time for an update."""
        first = self.costs[0].training
        if cost.training is None or first is None:
            return None
        return ratio(cost.training.rounds, first.rounds, level=self.level)

    def to_json(self) -> dict[str, Any]:
        """As `--json` has it."""
        return {
            "workload": asdict(self.workload),
            "rounds": self.rounds,
            "batches": self.batches,
            "level": self.level,
            "costs": [asdict(cost) | {"ratios": self._ratios(cost)} for cost in self.costs],
        }

    def _ratios(self, cost: Cost) -> dict[str, Any]:
        training = self.training(cost)
        return {
            **self.sizes(cost),
            "inference": self.inference(cost).to_json(),
            "training": None if training is None else training.to_json(),
        }


def ratio(
    ours: Sequence[float], theirs: Sequence[float], *, level: float = 0.95, seed: int = 0
) -> Ratio:
    """The median of the rounds' ratios, with its interval by drawing rounds anew.

    >>> ratio([2.0, 2.2, 1.8], [1.0, 1.0, 1.0])
    Ratio(value=2.0, low=1.8, high=2.2)
    """
    each = np.asarray(ours, dtype=float) / np.asarray(theirs, dtype=float)
    random = np.random.default_rng(seed)
    drawn = np.median(each[random.integers(0, len(each), (_DRAWS, len(each)))], axis=1)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Ratio(float(np.median(each)), float(low), float(high))


def measure(
    subjects: Sequence[Subject],
    load: Workload,
    *,
    rounds: int = 10,
    batches: int | None = None,
    training: bool = True,
    level: float = 0.95,
    progress: Progress | None = None,
    stop: Stop = lambda: False,
) -> CostResult:
    """Measure models side by side; `batches` is how many a round has (about half a second of them).

    `progress` is told how many steps of `steps(...)` are done. `stop` is asked all the while; once
    it says yes, what is being measured is left and `Stopped` is raised.
    """
    if rounds < 3:
        raise RestackError(f"{rounds} rounds give no interval", hint="Take 3 or more.")
    tell = progress or (lambda count: None)
    with ExitStack() as held:
        workers = []
        for subject in subjects:
            workers.append(held.enter_context(started(subject, load, stop)))
            tell(1)
        first = workers[0]
        if batches is None:
            batches = _batches_for(first)
        peaks = [(w.call("peak", "infer", _warm(w, batches)), tell(1))[0] for w in workers]
        inference = _rounds(workers, "infer", rounds, batches, tell)
        updates: list[list[list[float]]] = []
        training_peaks: list[int] = []
        if training:
            # an update takes about three times as long
            count = max(1, math.ceil(batches / 3))
            for worker in workers:
                training_peaks.append(worker.call("peak", "train", _warm(worker, count)))
                tell(1)
            updates = _rounds(workers, "train", rounds, count, tell)
        costs = [
            Cost(
                worker.subject,
                worker.facts,
                _times(inference[place], worker.facts),
                peaks[place],
                _times(updates[place], worker.facts) if training else None,
                training_peaks[place] if training else None,
            )
            for place, worker in enumerate(workers)
        ]
    return CostResult(load, rounds, batches, level, tuple(costs))


def steps(subjects: int, rounds: int, *, training: bool = True) -> int:
    """How many steps `measure` tells of."""
    return subjects * (2 + rounds + ((1 + rounds) if training else 0))


def _batches_for(worker: Worker) -> int:
    """As many batches as take half a second, at least one; with several different ones, all.

    So many that all were run equally often.
    """
    if worker.facts.batches > 1:
        return worker.facts.batches
    seconds = sorted(worker.call("infer", 3))[1]
    return max(1, min(_MOST, math.ceil(ROUND_SECONDS / seconds)))


def _warm(worker: Worker, count: int) -> int:
    """Batches to run before the clock: all different ones, since the longest needs most memory."""
    return max(2, worker.facts.batches if worker.facts.batches > 1 else min(count, 5))


def _rounds(
    workers: Sequence[Worker], how: str, rounds: int, batches: int, tell: Progress
) -> list[list[list[float]]]:
    """For each worker and round the seconds of each batch."""
    found: list[list[list[float]]] = [[] for _ in workers]
    for number in range(rounds):
        places = range(len(workers))
        for place in places if number % 2 == 0 else reversed(places):
            workers[place].call("restart")
            found[place].append(workers[place].call(how, batches))
            tell(1)
    return found


def _times(rounds: list[list[float]], facts: Facts) -> Times:
    every = np.concatenate(rounds)
    count = len(rounds[0])
    which = [place % facts.batches for place in range(count)]
    examples = sum(facts.examples[place] for place in which)
    tokens = sum(facts.tokens[place] for place in which)
    totals = [sum(seconds) for seconds in rounds]
    middle = float(np.median(totals))
    return Times(
        float(np.median(every)),
        float(np.quantile(every, 0.95)),
        examples / middle,
        tokens / middle,
        tuple(totals),
    )


def label_plans(
    models: Sequence[str], plans: Mapping[str, Sequence[str]] | Sequence[str], stack: str | None
) -> list[Subject]:
    """Each model as it is, then by each plan."""
    found = []
    for model in models:
        own = plans.get(model, ()) if isinstance(plans, Mapping) else plans
        found += [Subject(model, None, stack), *(Subject(model, plan, stack) for plan in own)]
    return found
