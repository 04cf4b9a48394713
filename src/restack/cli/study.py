"""The command that redoes a paper: study."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restack.cli import output
from restack.cli.main import app
from restack.cli.surgery import Json, Revision, StackOption
from restack.errors import RestackError

if TYPE_CHECKING:
    from restack.studies.findings import Findings, Table, Verdict
    from restack.studies.known import Request
    from restack.sweep.executor import Executor
    from restack.sweep.run import Summary
    from restack.sweep.trial import Data, Trial


@app.command()
def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="duplicate, drop, reinit; shortgpt, gromov, shortened, upscale, repeat.",
        ),
    ],
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...", help="Directories or Hub ids; for --scale paper, its own."
        ),
    ] = None,
    store: Annotated[
        Path | None, typer.Option("--store", metavar="DIR", help="Where results go.")
    ] = None,
    scale: Annotated[str, typer.Option(metavar="smoke|small|paper", help="How large.")] = "small",
    tasks: Annotated[
        str | None, typer.Option(help="Only these, with commas between: sst2,cola.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="DIR", help="A directory with TASK/SPLIT files; else the Hub."
        ),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            "--split",
            metavar="TASK=TRAIN,VALIDATION",
            help="What the splits of a task are called, if not so. Repeatable.",
        ),
    ] = None,
    texts: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Texts without labels: a file, or a directory."),
    ] = None,
    init: Annotated[
        str,
        typer.Option(help="reinit: how fresh weights start (paper, released, standard, family)."),
    ] = "paper",
    precision: Annotated[
        str | None, typer.Option(metavar="fp32|bf16|fp16", help="The arithmetic of training.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Trials at once; by default one a core.")
    ] = None,
    executor: Annotated[str, typer.Option(metavar="local|ray", help="Where trials run.")] = "local",
    address: Annotated[
        str | None, typer.Option(metavar="RAY", help="A Ray cluster; without it a local one.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "cpu",
    together: Annotated[
        int, typer.Option(min=1, metavar="N", help="Train so many seeds of one setting at once.")
    ] = 1,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run trials that failed before again.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it takes; run nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Begin at the scale of the paper without asking.")
    ] = False,
    stack: StackOption = None,
    revision: Revision = None,
    json: Json = False,
) -> None:
    """Redo a paper on any model: run its trials, and say which of its claims are seen.

    May be stopped at any time; the same command goes on. Finished trials are shared between scales.
    """
    from restack.studies.known import FINDINGS, definition, unknown

    if name not in FINDINGS:
        raise unknown(name)
    if executor not in ("local", "ray"):
        raise RestackError(f"--executor {executor!r}", hint="say local or ray")
    if store is None:
        raise RestackError("no store is given", hint="Say --store DIR: results go there.")
    request = _request(
        name,
        models or [],
        scale,
        tasks,
        data,
        split or [],
        texts,
        init,
        precision,
        stack,
        revision,
    )
    definition(request)  # what cannot be laid out is said before there is a store
    asked = scale == "paper" or dry_run
    if asked:
        _foretell(request, store, workers, device, json and dry_run)
        if dry_run:
            return
        if not yes and not _agreed():
            raise RestackError(
                "a study at the scale of the paper takes long and was not confirmed",
                hint="Say --yes to begin.",
            )
    summary, found = _run(
        request,
        store,
        lambda: _executor(executor, address, workers),
        workers,
        device,
        together,
        retry_failed,
        silent=json,
    )
    if json:
        output.as_json({"run": summary.to_json(), "findings": found.to_json()})
    else:
        _print(summary, found, store)
    if summary.failed:
        raise typer.Exit(1)


def _request(
    name: str,
    models: list[str],
    scale: str,
    tasks: str | None,
    data: str | None,
    split: list[str],
    texts: str | None,
    init: str,
    precision: str | None,
    stack: str | None,
    revision: str | None,
) -> Request:
    """What is asked for, with all models and data identified; anything wrong is said now."""
    from restack.studies import scale as scales
    from restack.studies.known import Request, papers_own
    from restack.studies.laying import examples_for
    from restack.studies.subjects import describe, distinct
    from restack.studies.successors import NAMES
    from restack.surgery.fresh import FAMILY, choose
    from restack.sweep.identify import identify_data, identify_model
    from restack.sweep.trial import Data
    from restack.tune.recipe import Recipe

    if init != FAMILY:
        choose(init)
    if precision is not None:
        Recipe.from_json({"precision": precision})
    if not models and scale == "paper":
        models = [subject.model.location for subject in papers_own(name)]
    if not models:
        own = ", or say --scale paper" if papers_own(name) else ""
        raise RestackError("no model is named", hint=f"Name one or more{own}.")
    described = [describe(model, stack=stack, revision=revision) for model in models]
    subjects = distinct([replace(s, model=identify_model(s.model)) for s in described])
    sizes: Any = {"duplicate": scales.DUPLICATE, "drop": scales.DROP, "reinit": scales.REINIT}
    size = scales.scale_of(sizes.get(name, scales.SUCCESSORS), scale)
    named = _tasks(tasks)
    if texts is not None and name in ("drop", "reinit"):
        raise RestackError(f"the study {name} needs tasks, not texts", hint="Say --data DIR.")
    given = _texts(texts)
    if name in NAMES:
        return Request(name, subjects, scale, texts=given or _texts(data))
    if given is not None and named is None:
        return Request(name, subjects, scale, texts=given, precision=precision)
    chosen = named or tuple(size.tasks)
    splits = _splits(split)
    ready: dict[str, Data] = {}
    for task in dict.fromkeys([*chosen, *([size.cost_task] if name == "drop" else [])]):
        train, validation = splits.get(task, ("train", "validation"))
        plain = Data(data, train, (validation,), size=examples_for(size.tasks, task).train)
        ready[task] = replace(identify_data(task, plain), size=None)
    return Request(name, subjects, scale, named, ready, given, init, precision)


def _texts(source: str | None) -> Data | None:
    from restack.data.texts import load_texts
    from restack.sweep.trial import Data

    if source is None:
        return None
    folder = Path(source).is_dir()
    found = load_texts(source, split="validation" if folder else None)
    return Data(source, None, ("validation" if folder else "texts",), fingerprint=found.fingerprint)


def _tasks(names: str | None) -> tuple[str, ...] | None:
    from restack.data.glue import get_task

    if names is None:
        return None
    return tuple(get_task(part.strip()).name for part in names.split(","))


def _splits(options: list[str]) -> dict[str, tuple[str, str]]:
    from restack.data.glue import get_task

    found = {}
    for text in options:
        task, equals, both = text.partition("=")
        train, comma, validation = both.partition(",")
        if not (equals and comma and train and validation):
            raise RestackError(f"--split {text!r}", hint="write TASK=TRAIN,VALIDATION")
        found[get_task(task).name] = (train, validation)
    return found


def _foretell(request: Request, store: Path, workers: int | None, device: str, json: bool) -> None:
    """Print what is to come, before anything is run."""
    from restack.cli.sweep import _expected
    from restack.studies.known import definition
    from restack.sweep import memory
    from restack.sweep.forecast import forecast
    from restack.sweep.store import FILE, Store

    there = Store.open(store) if (store / FILE).exists() else None
    rows = there.rows(study=request.study) if there is not None else []
    trials = definition(request, rows)
    found = forecast(trials, there, workers or memory.cores(), device=device, note=output.note)
    if json:
        output.as_json(found.to_json())
        return
    kinds = ", ".join(f"{n} {kind}" for kind, n in found.kinds.items())
    output.note(f"trials    {found.trials} ({kinds}), {found.new} to run")
    output.note(f"time      {_expected(found)}")
    output.note(f"disk      {output.size(found.kept)}, {output.size(found.scratch)} meanwhile")


def _agreed() -> bool:
    return sys.stdin.isatty() and typer.confirm("Begin?", err=True)


def _executor(name: str, address: str | None, workers: int | None) -> Executor | None:
    if name == "local":
        return None
    from restack.sweep.ray_pool import RayPool, Resources

    return RayPool(address, workers or 0, Resources())


def _run(
    request: Request,
    store: Path,
    executor: Callable[[], Executor | None],
    workers: int | None,
    device: str,
    together: int,
    retry_failed: bool,
    *,
    silent: bool,
) -> tuple[Summary, Findings]:
    """Run what can be laid out, until what was measured asks for nothing more."""
    from restack.cli.sweep import _shown
    from restack.studies.known import FINDINGS, definition
    from restack.sweep.run import run
    from restack.sweep.store import Store
    from restack.tune.interrupts import wishes

    with Store.open(store, write=True) as opened, wishes() as wish, _shown(silent) as progress:
        before: set[tuple[str, str]] = set()
        while True:
            rows = opened.rows(study=request.study)
            trials = definition(request, rows)
            known = {(trial.key, str(trial.labels)) for trial in trials}
            if known == before:
                break
            before = known
            summary = run(
                trials,
                opened,
                executor=executor(),
                workers=workers,
                device=device,
                together=together,
                retry_failed=retry_failed,
                progress=progress,
                stop=lambda: bool(wish),
            )
            if wish:
                break
        rows = _of_request(opened.rows(study=request.study), trials)
        found = FINDINGS[request.study](rows)
    wish.obey("stopped; the same command goes on from here")
    return summary, found


def _of_request(rows: list[Any], trials: list[Trial]) -> list[Any]:
    """The rows of the trials at hand: a store may hold other models and scales too."""
    wanted = {(trial.key, str(sorted(trial.labels.items()))) for trial in trials}
    return [row for row in rows if (row.key, str(sorted(row.labels.items()))) in wanted]


def _print(summary: Summary, found: Findings, store: Path) -> None:
    from rich.table import Table as Shown

    from restack.cli.sweep import duration

    items: list[Any] = [f"{found.title}. {found.lead}", ""]
    items += [f"{line.value}  {line.text}" for line in found.summary]
    verdicts = Shown("claim", "verdict", "numbers", box=None, show_lines=False)
    verdicts.columns[2].overflow = "fold"
    several = len({verdict.subject for verdict in found.verdicts}) > 1
    for verdict in found.verdicts:
        verdicts.add_row(*_verdict(verdict, several))
    items += ["", *(_table(table) for table in found.tables if not table.long), verdicts, ""]
    items += [f"note: {note}" for note in found.notes]
    output.show(*items)
    print(
        f"{summary.done} of {summary.total} trials done, {summary.ran} of them now, in "
        f"{duration(summary.seconds)}; results are in {store}"
    )


def _verdict(verdict: Verdict, several: bool) -> tuple[str, str, str]:
    published = f"  [paper: {verdict.published}]" if verdict.published else ""
    subject = f"{verdict.subject}: " if several else ""
    return verdict.statement, verdict.status, _plain(f"{subject}{verdict.why}{published}")


def _plain(text: str) -> Any:
    from rich.text import Text

    return Text(text)


def _table(table: Table) -> Any:
    from rich.table import Table as Shown

    from restack.report import words

    shown = Shown(title=table.title, title_justify="left", box=None)
    digits = []
    for place, column in enumerate(table.columns):
        justify: Any = "right" if column.kind == "number" else "left"
        shown.add_column(words.column_title(column), justify=justify)
        digits.append(words.column_digits(column, [row[place] for row in table.rows]))
    for row in table.rows:
        cells = []
        for value, column, places in zip(row, table.columns, digits, strict=True):
            parts = (
                words.entry_text(value, column, places),
                words.entry_spread(value, column, places),
            )
            cells.append(_plain(" ".join(filter(None, parts))))
        shown.add_row(*cells)
    return shown
