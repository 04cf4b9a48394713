"""The command that runs trials: sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restack.cli import output
from restack.cli.main import app
from restack.cli.surgery import Json
from restack.errors import RestackError

if TYPE_CHECKING:
    from restack.sweep.definition import Sweep
    from restack.sweep.executor import Executor
    from restack.sweep.forecast import Forecast
    from restack.sweep.run import Standing, Summary
    from restack.sweep.search import Hunt


@app.command()
def sweep(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A sweep as TOML, or Python with `trials`.")
    ],
    store: Annotated[Path, typer.Option("--store", metavar="DIR", help="Where results go.")],
    workers: Annotated[
        int | None, typer.Option(min=1, help="Trials at once; by default one a core.")
    ] = None,
    executor: Annotated[str, typer.Option(metavar="local|ray", help="Where trials run.")] = "local",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "cpu",
    together: Annotated[
        int, typer.Option(min=1, metavar="N", help="Train so many seeds of one setting at once.")
    ] = 1,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run trials that failed before again.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and look ahead; run nothing.")
    ] = False,
    address: Annotated[
        str | None, typer.Option(metavar="RAY", help="A Ray cluster; without it a local one.")
    ] = None,
    cpus: Annotated[float | None, typer.Option(min=0, help="Ray: cores of each trial (1).")] = None,
    gpus: Annotated[float | None, typer.Option(min=0, help="Ray: GPUs of each trial (0).")] = None,
    memory: Annotated[
        float | None, typer.Option(min=0, metavar="GB", help="Ray: memory of each trial.")
    ] = None,
    pack: Annotated[
        bool | None,
        typer.Option("--pack/--spread", help="Ray: fill nodes one by one, or spread (default)."),
    ] = None,
    shared: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Ray: a directory that all nodes see, for checkpoints."),
    ] = None,
    json: Json = False,
) -> None:
    """Run all trials of a sweep that are not done yet. May be stopped and killed at any time."""
    from restack.sweep.definition import load

    if executor not in ("local", "ray"):
        raise RestackError(f"--executor {executor!r}", hint="say local or ray")
    of_ray = {"address": address, "cpus": cpus, "gpus": gpus, "memory": memory, "shared": shared}
    of_ray["pack"] = pack
    if executor == "local" and (given := [n for n, value in of_ray.items() if value is not None]):
        raise RestackError(
            f"--{given[0]} is for Ray alone", hint="Add --executor ray, or leave it out."
        )
    defined = load(file)
    if dry_run:
        _forecast(defined, store, workers, device, json)
        return
    from restack.sweep.run import run
    from restack.sweep.search import Hunts
    from restack.tune.interrupts import wishes

    hunts = Hunts.of(defined.searches)
    chosen: Executor | None = None
    if executor == "ray":
        from restack.sweep.ray_pool import RayPool, Resources

        asked = (1.0 if cpus is None else cpus, gpus or 0.0, int((memory or 0) * 1e9), bool(pack))
        chosen = RayPool(address, workers or 0, Resources(*asked), shared=shared)
    with wishes() as wish, _shown(json) as progress:
        summary = run(
            defined.trials,
            store,
            executor=chosen,
            workers=workers,
            device=device,
            together=together,
            retry_failed=retry_failed,
            more=hunts if hunts.all else None,
            progress=progress,
            stop=lambda: bool(wish),
        )
    if json:
        found = {"searches": [_found(hunt) for hunt in hunts.all]} if hunts.all else {}
        output.as_json(summary.to_json() | found)
    else:
        _report(summary, store)
        for hunt in hunts.all:
            _print_best(hunt)
    wish.obey()
    if summary.failed:
        raise typer.Exit(1)


def _forecast(defined: Sweep, store: Path, workers: int | None, device: str, json: bool) -> None:
    from restack.sweep import memory
    from restack.sweep.forecast import forecast
    from restack.sweep.search import expected
    from restack.sweep.store import FILE, Store

    count = workers or memory.cores()
    trials = [*defined.trials, *expected(defined.searches)]
    there = Store.open(store) if (store / FILE).exists() else None
    found = forecast(trials, there, count, device=device, note=output.note)
    if json:
        output.as_json(found.to_json())
        return
    kinds = ", ".join(f"{n} {kind}" for kind, n in found.kinds.items())
    print(f"trials    {found.trials} ({kinds}), {found.new} to run")
    print(f"time      {_expected(found)}")
    print(f"disk      {output.size(found.kept)} of results, {output.size(found.scratch)} meanwhile")


def _expected(found: Forecast) -> str:
    if not found.new:
        return "nothing is left to do"
    known = "not known" if found.seconds is None else f"about {duration(found.seconds)}"
    known += f" with {found.workers} worker{'s' if found.workers > 1 else ''}"
    return known + (f", and {found.unknown} trials of unknown time" if found.unknown else "")


class _Shown:
    """A bar on standard error, with a line above it for what is worth one."""

    def __init__(self, silent: bool) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.bar = Progress(
            TextColumn("trials"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[more]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=output.console(stderr=True),
            transient=True,
            disable=silent,
        )
        self.task = self.bar.add_task("trials", total=None, more="")

    def __enter__(self) -> Any:
        self.bar.start()
        return self.told

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def told(self, now: Standing) -> None:
        failed = f", {now.failed} failed" if now.failed else ""
        self.bar.update(
            self.task,
            total=now.total,
            completed=now.done + now.failed,
            more=f"{now.running} running{failed}",
        )
        if now.news:
            self.bar.console.print(now.news, markup=False)


def _shown(silent: bool) -> _Shown:
    return _Shown(silent)


def _report(summary: Summary, store: Path) -> None:
    print(
        f"{summary.done} of {summary.total} trials done, {summary.ran} of them now, "
        f"in {duration(summary.seconds)}"
    )
    if summary.failed:
        print(f"{summary.failed} failed: see `restack trials {store} --status failed`")
    if summary.left:
        print(f"{summary.left} left: the same command goes on")


def _found(hunt: Hunt) -> dict[str, Any]:
    """What a search has come to."""
    template, best = hunt.search.templates[0], hunt.best
    return {
        "name": hunt.search.name,
        "model": None if template.model is None else template.model.location,
        "task": template.task,
        "plan": template.plan,
        "size": None if template.data is None else template.data.size,
        "metric": hunt.search.metric,
        "best": None if best is None else best.to_json(),
        "suggestions": [one.to_json() for one in hunt.suggestions],
    }


def _print_best(hunt: Hunt) -> None:
    from collections import Counter

    found, best = _found(hunt), hunt.best
    of = " ".join(str(found[name]) for name in ("task", "plan") if found[name])
    states = Counter(one.state for one in hunt.suggestions)
    print(f"search    {found['name']} of {of}: {', '.join(f'{n} {s}' for s, n in states.items())}")
    if best is not None:
        settings = ", ".join(
            f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {value}"
            for name, value in best.settings.items()
        )
        seeds = f" (mean of {len(best.values)} seeds)" if len(best.values) > 1 else ""
        print(f"best      {found['metric']} {best.value:.4f}{seeds} with {settings}")


def duration(seconds: float) -> str:
    """Time for people.

    >>> duration(4.21), duration(75), duration(7300)
    ('4.2 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
