"""Kinds of trials that compute something small and real, for tests and proofs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from restack.errors import RestackError
from restack.sweep.kinds import Context, Result, Stopped
from restack.sweep.prune import PRUNED, Bars, curve_of
from restack.sweep.trial import Trial

HERE = "tests.sweep.small"


def trials(count: int, **settings: object) -> list[Trial]:
    """As many trials of `train`, each with a seed of its own."""
    return [
        Trial(f"{HERE}:train", settings=settings, seed=seed, labels={"half": seed % 2})
        for seed in range(count)
    ]


def train(context: Context) -> Result:
    """A linear classifier, trained by gradient steps on drawn points; goes on where it was."""
    settings, seed = context.trial.settings, context.trial.seed
    random = np.random.default_rng(seed)
    points = random.normal(size=(64, 8))
    goal = (points @ random.normal(size=8) > 0).astype(float)
    weights, begin, curve = np.zeros(8), 0, []
    checkpoint = context.work / "checkpoint.npz"
    if checkpoint.exists():
        with np.load(checkpoint) as kept:
            weights, begin, curve = kept["weights"], int(kept["step"]), kept["curve"].tolist()
    for step in range(begin, int(settings.get("steps", 5))):
        if context.stop():
            raise Stopped(f"at step {step}")
        guess = 1 / (1 + np.exp(-points @ weights))
        weights = weights - 0.5 * points.T @ (guess - goal) / len(goal)
        curve.append(float(np.mean((guess - goal) ** 2)))
        time.sleep(float(settings.get("seconds", 0)))
        part = context.work / "part.npz"
        np.savez(part, weights=weights, step=step + 1, curve=curve)
        part.replace(checkpoint)
        context.tell((step + 1) / int(settings.get("steps", 5)))
    right = float(np.mean((points @ weights > 0) == goal))
    made = context.work / "weights.txt"
    made.write_text("\n".join(map(repr, weights.tolist())))
    points_of_curve = [{"step": n + 1, "loss": loss} for n, loss in enumerate(curve)]
    return Result({"train": {"accuracy": right}}, points_of_curve, files={"weights": made})


def climb(context: Context) -> Result:
    """A hill with its top at x = 1, lower for what is bad; seen step by step, from below."""
    settings, curve = context.trial.settings, []
    if isinstance(settings["x"], str):
        raise RestackError("x is no number")
    bars = settings.get("prune") and Bars.from_json(settings["prune"])
    height = 1 - (settings["x"] - 1) ** 2 - (settings.get("kind") == "bad")
    height += context.trial.seed / 100
    for step in range(1, settings["steps"] + 1):
        value = height - 0.1 * (settings["steps"] - step)
        curve.append({"step": step, "epoch": step, "metrics": {"validation": {"accuracy": value}}})
        bar = bars and bars.missed(curve_of(curve, bars.metric))
        if bar is not None and step < settings["steps"]:
            return Result({PRUNED: {"step": step, "value": value, "bar": bar}}, curve)
    return Result({"validation": {"accuracy": height}}, curve)


def read(context: Context) -> Result:
    """Sums up the weights that other trials have kept."""
    found = [
        sum(map(float, (given.directory / "weights").read_text().split()))
        for given in context.inputs.values()
    ]
    return Result(payload={"sums": found})


def fail(context: Context) -> Result:
    """Fails as the settings say."""
    settings = context.trial.settings
    match settings["how"]:
        case "error":
            raise RestackError("nothing goes", hint="Let it be.")
        case "bug":
            return Result({"train": {"accuracy": [][0]}})
        case "memory":
            np.zeros((1 << 50,), dtype=np.uint8)
        case "full":
            with Path("/dev/full").open("w") as file:
                file.write("x" * 100_000)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "killed once":
            mark = Path(settings["mark"])
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        case "text":
            return Result({"train": {"accuracy": "high"}})  # type: ignore[dict-item]
    return Result({"train": {"accuracy": 1.0}})


def moment(context: Context) -> Result:
    """Says when it began and when it ended."""
    begun = time.monotonic()
    time.sleep(float(context.trial.settings["seconds"]))
    return Result(payload={"from": begun, "to": time.monotonic(), "threads": context.threads})


timed = moment
"""The same under a name of its own, for a kind that measures time."""
