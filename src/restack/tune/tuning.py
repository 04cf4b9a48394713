"""Bring a model to a task: load, re-stack, train, evaluate, write."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from restack.data.splits import Split
from restack.errors import CheckpointError, DataError, RestackError
from restack.plan import Plan
from restack.surgery.fresh import DEFAULT
from restack.surgery.publish import check_output
from restack.tune.checkpoints import (
    METRICS,
    claimed,
    load_checkpoint,
    save_checkpoint,
    work_directory,
)
from restack.tune.engine import (
    Engine,
    deterministic,
    make_engine,
    random_state,
    seed_all,
    set_random_state,
)
from restack.tune.heads import Location, body_of
from restack.tune.healing import Lesson, Teacher, lesson, told
from restack.tune.interrupts import Stopped, Wish, wishes
from restack.tune.journal import RUNS, Journal, make_trackers
from restack.tune.loop import Hooks, Progress, State, run
from restack.tune.lora import merge
from restack.tune.losses import Loss
from restack.tune.mean_pool import MeanPool
from restack.tune.output import RESULTS, publish_output
from restack.tune.preparing import Prepared, prepare_job
from restack.tune.recipe import Recipe
from restack.tune.setup import Setup, set_up, without_cache
from restack.tune.tuned import SplitNote, Tuned
from restack.tune.weights import digest, optimizer_state, put_back, set_optimizer_state, take

SAVE_SECONDS = 300.0
_WORTH_KEEPING = 30.0  # seconds of training


def tune(
    model: Location | PreTrainedModel | MeanPool,
    train: Split,
    validation: Mapping[str, Split],
    recipe: Recipe,
    *,
    tokenizer: Any = None,
    plan: Plan | str | None = None,
    stack: str | None = None,
    init: str = DEFAULT,
    out: Path | None = None,
    work: Path | None = None,
    resume: bool = False,
    device: str | torch.device | None = None,
    loss: Loss | None = None,
    teacher: Teacher | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    save_seconds: float = SAVE_SECONDS,
    trackers: Sequence[str] = (),
) -> Tuned:
    """Train a model on a split, after re-stacking it by `plan`, and score it on others.

    The task is that of `train`. The first split of `validation` picks the best weights, by the
    first metric of the task. `model` stays as it is if it is given as an object.

    With `out`, a checkpoint is written into `OUT.unfinished` every `save_seconds`, and on SIGINT
    and SIGTERM, from which the run goes on with `resume`; at the end `out` appears as a whole.
    With `work` instead of `out` it is the directory of checkpoints, and no output is written.
    With a `teacher` the model learns from that instead of labels, and is scored before the first
    update too. `stop` is asked after each update; where it says yes, `Stopped` is raised behind a
    checkpoint.
    Equal arguments give equal numbers on one device, interrupted or not. Where processes shard the
    weights, the model of the first one is whole.
    """
    begun = time.perf_counter()
    if out is not None:
        out = Path(out)
        _check_new(out, resume)
        given = isinstance(model, PreTrainedModel | MeanPool) or not Path(model).is_dir()
        check_output(out, inputs=[] if given else [Path(model)])  # type: ignore[arg-type]
    if train.lacks_labels and (teacher is None or teacher.distil.labels):
        raise DataError(
            f"{train}: the examples have no labels to learn from",
            hint="Give a teacher, and no weight to the labels.",
        )
    engine = make_engine(recipe, device)
    seed_all(recipe.seed)
    setup = set_up(
        model,
        train,
        validation,
        recipe,
        engine,
        tokenizer=tokenizer,
        plan=plan,
        stack=stack,
        init=init,
    )
    taught = None
    if teacher is not None:
        if loss is not None:
            raise RestackError("a teacher gives a loss, and another one was given")
        given_as = None if isinstance(model, PreTrainedModel | MeanPool) else model
        taught = lesson(teacher, given_as, setup, recipe, stack)
    identity = _identity(setup, recipe, engine, loss, taught)
    with contextlib.ExitStack() as held:
        held.enter_context(deterministic(engine.device))
        work = work if out is None else work_directory(out)
        if work is not None and engine.first:
            held.enter_context(claimed(work, identity, resume=resume))
        engine.wait()
        prepared = prepare_job(setup, recipe, engine, loss, taught, progress)
        state = State()
        kept = None if work is None else load_checkpoint(work)
        if kept is not None:
            _restore(prepared, state, kept)
        state.seconds["load"] = state.seconds.get("load", 0.0) + time.perf_counter() - begun
        place = (work or Path()) / RUNS
        made = make_trackers(trackers, place, setup.train.split.task.name, identity)
        journal = Journal(work / METRICS if work and engine.first else None, made)
        journal.begin(state.curve)
        with without_cache(setup.loaded.body):
            if taught is not None:
                held.enter_context(without_cache(taught.loaded.body))
            try:
                _run(prepared, state, work, journal, progress, stop, save_seconds)
            finally:
                journal.end()
            tuned = _result(setup, prepared, state, recipe, taught)
        if out is not None and engine.first:
            assert work is not None
            publish_output(out, work, tuned, setup)
        engine.wait()
    return tuned


def _check_new(out: Path, resume: bool) -> None:
    """Refuse an output that is there: what a training made is never replaced."""
    if resume and (out / RESULTS).is_file():
        raise CheckpointError(
            f"{out} is the output of a run that is finished", hint="There is nothing to resume."
        )
    if out.is_dir() and any(out.iterdir()):
        raise CheckpointError(
            f"the output {out} exists and is not empty", hint="Give another name, or remove it."
        )


def _identity(
    setup: Setup, recipe: Recipe, engine: Engine, loss: Loss | None, taught: Lesson | None
) -> dict[str, Any]:
    """By what a run is known again, so that it is not resumed as another one."""
    name = "of the task" if loss is None else getattr(loss, "__name__", type(loss).__name__)
    return {
        "model": setup.source,
        "plan": None if setup.loaded.plan is None else str(setup.loaded.plan),
        "train": SplitNote.of(setup.train.split).to_json(),
        "validation": {
            name: SplitNote.of(examples.split).to_json()
            for name, examples in setup.validation.items()
        },
        "recipe": recipe.to_json(),
        "loss": name,
        "teacher": None if taught is None else taught.note,
        "weights": digest(setup.loaded.model),
        "processes": engine.world,
        "device": engine.device.type,
    }


def _run(
    prepared: Prepared,
    state: State,
    work: Path | None,
    journal: Journal,
    progress: Progress | None,
    stop: Callable[[], bool] | None,
    save_seconds: float,
) -> None:
    """The loop, with signals heard while there is somewhere to save to."""
    job = prepared.job
    engine = job.engine

    def save() -> None:
        random = engine.joined([random_state(engine.device)])
        optimizer = optimizer_state(job.runs, job.optimizer, engine)
        weights = take(job.model, job.runs, engine)
        if work is None or not engine.first:
            return
        values = {
            "step": state.step,
            "state": json.dumps(state.plain()),
            "weights": weights,
            "best": state.weights,
            "optimizer": optimizer,
            "random": random,
            "scaler": None if engine.scaler is None else engine.scaler.state_dict(),
        }
        save_checkpoint(work, values)

    with contextlib.ExitStack() as held:
        wish = held.enter_context(wishes()) if work is not None else Wish()
        hooks = Hooks(
            journal.write,
            progress if engine.first else None,
            lambda: bool(wish) or (stop is not None and stop()),
            save if work is not None else lambda: None,
            save_seconds if work is not None else float("inf"),
        )
        finished = run(job, state, hooks)
    if finished:
        if work is not None and state.seconds.get("train", 0.0) > _WORTH_KEEPING:
            save()  # the output may find no room
        return
    where = "" if work is None else f"; {work} holds where it stands, to go on with --resume"
    if wish:
        wish.obey(f"stopped at step {state.step}{where}")
    raise Stopped(f"stopped at step {state.step}{where}")


def _restore(prepared: Prepared, state: State, kept: Mapping[str, Any]) -> None:
    """Put everything back to where a checkpoint says it stood."""
    job = prepared.job
    for name, value in json.loads(kept["state"]).items():
        setattr(state, name, value)
    state.weights = kept["best"]
    put_back(job.model, job.runs, job.engine, kept["weights"])
    set_optimizer_state(job.runs, job.optimizer, job.engine, kept["optimizer"])
    if job.engine.scaler is not None:
        job.engine.scaler.load_state_dict(kept["scaler"])
    set_random_state(kept["random"][job.engine.rank], job.engine.device)


def _result(
    setup: Setup, prepared: Prepared, state: State, recipe: Recipe, taught: Lesson | None
) -> Tuned:
    """The tuned model in its final form, with the predictions that its metrics are of."""
    job = prepared.job
    evaluations = state.evaluations
    if evaluations is None and job.evaluate is not None:  # resumed behind the evaluation
        evaluations = job.evaluate()
    model, tuner = job.model, prepared.tuner
    if job.engine.sharded:
        weights = take(job.model, job.runs, job.engine)  # all processes take part in it
        if prepared.whole is not None:
            model, tuner = prepared.whole
            model.load_state_dict(weights)
    # what only a part of is here cannot be merged
    if tuner is not None and (prepared.whole is not None or not job.engine.sharded):
        model = merge(tuner)
    if recipe.checkpointing:
        body_of(model).gradient_checkpointing_disable()
    model.eval()
    notes = [*setup.notes, *([] if taught is None else [told(taught.note)]), *prepared.notes]
    notes += [f"ended early: {state.ended}"] if state.ended else []
    kept = recipe.keep_best and job.evaluate is not None
    train_seconds = state.seconds.get("train", 0.0)
    return Tuned(
        model,
        setup.source,
        setup.train.split.task.name,
        None if setup.loaded.plan is None else str(setup.loaded.plan),
        None if setup.loaded.stack is None else setup.loaded.stack.depth,
        setup.loaded.depth,
        sum(parameter.numel() for parameter in model.parameters()),
        prepared.trained,
        recipe,
        SplitNote.of(setup.train.split),
        {name: SplitNote.of(e.split) for name, e in setup.validation.items()},
        state.metrics,
        tuple(state.curve),
        state.step,
        state.best_step if kept else state.step,
        dict(state.seconds),
        state.examples / train_seconds if train_seconds else 0.0,
        {n: e.predictions for n, e in (evaluations or {}).items() if e.predictions is not None},
        tuple(notes),
        None if taught is None else taught.note | {"metrics": prepared.goal()},
    )
