"""Tamkin et al.: fresh weights in some layers, another order of them, and frozen probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from restack.plan import Plan, keep, permute, reinit
from restack.studies.laying import Layout, examples_for, parts_of
from restack.studies.scale import REINIT, Reinit, scale_of
from restack.studies.subjects import Subject
from restack.sweep.trial import Data, Trial

STUDY = "reinit"
BLOCK = 3
"""Consecutive layers that are made fresh, or kept, together."""


def definition(
    subjects: Sequence[Subject],
    scale: str,
    data: Mapping[str, Data] | None = None,
    *,
    tasks: Sequence[str] | None = None,
    init: str = "paper",
    precision: str | None = None,
) -> list[Trial]:
    """All trials of the study. `init` is how fresh weights start in all but the ablations."""
    size = scale_of(REINIT, scale)
    layout = Layout(STUDY, scale, data or {}, precision=precision)
    return [
        trial
        for subject in subjects
        for task in tasks or size.tasks
        for trial in _Runs(layout, size, subject, task, init).all(tasks is not None)
    ]


class _Runs:
    """The trials of one model on one task. The n-th trial has the n-th draw of the examples."""

    def __init__(
        self, layout: Layout, size: Reinit, subject: Subject, task: str, init: str
    ) -> None:
        self.layout, self.size, self.subject, self.task = layout, size, subject, task
        self.init = init
        self.data = layout.of_task(task, examples_for(size.tasks, task))

    def all(self, named: bool) -> Iterator[Trial]:
        """Every part; a task that was asked for by name has all of them."""
        size = self.size
        yield self.probe()
        for examples, trials, epochs, tasks in size.sizes:
            if named or self.task in tasks:
                yield from self.incremental(examples, trials, epochs)
        yield from self.orders()
        if named or self.task in size.local:
            yield from self.localised()
        if named or self.task in size.ablated:
            yield from self.ablations()
            yield from self.long()

    def one(
        self,
        part: str,
        plan: Plan,
        trial: int,
        labels: Mapping[str, Any],
        *,
        examples: int | None = None,
        epochs: int | None = None,
        init: str | None = None,
        **recipe: Any,
    ) -> Trial:
        examples = self.size.size if examples is None else examples
        return self.layout.tune(
            self.subject,
            self.task,
            replace(self.data, size=examples, subsample=trial),
            {**self.size.recipe, "epochs": epochs or self.size.epochs, **recipe},
            self.layout.labels(self.subject, part, examples=examples, **labels),
            plan=plan,
            seed=trial,
            init=init or self.init,
        )

    def after(self, k: int) -> Plan:
        """All layers after the first k fresh; the depth itself is the untouched model."""
        return reinit(self.subject.depth, after=k)

    def incremental(self, examples: int, trials: int, epochs: int) -> Iterator[Trial]:
        for k in parts_of(self.subject.depth, self.size.kept):
            for trial in range(trials):
                yield self.one(
                    "incremental",
                    self.after(k),
                    trial,
                    {"k": k},
                    examples=examples,
                    epochs=epochs,
                )

    def probe(self) -> Trial:
        size = self.size
        return self.layout.look(
            "probe",
            self.subject,
            {
                "trials": size.probe_trials,
                "epochs": size.probe_epochs,
                "pooling": "mean",
                "size": size.probe_size,
            },
            self.layout.labels(self.subject, "probe"),
            task=self.task,
            data=self.data,
        )

    def localised(self) -> Iterator[Trial]:
        """Blocks of three and single layers: only they fresh, or all but they."""
        depth, size = self.subject.depth, self.size
        for start in range(0, depth - BLOCK + 1, size.apart):
            block = range(start, start + BLOCK)
            ways = {"reinitialised": reinit(depth, block), "preserved": keep(depth, block)}
            for way, plan in ways.items():
                for trial in range(size.blocks):
                    yield self.one("blocks", plan, trial, {"way": way, "start": start})
        for k in (0, depth):  # the lines of the figure: embeddings alone, and the whole model
            for trial in range(min(3, size.blocks)):
                yield self.one("blocks", self.after(k), trial, {"way": "line", "start": k})
        chosen = size.single_layers
        layers = range(depth) if chosen is None else _layers_of(depth, chosen)
        for layer in layers if size.singles else ():
            for trial in range(size.singles):
                yield self.one("single", reinit(depth, [layer]), trial, {"layer": layer})
        for trial in range(size.singles):
            yield self.one("single", self.after(depth), trial, {"layer": -1})

    def orders(self) -> Iterator[Trial]:
        """Shuffled stacks, the n-th the same on each task, beside the whole and the fresh one."""
        depth = self.subject.depth
        for trial in range(self.size.orders):
            plan = permute(depth, seed=trial)
            yield self.one("orders", plan, trial, {"order": "shuffled", "permutation": trial})
        for trial in range(min(3, self.size.orders)):
            yield self.one("orders", self.after(depth), trial, {"order": "whole"})
            yield self.one("orders", self.after(0), trial, {"order": "fresh"})

    def ablations(self) -> Iterator[Trial]:
        """Other initialisers, norms kept, and a larger rate for fresh layers."""
        depth, size = self.subject.depth, self.size
        ways: dict[str, dict[str, Any]] = {
            "as in the paper": {"init": "paper"},
            "norms kept": {"init": "paper-keep-norms"},
            "released code": {"init": "released"},
            "rate x 5": {"init": "paper", "fresh_factor": 5.0},
        }
        # one number of layers is enough to see a difference where few trials are made
        every = range(depth) if size.kept is None else parts_of(depth, (0, 6))
        for way, options in ways.items():
            for k in every:
                for trial in range(size.ablations):
                    yield self.one(
                        "ablations", self.after(k), trial, {"way": way, "k": k}, **options
                    )

    def long(self) -> Iterator[Trial]:
        if not self.size.long:
            return
        for examples in self.size.long_sizes:
            for k in parts_of(self.subject.depth, (0, 6, 12)):
                for trial in range(self.size.ablations):
                    yield self.one(
                        "long",
                        self.after(k),
                        trial,
                        {"k": k},
                        examples=examples,
                        epochs=self.size.long,
                        evaluate_every=None,
                    )


def _layers_of(depth: int, layers: Sequence[int]) -> list[int]:
    """Layers given for twelve, in a stack of another depth."""
    return sorted({min(depth - 1, layer * depth // 12) for layer in layers})
