"""Bring a model to a task: load, re-stack, train, evaluate, write."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from restack.data.splits import Split
from restack.errors import RestackError
from restack.plan import Plan
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
from restack.tune.evaluate import Evaluation, evaluate
from restack.tune.heads import Location
from restack.tune.interrupts import Stopped, Wish, wishes
from restack.tune.journal import Journal, make_trackers
from restack.tune.loop import Hooks, Job, Progress, State, run
from restack.tune.lora import add_lora, merge
from restack.tune.losses import Loss, task_loss
from restack.tune.mean_pool import MeanPool
from restack.tune.optim import freeze, make_optimizer, parameter_groups
from restack.tune.output import publish_output
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
    init: str = "standard",
    out: Path | None = None,
    work: Path | None = None,
    resume: bool = False,
    device: str | torch.device | None = None,
    loss: Loss | None = None,
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
    `stop` is asked after each update; where it says yes, `Stopped` is raised behind a checkpoint.
    Equal arguments give equal numbers on one device, interrupted or not.
    """
    begun = time.perf_counter()
    if out is not None:
        out = Path(out)
        given = isinstance(model, PreTrainedModel | MeanPool) or not Path(model).is_dir()
        check_output(out, inputs=[] if given else [Path(model)])  # type: ignore[arg-type]
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
    identity = _identity(setup, recipe, engine, loss)
    with contextlib.ExitStack() as held:
        held.enter_context(deterministic(engine.device))
        held.enter_context(without_cache(setup.loaded.body))
        work = work if out is None else work_directory(out)
        if work is not None and engine.first:
            held.enter_context(claimed(work, identity, resume=resume))
        engine.wait()
        prepared = _prepare(setup, recipe, engine, loss, progress)
        state = State()
        kept = None if work is None else load_checkpoint(work)
        if kept is not None:
            _restore(prepared, state, kept)
        state.seconds["load"] = state.seconds.get("load", 0.0) + time.perf_counter() - begun
        made = make_trackers(trackers, work or Path("."), setup.train.split.task.name, identity)
        journal = Journal(work / METRICS if work and engine.first else None, made)
        journal.begin(state.curve)
        try:
            _run(prepared, state, work, journal, progress, stop, save_seconds)
        finally:
            journal.end()
        tuned = _result(setup, prepared, state, recipe)
        if out is not None and engine.first:
            assert work is not None
            publish_output(out, work, tuned, setup)
        engine.wait()
    return tuned


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A job, and what is needed besides to begin and to end it."""

    job: Job
    tuner: Any
    """peft's, where there is LoRA."""
    trained: int


def _identity(setup: Setup, recipe: Recipe, engine: Engine, loss: Loss | None) -> dict[str, Any]:
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
        "weights": digest(setup.loaded.model),
        "processes": engine.world,
        "device": engine.device.type,
    }


def _prepare(
    setup: Setup, recipe: Recipe, engine: Engine, loss: Loss | None, progress: Progress | None
) -> _Prepared:
    """A job that can run: what is trained is chosen, and the model is where it will be."""
    model, task = setup.loaded.model, setup.train.split.task
    tuner = None
    if recipe.lora is not None:
        head = task.kind not in ("lm", "mlm")
        tuner = add_lora(model, setup.layers, recipe.lora, setup.loaded.plan, head=head)
    freeze(model, setup.layers, recipe)
    if recipe.checkpointing:
        _checkpoint_activations(setup.loaded.body)
    loss = loss or task_loss(task.kind, smoothing=recipe.label_smoothing)
    if engine.world > 1:
        _freeze_unused(model, setup, loss)
    groups = parameter_groups(model, setup.layers, recipe)
    runs, optimizer = engine.placed(model, lambda: make_optimizer(groups, recipe))
    if recipe.compile:
        runs = torch.compile(runs, dynamic=True)  # type: ignore[assignment]
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    # each process draws its own dropout
    torch.manual_seed(recipe.seed + engine.rank)

    # a wrapper that joins gradients only costs here; one that joins weights is needed
    scored = runs if engine.sharded else model

    def evaluated() -> dict[str, Evaluation]:
        total = sum(len(examples) for examples in setup.validation.values())
        done = 0

        def heard(rows: int) -> None:
            nonlocal done
            done += rows * engine.world
            if progress is not None and engine.first:
                progress("evaluate", min(done, total), total, {})

        return {
            name: evaluate(scored, examples, engine, heard=heard)
            for name, examples in setup.validation.items()
        }

    job = Job(
        model,
        runs,
        optimizer,
        engine,
        recipe,
        setup.train,
        loss,
        evaluated if setup.validation else None,
        (next(iter(setup.validation)), task.metrics[0]) if setup.validation else None,
    )
    return _Prepared(job, tuner, trained)


def _checkpoint_activations(body: PreTrainedModel) -> None:
    if not body.supports_gradient_checkpointing:
        raise RestackError(
            f"{type(body).__name__} cannot compute activations twice",
            hint="Leave checkpointing out, or use smaller batches.",
        )
    body.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def _freeze_unused(model: nn.Module, setup: Setup, loss: Loss) -> None:
    """Take out what gets no gradient: processes that join gradients would wait for it."""
    batch = setup.train.batch(setup.train.epoch(Recipe(), 0)[0][:2])
    with torch.random.fork_rng():
        loss(model, batch).backward()
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.requires_grad_(False)
        parameter.grad = None


def _run(
    prepared: _Prepared,
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


def _restore(prepared: _Prepared, state: State, kept: Mapping[str, Any]) -> None:
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


def _result(setup: Setup, prepared: _Prepared, state: State, recipe: Recipe) -> Tuned:
    """The tuned model in its final form, with the predictions that its metrics are of."""
    job = prepared.job
    evaluations = state.evaluations
    if evaluations is None and job.evaluate is not None:  # resumed behind the evaluation
        evaluations = job.evaluate()
    model = job.model if prepared.tuner is None else merge(prepared.tuner)
    body = setup.loaded.body
    if recipe.checkpointing:
        body.gradient_checkpointing_disable()
    model.eval()
    notes = [*setup.notes, *([f"ended early: {state.ended}"] if state.ended else [])]
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
    )
