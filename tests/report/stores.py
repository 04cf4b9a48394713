"""Stores with made-up numbers, as sweeps leave them."""

from __future__ import annotations

import random
from pathlib import Path

from restack.sweep.kinds import Result
from restack.sweep.store import Store
from restack.sweep.trial import Data, Model, Trial

PLANS = ("0-11", "0-9", "0-7", "0-5", "0-2x2,3-11")


def fill(
    directory: Path, seeds: int = 4, plans: tuple[str, ...] = PLANS, device: str = "cpu"
) -> Path:
    """A store with two tasks, one failed trial and one that is not finished."""
    rng = random.Random(0)
    trials = [
        Trial(
            "tune",
            Model("models/made-up-bert", fingerprint="0123abcd"),
            plan,
            task,
            Data("data", size=500),
            {"epochs": 3, "lr": 2e-5},
            seed,
        )
        for task in ("sst2", "cola")
        for plan in plans
        for seed in range(seeds)
    ]
    with Store.open(directory, write=True) as store:
        store.add(trials)
        session = store.begin_session(1, "local")
        environment = {"restack": "0.1.0", "torch": "2.13.0", "device": device, "git": None}
        for place, trial in enumerate(trials[:-1]):
            store.begin(trial.key)
            if place == 3:
                store.fail(trial.key, session, "out of memory\nin the middle of it")
                continue
            metric = "accuracy" if trial.task == "sst2" else "matthews"
            value = 0.9 - 0.02 * plans.index(trial.plan or "") + rng.gauss(0, 0.004)
            note = {"task": trial.task, "split": "train", "examples": 500, "partial": "500 of many"}
            store.finish(
                trial.key,
                session,
                Result(
                    {"validation": {metric: value, "loss": 1 - value}},
                    payload={"source_depth": 12, "examples": {"train": note}},
                ),
                seconds=30 + rng.random(),
                files={},
                environment=environment,
            )
    return directory
