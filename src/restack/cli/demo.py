"""The first run: demo, a tour with a model and data that ship with restack."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restack.cli import output, surgery
from restack.cli.main import app
from restack.cli.surgery import Json
from restack.errors import RestackError

if TYPE_CHECKING:
    from restack.demo.trials import Trials
    from restack.plan import Plan
    from restack.studies.findings import Decoded, Findings
    from restack.sweep.rows import Row
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
    from restack.sweep.store import Store

    begun = time.monotonic()
    _check(out)
    with redirect_stdout(sys.stderr if json else sys.stdout):
        print(f"Everything goes to {out}. Ctrl-C stops it, and the same command goes on.")
        with Store.open(out / STORE, write=True) as store:
            tour = Tour(out, store, prepare())
            tour.observe()
            tour.tune()
            plan = tour.write()
            found = tour.report()
        print(f"\nDone in {duration(time.monotonic() - begun)}.")
        print(f"The page: {(out / PAGE).resolve()}")
    if json:
        small = {"directory": str(out / SMALL), "plan": plan}
        page = {"directory": str(out), "page": str(out / PAGE), "small": small}
        output.as_json(page | {"findings": found.to_json()})


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

        self._say("Where do the layers live?", f"show {MODEL}", "show MODEL")
        surgery.show(MODEL)
        self._say(
            "What does each layer know already, read by the model's own head?",
            f"lens {MODEL} --data {TEXTS} --limit {LINES} --decode",
            "lens MODEL --data TEXTS.txt --decode",
        )
        self._run([self.trials.lens(), self.trials.scores()])
        self._show("table-lens", decoded=True)
        self._say(
            "How much does each layer matter?",
            f"score {MODEL} --data {TEXTS} --limit {LINES}",
            "score MODEL --data TEXTS.txt",
        )
        self._show("table-scores")
        self._say(
            "Six layers left out by six strategies, and others: what is left without training?",
            f"lens {MODEL} --data {TEXTS} --limit {LINES} --plan drop:top=6 --plan duplicate:each",
            "lens MODEL --data TEXTS.txt --plan PLAN --plan PLAN",
        )
        self._run([self.trials.untrained(self._plans())])
        self._show("table-untrained")

    def tune(self) -> None:
        """What a short fine-tuning brings back, and what is saved."""
        from restack.demo.trials import EXAMPLES, MODEL, RECIPE, TASK, WHOLE, best

        plans = self._plans()
        recipe = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in RECIPE.items())
        self._say(
            "And after a short fine-tuning?",
            f"tune {MODEL} --task {TASK} --plan drop:top=6 --limit {EXAMPLES} {recipe} -o DIR",
            "tune MODEL --task sst2 --plan drop:top=6 -o DIR",
        )
        self._run(self.trials.tuned(plans))
        self._show("table-tuned")
        small = plans[str(best(self._rows("tuned")).labels["name"])]
        self._say(
            "What is saved?",
            f"bench {MODEL} --plan {small} --plan duplicate:each --task {TASK}",
            "bench MODEL --plan drop:top=6",
        )
        self._run([self.trials.cost([plans[WHOLE], small, plans["duplicate"]])], workers=1)
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

    def _say(self, why: str, command: str, own: str) -> None:
        self.step += 1
        print(f"\n[{self.step} of {_STEPS}] {why}")
        print(f"$ restack {command}")
        print(f"  with a model of yours: restack {own}\n", flush=True)

    def _run(self, trials: Sequence[Trial], workers: int | None = None) -> None:
        """Run what is not done yet; a wish to stop is obeyed when it is saved."""
        from restack.cli.sweep import _shown
        from restack.sweep.run import run
        from restack.tune.interrupts import wishes

        self.keys += [trial.key for trial in trials]
        with wishes() as wish, _shown(False) as progress:
            done = run(
                trials,
                self.store,
                workers=workers,
                retry_failed=True,
                progress=progress,
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
            output.show("", *_lines(text))


def _lines(text: Decoded) -> list[str]:
    """A sentence as each layer decodes it, wrong tokens in brackets."""
    from rich.markup import escape

    lines = [f"      {' '.join(text.tokens)}"]
    for row in text.layers:
        shown = zip(row.tokens, row.right, strict=True)
        words = " ".join(token if right else f"<{token}>" for token, right in shown)
        lines.append(f"{row.layer:>4}  {words}")
    return [escape(line) for line in lines]
