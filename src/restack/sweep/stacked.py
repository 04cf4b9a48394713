"""Several seeds of one configuration trained together: their weights stacked, one pass for all.

Small models keep a processor busy with the making of calls, and leave most of its cores idle; one
call for eight models costs little more than for one. Every model sees the batches, the rates and
the clipping that it would see alone, so the numbers are those of separate runs but for the order
in which floats are added.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from restack.data.metrics import is_better
from restack.data.splits import Split
from restack.sweep.folded import Folded, Unfoldable
from restack.sweep.kinds import Context, Result, Stopped
from restack.sweep.tuning import (
    PREDICTIONS,
    about,
    model_place,
    recipe_of,
    save_predictions,
    splits,
    thinned,
    tokenizer_of,
)
from restack.tune.engine import Engine, make_engine, seed_all
from restack.tune.evaluate import Evaluation
from restack.tune.examples import Batch, Examples
from restack.tune.losses import head_loss
from restack.tune.optim import freeze, make_optimizer, parameter_groups, rate_at, set_rate
from restack.tune.predictions import Predictions
from restack.tune.recipe import Recipe
from restack.tune.setup import Setup, set_up
from restack.tune.tuned import SplitNote

_KINDS = ("classification", "regression", "multilabel")
_PLACES = 2048  # tokens of a batch that is scored, of each model


class Unstackable(Exception):
    """These trials cannot be trained together; they run one by one, with the same result."""


def tune_together(contexts: Sequence[Context]) -> list[Result]:
    """Train trials that differ in their seed alone; raises `Unstackable` before any work."""
    trials = [context.trial for context in contexts]
    recipes = [recipe_of(trial) for trial in trials]
    engine = make_engine(recipes[0], contexts[0].device)
    begun = time.perf_counter()
    setups = []
    for context, recipe in zip(contexts, recipes, strict=True):
        train, validation = splits(context.trial)
        if train.task.kind not in _KINDS:
            raise Unstackable(f"{train.task.name} ({train.task.kind}) is trained one by one")
        setups.append(_set_up(context, recipe, engine, train, validation))
    stack = _Stack.of(setups, recipes, engine)
    loading = time.perf_counter() - begun
    runs = [_Run() for _ in trials]
    _train(stack, runs, contexts)
    results = []
    for context, setup, run in zip(contexts, setups, runs, strict=True):
        assert run.evaluations is not None
        files = {}
        if saved := save_predictions(
            context.work, {name: e.predictions for name, e in run.evaluations.items()}
        ):
            files[PREDICTIONS] = saved
        loaded = setup.loaded
        payload = about(
            {
                "source_depth": None if loaded.stack is None else loaded.stack.depth,
                "depth": loaded.depth,
                "parameters": sum(p.numel() for p in loaded.model.parameters()),
                "trained": stack.trained,
                "steps": stack.total,
                "best_step": run.best_step if recipes[0].keep_best else stack.total,
                "notes": list(setup.notes),
            },
            SplitNote.of(setup.train.split),
            {name: SplitNote.of(e.split) for name, e in setup.validation.items()},
        )
        seconds = {name: value / len(trials) for name, value in stack.seconds.items()}
        seconds["load"] = loading / len(trials)
        results.append(Result(run.metrics, thinned(run.curve), payload, seconds, files))
    return results


def _set_up(
    context: Context,
    recipe: Recipe,
    engine: Engine,
    train: Split,
    validation: Mapping[str, Split],
) -> Setup:
    trial = context.trial
    place = model_place(context)
    seed_all(recipe.seed)
    setup = set_up(
        place,
        train,
        validation,
        recipe,
        engine,
        tokenizer=tokenizer_of(place),
        plan=trial.plan,
        stack=None if trial.model is None else trial.model.stack,
        init=str(trial.settings.get("init", "standard")),
    )
    config = setup.loaded.body.config
    drops = {
        name: value
        for name, value in config.to_dict().items()
        if ("dropout" in name or name.endswith("drop")) and isinstance(value, float) and value
    }
    drops |= {
        name: m.p
        for name, m in setup.loaded.model.named_modules()
        if isinstance(m, nn.Dropout) and m.p
    }
    if drops:
        name, value = next(iter(drops.items()))
        raise Unstackable(f"{name} is {value}: what is left out at random differs from alone")
    if getattr(config, "is_decoder", True) is not False or config.is_encoder_decoder:
        raise Unstackable(f"{config.model_type} does not read in both directions")
    if setup.train.tokens.pad_left:
        raise Unstackable("texts are padded on the left")
    return setup


@dataclass(slots=True)
class _Run:
    """How far one of the trials has come."""

    curve: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    score: float | None = None
    best_step: int = 0
    evaluations: dict[str, Evaluation] | None = None


@dataclass(slots=True)
class _Stack:
    """All models as one, and how it is trained."""

    model: Folded
    optimizer: Any
    setups: Sequence[Setup]
    recipes: Sequence[Recipe]
    engine: Engine
    total: int
    trained: int
    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "evaluate": 0.0})

    @classmethod
    def of(cls, setups: Sequence[Setup], recipes: Sequence[Recipe], engine: Engine) -> _Stack:
        models = [setup.loaded.model.to(engine.device) for setup in setups]
        recipe, first = recipes[0], setups[0]
        lengths = {len(setup.train) for setup in setups}
        if len(lengths) > 1:
            raise Unstackable("the trials have different numbers of examples")
        short = lengths.pop() % (recipe.batch_size or 1)
        if short and first.train.split.task.kind != "classification":
            raise Unstackable("the last batch is short, and not at the same place for all")
        freeze(models[0], first.layers, recipe)
        try:
            folded = Folded(models).train()
            _check(folded, models, first.train, engine)
        except (Unfoldable, RuntimeError, TypeError, ValueError) as error:
            said = str(error).splitlines()[0]
            raise Unstackable(f"these models cannot be run as one: {said}") from error
        parameters = dict(folded.model.named_parameters())
        named = dict(models[0].named_parameters())
        for name, parameter in named.items():
            parameters[name].requires_grad_(parameter.requires_grad)
        names = {id(parameter): name for name, parameter in named.items()}
        groups = [
            {**group, "params": [parameters[names[id(p)]] for p in group["params"]]}
            for group in parameter_groups(models[0], first.layers, recipe)
        ]
        trained = sum(p.numel() for p in named.values() if p.requires_grad)
        epochs = len(first.train.epoch(recipe, 0)) * recipe.epochs
        total = recipe.steps if recipe.steps is not None else max(1, round(epochs))
        return cls(folded, make_optimizer(groups, recipe), setups, recipes, engine, total, trained)

    def each(self, batches: Sequence[Batch]) -> Tensor:
        """The logits of each model on its own batch: models x rows x outputs."""
        logits: Tensor = self.model(**_joined(batches, [setup.train for setup in self.setups]))
        return logits

    def same(self, batch: Batch) -> Tensor:
        """The logits of all models on one batch."""
        logits: Tensor = self.model(**_repeated(batch, len(self.setups)))
        return logits


@torch.no_grad()
def _check(folded: Folded, models: Sequence[nn.Module], examples: Examples, engine: Engine) -> None:
    """Refuse a folded model whose answers are not those of its models.

    Batches of one and of two rows: what is no batch cannot have the length of both.
    """
    for count in (1, 2):
        batch = examples.batch(np.arange(min(count, len(examples)))).to(engine.device)
        ours = folded(**_repeated(batch, len(models)))
        theirs = torch.stack([model.eval()(**batch.inputs).logits for model in models])
        if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4):
            raise Unfoldable("together they answer otherwise than alone")


def _repeated(batch: Batch, models: int) -> dict[str, Tensor]:
    """The inputs of one batch for each of the models."""
    return {name: tensor.repeat(models, 1) for name, tensor in batch.inputs.items()}


def _joined(batches: Sequence[Batch], examples: Sequence[Examples]) -> dict[str, Tensor]:
    """The inputs of all batches, padded to the longest and to the most rows."""
    width = max(batch.inputs["input_ids"].shape[1] for batch in batches)
    rows = max(len(batch.rows) for batch in batches)
    found = {}
    for name in batches[0].inputs:
        parts = []
        for batch, one in zip(batches, examples, strict=True):
            tensor = batch.inputs[name]
            fill = one.pad_id if name == "input_ids" else 0
            tensor = nn.functional.pad(tensor, (0, width - tensor.shape[1]), value=fill)
            if missing := rows - len(tensor):  # rows that no loss is asked of
                tensor = torch.cat([tensor, tensor[:1].expand(missing, -1)])
            parts.append(tensor)
        found[name] = torch.cat(parts)
    return found


def _train(stack: _Stack, runs: Sequence[_Run], contexts: Sequence[Context]) -> None:
    """The loop of `restack.tune.loop`, for all models at once."""
    recipe, kind = stack.recipes[0], stack.setups[0].train.split.task.kind
    step, epoch, clock = 0, 0, time.perf_counter()
    every = recipe.evaluate_every
    while step < stack.total:
        plans = [
            setup.train.epoch(own, epoch)
            for setup, own in zip(stack.setups, stack.recipes, strict=True)
        ]
        for place, rows in enumerate(zip(*plans, strict=True), start=1):
            if contexts[0].stop():
                raise Stopped("trials that are trained together begin anew")
            batches = [
                setup.train.batch(own, epoch=epoch).to(stack.engine.device)
                for setup, own in zip(stack.setups, rows, strict=True)
            ]
            rate = rate_at(step, stack.total, recipe)
            losses, norms = _update(stack, batches, rate, kind)
            step += 1
            done = epoch + place / len(plans[0])
            for run, loss, norm, batch in zip(runs, losses, norms, batches, strict=True):
                line = {"step": step, "epoch": round(done, 6), "loss": loss, "norm": norm}
                run.curve.append({**line, "rate": rate, "examples": len(batch.rows)})
            ends = place == len(plans[0])
            due = step == stack.total or (ends if every is None else step % every == 0)
            contexts[0].tell(step / stack.total)
            if due:
                now = time.perf_counter()
                stack.seconds["train"] += now - clock
                _evaluate(stack, runs, step, done)
                clock = time.perf_counter()
                stack.seconds["evaluate"] += clock - now
            if step == stack.total:
                break
        epoch += 1


def _update(
    stack: _Stack, batches: Sequence[Batch], rate: float, kind: Any
) -> tuple[list[float], list[float]]:
    recipe = stack.recipes[0]
    set_rate(stack.optimizer, rate)
    logits = stack.each(batches)
    losses = torch.stack(
        [
            head_loss(
                kind, SimpleNamespace(logits=own[: len(batch.rows)]), batch, recipe.label_smoothing
            )
            / max(1, batch.count)
            for own, batch in zip(logits, batches, strict=True)
        ]
    )
    losses.sum().backward()  # no weight has a part in two of them
    trained = [p for p in stack.model.parameters() if p.grad is not None]
    norms = torch.stack([p.grad.flatten(1).norm(dim=1) for p in trained]).norm(dim=0)  # type: ignore[union-attr]
    if recipe.clip is not None:
        factor = torch.clamp(recipe.clip / (norms + 1e-6), max=1.0)
        if bool((norms > recipe.clip).any()):
            for parameter in trained:
                assert parameter.grad is not None
                parameter.grad.mul_(factor.view(-1, *[1] * (parameter.dim() - 1)))
    found = losses.detach().tolist(), norms.tolist()
    if not np.isfinite(found).all():
        raise Unstackable("a loss is no finite number; alone it says where")
    stack.optimizer.step()
    stack.optimizer.zero_grad(set_to_none=True)
    return found


@torch.no_grad()
def _evaluate(stack: _Stack, runs: Sequence[_Run], step: int, epoch: float) -> None:
    """Score all models on all validation splits; weights are kept of none."""
    recipe = stack.recipes[0]
    stack.model.eval()
    found: list[dict[str, Evaluation]] = [{} for _ in runs]
    for name, examples in stack.setups[0].validation.items():
        for own, evaluation in zip(found, _score(stack, examples), strict=True):
            own[name] = evaluation
    stack.model.train()
    first = next(iter(stack.setups[0].validation))
    metric = stack.setups[0].train.split.task.metrics[0]
    for run, own in zip(runs, found, strict=True):
        metrics = {name: evaluation.metrics for name, evaluation in own.items()}
        run.curve.append({"step": step, "epoch": round(epoch, 6), "metrics": metrics})
        better = is_better(metric, metrics[first][metric], run.score)
        if better:
            run.score, run.best_step = metrics[first][metric], step
        if better or not recipe.keep_best:
            run.metrics, run.evaluations = metrics, own


def _score(stack: _Stack, examples: Examples) -> list[Evaluation]:
    kind = examples.split.task.kind
    order: list[np.ndarray] = []
    outputs: list[Tensor] = []
    totals, count = np.zeros(len(stack.setups)), 0
    for rows in examples.in_order(_PLACES):
        batch = examples.batch(rows).to(stack.engine.device)
        logits = stack.same(batch).float()
        for number, own in enumerate(logits):
            totals[number] += float(head_loss(kind, SequenceClassifierOutput(logits=own), batch))
        count += batch.count
        order.append(rows)
        outputs.append(logits.cpu())
    back = np.argsort(np.concatenate(order), kind="stable")
    every = torch.cat(outputs, dim=1).numpy()[:, back]
    found = []
    for own, total in zip(every, totals, strict=True):
        predictions = Predictions.of_rows(examples.split, own)
        metrics = predictions.scores(examples.split) | {"loss": float(total) / count}
        found.append(Evaluation(metrics, predictions))
    return found
