"""The loop: batches in, updates out, with evaluations and checkpoints where they are due.

Everything that decides about the next update is in `State`, in the weights, in the optimizer and in
the random numbers, so that a run that was stopped goes on as if it had not been.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from restack.data.metrics import is_better
from restack.errors import RestackError
from restack.tune.engine import Engine
from restack.tune.evaluate import Evaluation
from restack.tune.examples import Batch, Examples
from restack.tune.losses import Loss
from restack.tune.optim import rate_at, set_rate
from restack.tune.recipe import Recipe
from restack.tune.weights import put_back, take

_LOOK_EVERY = 16  # updates between looks at losses that are still being computed on a GPU

Evaluate = Callable[[], Mapping[str, Evaluation]]
Progress = Callable[[str, int, int, dict[str, float]], None]
"""What is going on, how much is done, of how much, and numbers about it.

`train` counts updates and tells `loss` and `pace` (examples a second), `evaluate` counts rows, and
`evaluated` tells the scores at the updates that are done.
"""


class TrainingError(RestackError):
    """A training that cannot go on, such as one whose loss is no number any more."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained, on what, and how."""

    model: nn.Module
    runs: nn.Module
    """The same model as it is called: compiled, or wrapped for several processes."""
    optimizer: Any
    engine: Engine
    recipe: Recipe
    examples: Examples
    loss: Loss
    evaluate: Evaluate | None
    pick: tuple[str, str] | None
    """The split and the metric that pick the best weights."""
    evaluate_first: bool = False
    """Score before the first update too."""


@dataclass(slots=True)
class State:
    """How far a run has come."""

    step: int = 0
    """Updates of the weights."""
    epoch: int = 0
    """Whole epochs."""
    place: int = 0
    """Updates in the epoch that has begun."""
    examples: int = 0
    score: float | None = None
    best_step: int = 0
    worse: int = 0
    """Evaluations since the best one."""
    ended: str | None = None
    """Why the run ended before its time."""
    curve: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """Those of the weights that the run would end with now."""
    seconds: dict[str, float] = field(default_factory=dict)
    weights: dict[str, Tensor] | None = None
    """The best ones, where they are kept."""
    clock: float = 0.0
    """Since when time counts to what comes next."""
    evaluations: Mapping[str, Evaluation] | None = None
    """Those that `metrics` is of; None after a checkpoint was loaded."""

    PLAIN = (
        *("step", "epoch", "place", "examples", "score", "best_step", "worse", "ended", "curve"),
        *("metrics", "seconds"),
    )

    def plain(self) -> dict[str, Any]:
        """All but tensors and predictions, as JSON can hold it."""
        return {name: getattr(self, name) for name in self.PLAIN}


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the loop tells others."""

    journal: Callable[[dict[str, Any]], None] = lambda line: None
    progress: Progress | None = None
    stop: Callable[[], object] = lambda: False
    """Whether the run should stop after this update."""
    save: Callable[[], None] = lambda: None
    save_seconds: float = math.inf


@dataclass(slots=True)
class _Done:
    """An update whose loss nobody has looked at yet."""

    step: int
    epoch: float
    loss: Tensor
    norm: Tensor
    rate: float
    rows: np.ndarray


def updates_of(job: Job, epoch: int) -> list[np.ndarray]:
    """The rows of each update of an epoch."""
    return job.examples.epoch(job.recipe, epoch)


def total_updates(job: Job) -> int:
    """How many updates the recipe asks for."""
    recipe = job.recipe
    if recipe.steps is not None:
        return recipe.steps
    whole = int(recipe.epochs)
    if recipe.batch_tokens is None:  # then all epochs have as many
        each = len(updates_of(job, 0))
        return max(1, round(each * recipe.epochs))
    total = sum(len(updates_of(job, epoch)) for epoch in range(whole))
    if recipe.epochs > whole:
        total += round(len(updates_of(job, whole)) * (recipe.epochs - whole))
    return max(1, total)


def run(job: Job, state: State, hooks: Hooks) -> bool:
    """Train to the end, or until somebody wishes to stop; whether it came to the end."""
    total = total_updates(job)
    saved = time.monotonic()
    pending: list[_Done] = []
    state.clock = time.perf_counter()
    job.runs.train()

    def lap(what: str) -> None:
        now = time.perf_counter()
        state.seconds[what] = state.seconds.get(what, 0.0) + now - state.clock
        state.clock = now

    if job.evaluate_first and job.evaluate is not None and not state.step:
        _evaluate(job, state, hooks, 0.0, total)
        lap("evaluate")
    while state.step < total and state.ended is None:
        updates = updates_of(job, state.epoch)
        while state.place < len(updates) and state.step < total and state.ended is None:
            rows = updates[state.place]
            done = _update(job, state, rows, rate_at(state.step, total, job.recipe))
            state.step += 1
            state.place += 1
            state.examples += len(rows)
            done.epoch = state.epoch + state.place / len(updates)
            pending.append(done)
            ends = state.place == len(updates)
            every = job.recipe.evaluate_every
            due = state.step == total or (ends if every is None else state.step % every == 0)
            wish = job.engine.any(hooks.stop())
            save = time.monotonic() - saved >= hooks.save_seconds
            if not job.engine.waits or due or wish or save or len(pending) >= _LOOK_EVERY:
                _look(job, state, hooks, pending, total)
            if ends:
                state.epoch, state.place = state.epoch + 1, 0
            if due and job.evaluate is not None:
                lap("train")
                _evaluate(job, state, hooks, done.epoch, total)
                lap("evaluate")
            if job.engine.any(save) or wish:
                lap("train")
                hooks.save()
                saved = time.monotonic()
                lap("save")
            if wish:
                return False
            if ends:
                break
    lap("train")
    if state.weights is not None and state.best_step != state.step:
        put_back(job.model, job.runs, job.engine, state.weights)
    return True


def _update(job: Job, state: State, rows: np.ndarray, rate: float) -> _Done:
    """One update of the weights, from one batch or several."""
    engine, recipe = job.engine, job.recipe
    set_rate(job.optimizer, rate)
    parts = [
        _share(part, engine) for part in np.array_split(rows, min(recipe.accumulate, len(rows)))
    ]
    batches = [
        (job.examples.batch(part, epoch=state.epoch).to(engine.device), counts)
        for part, counts in parts
    ]
    # a mean over all that the update asks for, however that is cut into batches and processes
    count = engine.total(sum(batch.count for batch, counts in batches if counts))
    scale = engine.world / max(1.0, count)
    sums: list[Tensor] = []
    for number, (batch, counts) in enumerate(batches):
        with engine.apart(job.runs, last=number == len(batches) - 1):
            loss = _loss(job, batch) * (scale if counts else 0.0)
            engine.backward(loss)
        sums.append(loss.detach())
    norm = engine.clip(job.runs, job.optimizer, recipe.clip)
    mean = torch.stack(sums).sum()
    if engine.world > 1:
        mean = torch.tensor(engine.total(float(mean)) / engine.world)
    if not engine.waits:  # before the weights are spoiled
        _check(job, _Done(state.step + 1, 0.0, mean, norm, rate, rows))
    engine.update(job.optimizer)
    return _Done(state.step + 1, 0.0, mean, norm, rate, rows)


def _loss(job: Job, batch: Batch) -> Tensor:
    with job.engine.autocast():
        return job.loss(job.runs, batch)


def _share(rows: np.ndarray, engine: Engine) -> tuple[np.ndarray, bool]:
    """The rows of this process, and whether they count: where there are too few, some run idle."""
    own = rows[engine.rank :: engine.world]
    return (own, True) if len(own) else (rows[:1], False)


def _look(job: Job, state: State, hooks: Hooks, pending: list[_Done], total: int) -> None:
    """Read the losses of updates that are over, and write them down."""
    for done in pending:
        _check(job, done)
        line = {
            "step": done.step,
            "epoch": round(done.epoch, 6),
            "loss": float(done.loss),
            "norm": float(done.norm),
            "rate": done.rate,
            "examples": len(done.rows),
        }
        state.curve.append(line)
        hooks.journal(line)
    if hooks.progress is not None and pending:
        hooks.progress("train", state.step, total, {"loss": float(pending[-1].loss)} | _pace(state))
    pending.clear()


def _pace(state: State) -> dict[str, float]:
    """Examples a second, of the time that went into training alone."""
    seconds = state.seconds.get("train", 0.0) + time.perf_counter() - state.clock
    return {"pace": state.examples / seconds} if seconds > 0 else {}


def _check(job: Job, done: _Done) -> None:
    """Stop where loss or gradient are no numbers any more."""
    finite = math.isfinite(done.loss)
    # with fp16 the gradient may overflow: the scaler leaves such an update out
    if finite and (job.engine.scaler is not None or math.isfinite(done.norm)):
        return
    names = job.examples.names(done.rows)
    shown = ", ".join(map(str, names[:64])) + (", ..." if len(names) > 64 else "")
    what = f"the loss is {float(done.loss)}" if not finite else "the gradient is not finite"
    raise TrainingError(
        f"step {done.step}: {what}, at the learning rate {done.rate:.3g}; "
        f"{job.examples.split}, examples of the batch: {shown}",
        hint="Lower the rate, warm up for longer, clip more, or look at these examples.",
    )


def _evaluate(job: Job, state: State, hooks: Hooks, epoch: float, total: int) -> None:
    """Score all validation splits; keep the weights if they are the best, count if they are not."""
    assert job.evaluate is not None
    assert job.pick is not None
    found = job.evaluate()
    metrics = {name: evaluation.metrics for name, evaluation in found.items()}
    line: dict[str, Any] = {"step": state.step, "epoch": round(epoch, 6), "metrics": metrics}
    state.curve.append(line)
    hooks.journal(line)
    if hooks.progress is not None:
        several = len(metrics) > 1
        scores = {
            f"{name} {metric}" if several else metric: value
            for name, found_here in metrics.items()
            for metric, value in found_here.items()
        }
        hooks.progress("evaluated", state.step, total, scores)
    split, metric = job.pick
    score = metrics[split][metric]
    better = is_better(metric, score, state.score)
    if better:
        state.score, state.best_step, state.worse = score, state.step, 0
    else:
        state.worse += 1
    if better or not job.recipe.keep_best:
        state.metrics, state.evaluations = metrics, found
    if better and job.recipe.keep_best:
        state.weights = take(job.model, job.runs, job.engine)
    patience = job.recipe.patience
    if patience is not None and state.worse >= patience:
        state.ended = f"no better {metric} of {split} in {patience} evaluations"
    job.runs.train()
