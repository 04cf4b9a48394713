"""From a model and data that fit each other to a job that can run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from restack.errors import RestackError
from restack.tune.engine import Engine
from restack.tune.evaluate import Evaluation, evaluate
from restack.tune.healing import Lesson
from restack.tune.loop import Job, Progress
from restack.tune.lora import add_lora
from restack.tune.losses import Loss, task_loss
from restack.tune.optim import freeze, make_optimizer, parameter_groups
from restack.tune.recipe import Recipe
from restack.tune.setup import Setup

_BLIND = (
    "scored by the distance of its states from the teacher's (loss): states teach no head, and its "
    "own is drawn anew"
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job, and what is needed besides to begin and to end it."""

    job: Job
    tuner: Any
    """peft's, where there is LoRA."""
    whole: tuple[nn.Module, Any] | None
    """Model and tuner before they were sharded, to take in the weights at the end."""
    trained: int
    goal: Callable[[], dict[str, Mapping[str, float]]]
    """What the teacher scores on each split; nothing without a teacher."""
    notes: tuple[str, ...] = ()


def prepare_job(
    setup: Setup,
    recipe: Recipe,
    engine: Engine,
    loss: Loss | None,
    taught: Lesson | None,
    progress: Progress | None,
) -> Prepared:
    """A job that can run: what is trained is chosen, and the model is where it will be."""
    model, task = setup.loaded.model, setup.train.split.task
    tuner = None
    if recipe.lora is not None:
        head = task.kind not in ("lm", "mlm")
        tuner = add_lora(model, setup.layers, recipe.lora, setup.loaded.plan, head=head)
    freeze(model, setup.layers, recipe)
    if recipe.checkpointing:
        _checkpoint_activations(setup.loaded.body)
    if taught is not None:
        loss = taught.loss
    loss = loss or task_loss(task.kind, smoothing=recipe.label_smoothing)
    if engine.world > 1:
        _freeze_unused(model, setup, loss)
    groups = parameter_groups(model, setup.layers, recipe)
    whole = copy.deepcopy((model, tuner)) if engine.sharded and engine.first else None
    runs, optimizer = engine.placed(model, lambda: make_optimizer(groups, recipe))
    if recipe.compile:
        runs = torch.compile(runs, dynamic=True)  # type: ignore[assignment]
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    # each process draws its own dropout
    torch.manual_seed(recipe.seed + engine.rank)

    # a wrapper that joins gradients only costs here; one that joins weights is needed
    scored = runs if engine.sharded else model
    # a head that is new and that nobody teaches would score by chance
    blind = taught is not None and taught.states_alone and bool(setup.loaded.fresh)
    judge = taught.loss if taught is not None and blind else None

    def evaluated(of: nn.Module = scored) -> dict[str, Evaluation]:
        total = sum(len(examples) for examples in setup.validation.values())
        done = 0

        def heard(rows: int) -> None:
            nonlocal done
            done += rows * engine.world
            if progress is not None and engine.first:
                progress("evaluate", min(done, total), total, {})

        return {
            name: evaluate(of, examples, engine, loss=judge, heard=heard)
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
        (next(iter(setup.validation)), "loss" if blind else task.metrics[0])
        if setup.validation
        else None,
        evaluate_first=taught is not None,
    )

    def goal() -> dict[str, Mapping[str, float]]:
        if blind:  # no distance from itself
            return {name: {"loss": 0.0} for name in setup.validation}
        if taught is None or not taught.speaks:
            return {}
        found = evaluated(taught.loaded.model.to(engine.device))
        return {name: evaluation.metrics for name, evaluation in found.items()}

    return Prepared(job, tuner, whole, trained, goal, (_BLIND,) if blind else ())


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
