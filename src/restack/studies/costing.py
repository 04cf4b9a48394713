"""The kind of trial that measures what plans cost: sizes, and times beside the whole model."""

from __future__ import annotations

from typing import Any

from restack.errors import RestackError
from restack.sweep.kinds import Context, Result
from restack.sweep.tuning import model_place
from restack.tune.cost import Ratio, measure, steps
from restack.tune.cost_worker import Subject, Workload

ROUNDS = 10


def cost(context: Context) -> Result:
    """Parameters, and the time of inference and of an update, for each plan beside the first.

    Settings: `plans`, `batch_size`, `max_length`. The batches are those of the validation split of
    the trial's task. The numbers are of this machine at this moment; ratios are what lasts.
    """
    trial, settings = context.trial, context.trial.settings
    data = trial.data
    if trial.task is None or data is None or trial.model is None:
        raise RestackError("a trial of the kind 'cost' needs a model, a task and data")
    place, plans = model_place(context), settings["plans"]
    load = Workload(
        batch=settings["batch_size"],
        length=None,
        task=trial.task,
        data=data.source,
        split=data.validation[0],
        limit=data.limit,
        max_length=settings["max_length"],
        device=context.device,
        threads=context.threads,
    )
    done, total = [0], steps(len(plans), ROUNDS)

    def progress(count: int) -> None:
        done[0] += count
        context.tell(min(0.99, done[0] / total))

    found = measure(
        [Subject(place, plan, trial.model.stack) for plan in plans],
        load,
        rounds=ROUNDS,
        progress=progress,
        stop=context.stop,
    )
    rows: list[dict[str, Any]] = []
    for plan, one in zip(plans, found.costs, strict=True):
        training = found.training(one)
        rows.append(
            {
                "plan": plan,
                "depth": one.facts.depth,
                "parameters": one.facts.parameters,
                "inference": _ratio(found.inference(one)),
                "training": None if training is None else _ratio(training),
                "seconds": one.inference.p50,
            }
        )
    return Result(payload={"plans": rows, "rounds": ROUNDS, "batch": load.batch})


def _ratio(found: Ratio) -> dict[str, Any]:
    return {"ratio": found.value, "low": found.low, "high": found.high, "n": ROUNDS}
