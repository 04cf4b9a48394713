"""What a sweep costs beside its trials: overhead, listing, workers, seeds trained together.

- overhead: trials of one worker; the time between them that is neither training nor evaluation,
  beside a trial of 30 seconds. The start of the worker is told apart: a sweep pays it once;
- listing: a store of 10,000 finished trials with three metrics each, read and summarised (a mean
  with its interval for each plan), in a process that is there, and by the command;
- workers: the same trials by one worker with all cores and by two with half of them each;
- together: eight seeds of one configuration in one process, one after the other and stacked.

The model is the first two layers of the demo model, 128 wide; nothing is downloaded.

    python bench/sweep.py
    python bench/sweep.py overhead together --check
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import (
    ROOT,
    Claim,
    add_options,
    alternate,
    finish,
    note,
    ratio,
    run_child,
    timed,
    work_directory,
)

sys.path.insert(0, str(ROOT / "src"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

if TYPE_CHECKING:
    from restack.sweep.trial import Trial

PARTS = ("overhead", "listing", "workers", "together")
STORED = 10_000
LONG = 30.0
"""Seconds of the trial that the overhead is set beside."""


def main() -> int:
    """Measure the parts that were asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)} (all)")
    parser.add_argument("--steps", type=int, default=60, help="updates of a trial (%(default)s)")
    add_options(parser, repeats=3)
    options = parser.parse_args()
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"there is no part {unknown[0]!r}; known: {', '.join(PARTS)}")
    texts, values, claims = [], {}, []
    parts: dict[str, Callable[..., Any]] = {
        "overhead": overhead,
        "listing": listing,
        "workers": workers,
        "together": together,
    }
    for name in options.parts or PARTS:
        note(name)
        with work_directory(None) as work:
            text, numbers, claim = parts[name](work, options)
        texts.append(text)
        values[name] = numbers
        claims += claim
    return finish(options, "\n".join(texts), values, claims)


def seeds(count: int, steps: int) -> list[Trial]:
    """Short trainings that differ in their seed."""
    from restack.sweep.definition import define

    recipe = {"steps": steps, "batch_size": 8, "rate": 1e-3, "evaluate_every": steps}
    defined = define(
        {
            "models": ["restack/demo-mlm"],
            "tasks": ["demo/sentiment"],
            "plans": ["0-1"],
            "sizes": [256],
            "subsample": 0,
            "limit": 64,
            "seeds": list(range(count)),
            "recipe": recipe,
        }
    )
    return list(defined.trials)


def overhead(work: Path, options: argparse.Namespace) -> tuple[str, Any, list[Claim]]:
    """Many trials of one worker, and what of their time is not theirs."""
    from restack.sweep.run import run
    from restack.sweep.store import Store

    started = {"at": 0.0}

    def seen(standing: Any) -> None:
        if standing.ran == 1 and not started["at"]:
            started["at"] = time.perf_counter()

    between, first = [], []
    for number in range(options.repeats):
        begun = time.perf_counter()
        started["at"] = 0.0
        done = run(seeds(11, options.steps), work / str(number), workers=1, progress=seen)
        rest = time.perf_counter() - started["at"]
        assert done.done == 11, done.failures
        with Store.open(work / str(number)) as store:
            rows = store.rows()
            own = [row.timings["train"] + row.timings["evaluate"] for row in rows]
        between.append((rest - sum(own[1:])) / 10)
        first.append(started["at"] - begun - own[0])
    each, start = statistics.median(between), statistics.median(first)
    return (
        f"overhead  {1000 * each:.0f} ms a trial, loading included (the first one: {start:.1f} s, "
        "with the start of its worker)",
        {"seconds": each, "first": start},
        [Claim(f"overhead beside a trial of {LONG:.0f} s", 100 * each / LONG, 2.0, "%")],
    )


def listing(work: Path, options: argparse.Namespace) -> tuple[str, Any, list[Claim]]:
    """Ten thousand trials read and summarised."""
    from restack.sweep.store import Store

    _fill(work / "store")

    def summary() -> int:
        with Store.open(work / "store") as store:
            return len(_summary(store))

    def command() -> None:
        code = "from restack.cli import main; main()"
        run_child(
            [sys.executable, "-c", code, "trials", work / "store", "--csv", work / "out.csv"],
            env={"PYTHONPATH": str(ROOT / "src")},
        )

    assert summary() == 25
    found = alternate(
        {"read": lambda: timed(summary), "command": lambda: timed(command)}, options.repeats
    )
    read, whole = (statistics.median(found[name]) for name in ("read", "command"))
    return (
        f"listing   {STORED:,} trials in {read:.2f} s; `restack trials STORE --csv FILE` takes "
        f"{whole:.2f} s with its start",
        {"seconds": read, "command": whole},
        [Claim(f"{STORED:,} trials listed and summarised", read, 1.0, "s")],
    )


def _fill(place: Path) -> None:
    from restack.sweep.kinds import Result
    from restack.sweep.store import Store
    from restack.sweep.trial import Data, Model, Trial

    trials = [
        Trial(
            "tune",
            Model("models/bert", fingerprint="f" * 32),
            f"0-{number % 25}",
            "sst2",
            Data(size=500, subsample=number),
            {"rate": 2e-5, "epochs": 3.0},
            seed=number,
            labels={"strategy": "top", "k": number % 25},
        )
        for number in range(STORED)
    ]
    with Store.open(place, write=True) as store:
        store._db.execute("PRAGMA synchronous = OFF")  # it is filled once, not measured
        store.add(trials)
        session = store.begin_session(1, "local")
        for number, trial in enumerate(trials):
            numbers = {"accuracy": number % 97 / 97, "f1": number % 89 / 89, "loss": 0.5}
            store.finish(
                trial.key,
                session,
                Result({"validation": numbers}, [{"step": 1, "loss": 0.7}]),
                seconds=3.0,
                files={"predictions/validation.npz": ("0" * 64, 1000)},
                environment={"torch": "2"},
            )


def _summary(store: Any) -> dict[str, Any]:
    from restack.stats import mean_interval

    by_plan: dict[str, list[float]] = {}
    for row in store.rows():
        by_plan.setdefault(row.trial.plan, []).append(row.metric("accuracy"))
    return {plan: mean_interval(values) for plan, values in by_plan.items()}


def workers(work: Path, options: argparse.Namespace) -> tuple[str, Any, list[Claim]]:
    """The same small trials by one worker and by two."""
    from restack.sweep.run import run

    trials = seeds(16, 4 * options.steps)
    number = 0

    def by(count: int) -> float:
        nonlocal number
        number += 1
        summary = run(trials, work / str(number), workers=count)
        assert summary.done == len(trials), summary.failures
        return summary.seconds

    found = alternate({"one": lambda: by(1), "two": lambda: by(2)}, max(1, options.repeats - 1))
    gain = ratio(found["one"], found["two"])
    return (
        f"workers   {len(trials)} trials: {statistics.median(found['one']):.1f} s by one, "
        f"{statistics.median(found['two']):.1f} s by two: {gain.text()} times as fast",
        {"one": found["one"], "two": found["two"], "gain": gain.to_json()},
        [Claim("time of 2 workers by that of 1", 1 / gain.median, 1 / 1.6)],
    )


def together(work: Path, options: argparse.Namespace) -> tuple[str, Any, list[Claim]]:
    """Eight seeds one after the other, and as one."""
    from restack.sweep.kinds import Context
    from restack.sweep.stacked import tune_together
    from restack.sweep.tuning import tune

    trials = seeds(8, options.steps)
    number = 0

    def contexts(count: int = 8) -> Sequence[Context]:
        nonlocal number
        number += 1
        places = [work / str(number) / str(trial.seed) for trial in trials[:count]]
        for place in places:
            place.mkdir(parents=True)
        return [Context(t, place) for t, place in zip(trials, places, strict=False)]

    def apart() -> float:
        return timed(lambda: [tune(context) for context in contexts()])

    def joined() -> float:
        return timed(lambda: tune_together(contexts()))

    tune(contexts(1)[0])  # libraries are imported, weights are written in float32
    tune_together(contexts(2))
    found = alternate({"apart": apart, "joined": joined}, options.repeats)
    gain = ratio(found["apart"], found["joined"])
    return (
        f"together  8 seeds of 2 layers, 128 wide, {options.steps} updates: "
        f"{statistics.median(found['apart']):.1f} s apart, "
        f"{statistics.median(found['joined']):.1f} s together: {gain.text()} times as fast",
        {"apart": found["apart"], "together": found["joined"], "gain": gain.to_json()},
        [Claim("time of 8 seeds together by that apart", 1 / gain.median, 1 / 3)],
    )


if __name__ == "__main__":
    sys.exit(main())
