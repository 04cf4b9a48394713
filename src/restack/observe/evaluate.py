"""Evaluate many plans on a model without building their models."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from restack.anatomy import models
from restack.anatomy.anatomy import Stack
from restack.errors import DataError, PlanError
from restack.observe import checking, readouts, trie
from restack.observe.joining import Joint, joint
from restack.observe.leaf import Leaf
from restack.observe.readouts import Readout
from restack.observe.recording import Form, Recording, record
from restack.observe.running import Batch, model_inputs, observing, retractable
from restack.observe.splitting import Pieces, TooLarge, rows_of
from restack.observe.stack_run import layer_states, tokens_first
from restack.plan import Plan, Slot
from restack.surgery import restack
from restack.surgery.fresh import DEFAULT

Progress = Callable[[int], None]
_JOINED = 1 << 30  # bytes of states that wait while plans are joined, unless `memory` says more


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was read at the end of each plan, and what that took."""

    plans: tuple[Plan, ...]
    results: tuple[dict[str, Any], ...]
    """One a plan, as the readout gives them."""
    edges: int
    """Layer applications that one batch takes: the edges of the trie of the plans."""
    batches: int
    """Batches that were run, pieces of batches counted each."""
    layer_applications: int
    """Layer applications that were executed."""
    layer_calls: int
    """Calls of layers that this took: fewer, where the states of several plans were joined."""
    fallback: str | None
    """Why a model was rebuilt for every plan; None where none was."""

    def to_json(self) -> dict[str, Any]:
        """Plain data: plans with their depths and results, and the counts."""
        return {
            "plans": [
                {"plan": str(plan), "depth": len(plan), **result}
                for plan, result in zip(self.plans, self.results, strict=True)
            ],
            "edges": self.edges,
            "batches": self.batches,
            "layer_applications": self.layer_applications,
            "layer_calls": self.layer_calls,
            "fallback": self.fallback,
        }


def evaluate(
    model: PreTrainedModel,
    plans: Sequence[Plan | str],
    batches: Iterable[Batch],
    readout: Readout | Callable[[Any, Batch, int], dict[str, Any]],
    *,
    stack: str | None = None,
    seed: int = 0,
    init: str = DEFAULT,
    memory: int | None = None,
    join: bool | None = None,
    check: bool = True,
    progress: Progress | None = None,
) -> Evaluation:
    """What the model would give along each plan, with every common beginning computed once.

    The results are those of models rebuilt along the plans, exactly so on a CPU in float32. A plan
    that surgery refuses is refused. Families whose layers pass more than the state to each other
    are rebuilt, plan by plan, and `fallback` says why. `check` makes sure that this was recognised:
    two rows of the first batch are compared with the model itself and with small rebuilt ones.

    `readout` is one of `restack.observe.readouts`, or a function of the model's output, the batch
    and the place of the plan that gives sums and counts. `memory` bounds the bytes of the states
    that are held at once: larger batches are run in pieces of rows. `seed` and `init` are for fresh
    slots. `progress` is told how many rows were just read, which over all plans makes rows x plans;
    a negative number takes back what will be done again in smaller pieces.

    With `join` the states of all plans that wait for the same layer go through it as one larger
    batch, where `memory` (1 GiB if it is None) holds all that wait. By default accelerators join,
    which small batches leave idle, and a CPU does not: with more rows it sums up in another order,
    and results would no longer be equal to the last bit.
    """
    found = models.pick(model, stack)
    wanted = tuple(Plan.parse(p, found.depth) if isinstance(p, str) else p for p in plans)
    if not wanted:
        raise PlanError("no plan to evaluate")
    checking.refuse(model, found, wanted, seed, init)
    first = next(batches := iter(batches), None)
    if first is None:
        raise DataError("no batch to evaluate the plans on", hint="give at least one text")
    readout = readout if isinstance(readout, Readout) else readouts.of_output(readout)
    steps = trie.build(wanted, lambda slot: checking.key_of(found, slot))
    job = _Job(model, found, wanted, readout, progress or (lambda rows: None))
    with observing(model):
        form, fallback = checking.examine(model, found, first, wanted, check=check)
        every = itertools.chain([first], batches)
        if form is None or fallback is not None:
            _rebuild(job, every, seed, init)
        else:
            new = checking.fresh_layers(model, found, wanted, seed, init)
            wide = model.device.type != "cpu" if join is None else join
            joined = trie.schedule(steps) if wide else None
            _Walk(job, steps, joined, form, new, memory).run(every)
    results = tuple(readouts.settle(readout, total) for total in job.totals)
    done = job.batches, job.applied, job.calls
    return Evaluation(wanted, results, steps.edges, *done, fallback)


@dataclass(slots=True)
class _Job:
    """What is asked for, and what has been done."""

    model: PreTrainedModel
    stack: Stack
    plans: Sequence[Plan]
    readout: Readout
    progress: Progress
    totals: list[dict[str, Any]] = field(init=False)
    applied: int = 0
    calls: int = 0
    batches: int = 0

    def __post_init__(self) -> None:
        self.totals = [{} for _ in self.plans]


@dataclass(frozen=True, slots=True)
class _Walk:
    """Goes through the trie with each batch."""

    job: _Job
    steps: trie.Trie
    joined: trie.Schedule | None
    form: Form
    fresh: dict[Slot, nn.Module]
    memory: int | None

    def run(self, batches: Iterable[Batch]) -> None:
        pieces = Pieces()
        for batch in batches:
            for _, readings in pieces.run(batch, self._readings):
                for plan, reading in readings:
                    readouts.add(self.job.totals[plan], reading)
                self.job.batches += 1

    def _readings(self, batch: Batch) -> list[tuple[int, Any]]:
        """Every plan read on one batch; nothing is added up before all of it is done."""
        with retractable(self.job.progress) as tell:
            return self._read_all(batch, tell)

    def _read_all(self, batch: Batch, tell: Progress) -> list[tuple[int, Any]]:
        recording = record(self.job.model, self.job.stack, batch, self.form)
        self._count(int(self.form.carried))
        made: list[tuple[int, Any]] = []
        for ends, state in self._walk(recording, batch):
            if _has_nan(state, batch):
                states = self._states(recording, self.job.plans[ends[0]])
                raise _nan(self.job.stack, self.job.plans[ends[0]], states, batch)
            made += [(plan, self._read(recording, batch, state, plan)) for plan in ends]
            tell((rows_of(batch) or 1) * len(ends))
        return made

    def _read(self, recording: Recording, batch: Batch, state: Tensor, plan: int) -> Any:
        model, inputs = self.job.model, recording.inputs
        leaf = Leaf(model, batch, inputs, lambda: recording.finish(state), lambda: state, plan)
        return self.job.readout.read(leaf)

    def _walk(self, recording: Recording, batch: Batch) -> Iterator[tuple[list[int], Tensor]]:
        """The plans that end in a state, with that state."""
        together = self._together(recording, batch)
        if self.joined is None or together is None:
            self._bound(batch, recording.start)
            apply = lambda slot, state: self._apply(recording, slot, state)  # noqa: E731
            return trie.walk(self.steps, recording.start, apply)

        def apply_all(slot: Slot, states: list[Tensor]) -> list[Tensor]:
            self._count(len(states))
            return together.apply(slot.source, states, self.fresh.get(slot))

        return trie.walk_joined(self.steps, self.joined, recording.start, apply_all)

    def _together(self, recording: Recording, batch: Batch) -> Joint | None:
        """How to join states, if there is any to join and memory for all that wait meanwhile."""
        joined = self.joined
        if joined is None or joined.width == 1:
            return None
        room = _JOINED if self.memory is None else self.memory
        # as below; and what the copies were recorded with
        if (joined.states + 2) * recording.start.nbytes > room:
            return None
        found = joint(recording, batch, joined.width)
        self._count(int(found is not None and self.form.carried))
        return found

    def _apply(self, recording: Recording, slot: Slot, state: Tensor) -> Tensor:
        self._count(1)
        return recording.apply(slot.source, state, self.fresh.get(slot))

    def _count(self, states: int) -> None:
        """Note that a layer was called for so many states."""
        self.job.applied += states
        self.job.calls += states > 0

    def _bound(self, batch: Batch, state: Tensor) -> None:
        """Ask for pieces if the states of the walk would take more than they may."""
        rows = rows_of(batch)
        if self.memory is None or rows is None or rows < 2:
            return
        # the recording holds the first state, and while a layer runs its result is one more
        needed = (self.steps.states + 2) * state.nbytes
        if needed > self.memory:
            raise TooLarge(min(rows, -(-needed // self.memory)))

    def _states(self, recording: Recording, plan: Plan) -> Iterator[Tensor]:
        """All states along a plan, computed again."""
        yield (state := recording.start)
        for slot in plan:
            key = checking.key_of(self.job.stack, slot)
            yield (state := state if key is None else self._apply(recording, key, state))


def _rebuild(job: _Job, batches: Iterable[Batch], seed: int, init: str) -> None:
    """A model for each plan, on all batches."""
    kept, pieces = list(batches), Pieces()
    for number, plan in enumerate(job.plans):
        model = restack(job.model, plan, stack=job.stack.path, seed=seed, init=init)
        read = functools.partial(_read_rebuilt, job, model, number)
        with observing(model):
            for batch in kept:
                for piece, reading in pieces.run(batch, read):
                    readouts.add(job.totals[number], reading)
                    job.batches += number == 0
                    job.progress(rows_of(piece) or 1)


def _read_rebuilt(job: _Job, model: PreTrainedModel, number: int, batch: Batch) -> Any:
    stack, inputs = models.pick(model, job.stack.path), model_inputs(model, batch)
    states = functools.partial(layer_states, model, batch, stack, tail=False)
    job.applied += stack.depth
    job.calls += stack.depth

    def last() -> Tensor:
        # as layers give it, which `Leaf.state` turns
        state = states(keep=[stack.depth]).states[0]
        return state.transpose(0, 1) if tokens_first(model) else state

    reading = job.readout.read(Leaf(model, batch, inputs, lambda: model(**inputs), last, number))
    if any(isinstance(value, float) and math.isnan(value) for value in reading.values()):
        found = states().states
        if _has_nan(found[-1], batch):
            raise _nan(stack, job.plans[number], found, batch)
    return reading


def _nan(stack: Stack, plan: Plan, states: Iterable[Tensor], batch: Batch) -> DataError:
    """The error for states that are not numbers: names the layer where it began."""
    place = next(i for i, state in enumerate(states) if _has_nan(state, batch))
    where = f"what enters `{stack.path}` is"
    if place:
        where = f"layer {plan[place - 1]} of `{stack.path}` (slot {place - 1} of {plan}) gives"
    return DataError(
        f"{where} NaN",
        hint="the weights are not all finite, or the dtype is too small: try bfloat16 or float32",
    )


def _has_nan(state: Tensor, batch: Batch) -> bool:
    """Whether there are NaNs at tokens; padding may hold what it likes, nothing looks at it."""
    bad = torch.isnan(state).any(-1)
    if not bad.any():
        return False
    mask = batch.get("attention_mask")
    if isinstance(mask, Tensor) and mask.shape == bad.shape:
        bad &= mask.to(bad.device, torch.bool)
    return bool(bad.any())
