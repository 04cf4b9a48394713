"""The first run: demo, a tour with a model and data that ship with restack."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restack.cli import output, surgery
from restack.cli.main import app
from restack.cli.surgery import Json
from restack.errors import RestackError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from restack.demo.trials import Trials
    from restack.plan import Plan
    from restack.studies.findings import Decoded, Findings
    from restack.sweep.rows import Row
    from restack.sweep.run import Standing
    from restack.sweep.store import Store
    from restack.sweep.trial import Trial

STORE, SMALL, PAGE = "store", "small", "report.html"
_STEPS = 9
_ROOM = 50_000_000  # bytes; what the demo leaves is less than half of that


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="Where everything goes.")
    ] = Path("restack-demo"),
    json: Json = False,
) -> None:
    """See all of it in three minutes, on a small model and data that ship with restack.

    May be stopped and killed at any time; the same command goes on. Needs no network.
    """
    from restack.cli.sweep import duration
    from restack.demo.trials import prepare

    begun = time.monotonic()
    _check(out)
    with _stoppable(), redirect_stdout(sys.stderr if json else sys.stdout):
        print(f"Everything goes to {out}. Ctrl-C stops it, and the same command goes on.")
        with _opened(out) as store:
            tour = Tour(out, store, prepare())
            tour.observe()
            tour.tune()
            plan = tour.write()
            found = tour.report()
        print(f"\nDone in {duration(time.monotonic() - begun)}.")
        print(f"The page, for a browser: {(out / PAGE).resolve()}")
    if json:
        small = {"directory": str(out / SMALL), "plan": plan}
        page = {"directory": str(out), "page": str(out / PAGE), "small": small}
        output.as_json(page | {"findings": found.to_json()})


@contextmanager
def _stoppable() -> Iterator[None]:
    """Say what a Ctrl-C leaves behind; the exit code is that of the signal."""
    try:
        yield
    except KeyboardInterrupt:
        output.note("\nstopped; the same command goes on from here")
        raise


def _opened(out: Path) -> Store:
    from restack.sweep.store import Store

    try:
        return Store.open(out / STORE, write=True)
    except RestackError as error:
        hint = f"{error.hint or ''}\n  Or begin anew: remove {out}, or name another place with -o."
        raise RestackError(error.message, hint=hint.strip()) from error


def _check(out: Path) -> None:
    """Refuse a place that holds other things, or has no room, before anything is done."""
    import shutil

    if out.exists() and not out.is_dir():
        raise RestackError(f"{out} is a file", hint="name a directory with -o")
    there = {path.name for path in out.iterdir()} if out.exists() else set()
    if others := sorted(name for name in there - {STORE, SMALL, PAGE} if name[0] != "."):
        raise RestackError(
            f"{out} is no directory of the demo: it holds {', '.join(others[:3])}",
            hint="name another one with -o",
        )
    parent = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    free = shutil.disk_usage(parent).free
    if free < _ROOM:
        raise RestackError(
            f"{parent} has {output.size(free)} of room, and the demo needs {output.size(_ROOM)}",
            hint="make room, or name another place with -o",
        )


@dataclass(slots=True)
class Tour:
    """The steps of the demo; each says why, and with which command one does it oneself."""

    out: Path
    store: Store
    trials: Trials
    keys: list[str] = field(default_factory=list)
    """Of the trials that belong to this tour: a store may hold those of an older version too."""
    step: int = 0

    def observe(self) -> None:
        """What can be seen without training."""
        from restack.demo.trials import LINES, MODEL, TEXTS

        read = f"{MODEL} --data {TEXTS} --limit {LINES}"
        self._say(
            "Where do the layers live?",
            f"show {MODEL}",
            "show MODEL",
            "A model of twelve layers that ships with restack; all that follows is about them.",
        )
        surgery.show(MODEL)
        self._say(
            "What does each layer know already?",
            f"lens {read} --decode",
            "lens MODEL --data TEXTS.txt --decode",
            "The head that the model was pretrained with reads the states behind every layer: how "
            "often does it name the token that stands there? Nothing is trained for it.",
        )
        self._run([self.trials.lens(), self.trials.scores()])
        self._show("table-lens", decoded=True)
        self._say(
            "How much does each layer matter?",
            f"score {read}",
            "score MODEL --data TEXTS.txt",
            "A cosine near 1 says that the layer hardly changes what it is given; the last column "
            "says how many tokens fewer the head names right when the layer is left out.",
        )
        self._show("table-scores")
        plans = self._plans()
        self._say(
            "Half of the layers left out, all of them repeated, half made fresh, all shuffled: "
            "what is left without training?",
            f"lens {read} {_written(list(plans.values())[1:])}",
            "lens MODEL --data TEXTS.txt --plan drop:top=6 --plan duplicate:each",
            "The first six drop six layers: at the top, every other one (even and odd), in the "
            "middle (symmetric), at the bottom, and those with the highest cosine (contribution).",
        )
        self._run([self.trials.untrained(plans)])
        self._show("table-untrained")

    def tune(self) -> None:
        """What a short fine-tuning brings back, and what is saved."""
        from restack.demo.trials import EXAMPLES, MODEL, RECIPE, SCORED, TASK, TIMED, WHOLE, best

        plans = self._plans()
        recipe = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in RECIPE.items())
        limits = f"--limit {EXAMPLES} --eval-limit {SCORED}"
        self._say(
            "And after a short fine-tuning?",
            f"tune {MODEL} --task {TASK} --plan drop:top=6 {limits} {recipe} -o DIR",
            "tune MODEL --task sst2 --plan drop:top=6 -o DIR",
            f"Each of the stacks learns to tell good opinions from bad ones, from {EXAMPLES:,} "
            f"sentences. One run each, scored on {SCORED}: a point or two may be chance.",
        )
        self._run(self.trials.tuned(plans))
        self._show("table-tuned")
        small = plans[str(best(self._rows("tuned")).labels["name"])]
        timed = [small, plans["duplicate"]]
        self._say(
            "What is saved?",
            f"bench {MODEL} {_written(timed)} --task {TASK} {TIMED.options}",
            "bench MODEL --plan drop:top=6",
            "The best of the small ones and the large one beside the whole model, whose time is 1.",
        )
        self._run([self.trials.cost([plans[WHOLE], *timed])], workers=1)
        self._show("table-cost")

    def write(self) -> str:
        """The best smaller model as a checkpoint; its plan."""
        from restack.demo.trials import MODEL, best

        plan, small = str(best(self._rows("tuned")).trial.plan), self.out / SMALL
        self._say(
            "The best of the small ones, as a checkpoint to train or to use.",
            f"edit {MODEL} {plan} -o {small} --force",
            f"edit MODEL {plan} -o DIR",
        )
        surgery.edit(MODEL, plan, small, force=True)
        self._say(
            "Is it what the plan says, bit for bit?",
            f"verify {small} --against {MODEL}",
            "verify DIR --against MODEL",
        )
        surgery.verify(str(small), MODEL)
        return plan

    def report(self) -> Findings:
        """The page; without the extra for charts it holds the tables alone."""
        from restack.report.charts import altair
        from restack.report.files import check_output, write_page

        self._say(
            "All of it on one page.",
            f"report {self.out / STORE} -o page.html",
            "report STORE -o page.html",
            "The demo writes a page of its own; the command gives the one that every store has.",
        )
        found = self._findings()
        try:
            altair()
        except RestackError as error:
            output.note(f"without charts: {error.message} ({error.hint}; then run the demo again)")
            found = replace(found, figures=(), notes=(*found.notes, f"{error.message}."))
        check_output(self.out / PAGE)
        write_page([found], self.out / PAGE)
        return found

    def _plans(self) -> dict[str, Plan]:
        (scores,) = self._rows("scores")
        return self.trials.plans(scores)

    def _say(self, title: str, command: str, own: str, how: str = "") -> None:
        """A heading, the command of this step, the one for other models, and how to read it."""
        self.step += 1
        print(f"\n[{self.step} of {_STEPS}] {title}")
        print(f"$ restack {command}")
        print(f"  with a model of yours: restack {own}\n", flush=True)
        if how:
            output.show(how, "")

    def _run(self, trials: Sequence[Trial], workers: int | None = None) -> None:
        """Run what is not done yet; a wish to stop is obeyed when it is saved."""
        from restack.sweep.run import run
        from restack.tune.interrupts import wishes

        self.keys += [trial.key for trial in trials]
        with wishes() as wish, output.stage_progress() as progress:

            def told(now: Standing) -> None:
                progress("trials", now.done + now.failed, now.total)
                if now.news and not wish:
                    output.note(now.news)

            done = run(
                trials,
                self.store,
                workers=workers,
                retry_failed=True,
                progress=told,
                stop=lambda: bool(wish),
            )
        wish.obey()
        if done.failed:
            raise RestackError(
                f"{done.failed} of {done.total} trials failed: {done.failures[0][1]}",
                hint="the same command tries them again",
            )

    def _rows(self, part: str | None = None) -> list[Row]:
        filters: dict[str, Any] = {} if part is None else {"part": part}
        return self.store.rows(key=self.keys, **filters)

    def _findings(self) -> Findings:
        from restack.demo.findings import findings

        return findings(self._rows())

    def _show(self, key: str, *, decoded: bool = False) -> None:
        from restack.cli.study import _table

        found = self._findings()
        output.show(*(_table(table) for table in found.tables if table.key == key))
        for text in found.decoded if decoded else ():
            output.show(
                "", "One sentence as each layer decodes it, wrong tokens in <brackets>:", ""
            )
            output.show(_lines(text))


def _written(plans: Iterable[Plan]) -> str:
    return " ".join(f"--plan {plan}" for plan in plans)


def _lines(text: Decoded) -> RenderableType:
    """A sentence as each layer decodes it; layers that decode it alike share a line."""
    from rich.markup import escape
    from rich.table import Table

    lines = Table.grid(padding=(0, 2))
    lines.add_column(justify="right", no_wrap=True)
    lines.add_row("text", escape(" ".join(text.tokens)))
    for _, alike in groupby(text.layers, key=lambda row: row.tokens):
        first, *others = alike
        shown = zip(first.tokens, first.right, strict=True)
        words = " ".join(token if right else f"<{token}>" for token, right in shown)
        layers = f"{first.layer}-{others[-1].layer}" if others else str(first.layer)
        lines.add_row(layers, escape(words))
    return lines
