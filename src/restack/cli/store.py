"""Commands about the store of a sweep: status, trials, gc."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restack.cli import output
from restack.cli.main import app
from restack.cli.surgery import Json
from restack.cli.sweep import duration
from restack.errors import RestackError

if TYPE_CHECKING:
    from rich.table import Table

    from restack.sweep.rows import Row
    from restack.sweep.status import Status
    from restack.sweep.store import Store

StoreArgument = Annotated[
    Path, typer.Argument(metavar="STORE", help="The directory of a store, or a copied store file.")
]
_NUMBERS = 4  # metrics that a listing has room for
_WATCH_SECONDS = 2.0


@app.command()
def status(
    store: StoreArgument,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on showing it until the sweep ends.")
    ] = False,
    json: Json = False,
) -> None:
    """How a sweep stands: running, done, failed, time left."""
    from restack.sweep.status import status as look
    from restack.sweep.store import Store

    with Store.open(store) as opened:
        found = look(opened)
        if json:
            output.as_json(found.to_json())
            return
        if not watch:
            output.show(_status_table(found))
            return
        from rich.live import Live

        with Live(_status_table(found), console=output.console()) as live:
            while found.driver is not None:
                time.sleep(_WATCH_SECONDS)
                found = look(opened)
                live.update(_status_table(found))


def _status_table(found: Status) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    counts = ", ".join(f"{n} {name}" for name, n in found.counts.items() if n) or "empty"
    table.add_row("trials", f"{sum(found.counts.values())}: {counts}")
    if found.driver is None:
        table.add_row("driver", "none at work")
    else:
        driver = found.driver
        table.add_row(
            "driver",
            f"process {driver['pid']} on {driver['host']}, {driver['workers']} workers "
            f"({driver['executor']}), since {driver['started']}",
        )
        left = found.seconds_left
        table.add_row("left", "not known yet" if left is None else f"about {duration(left)}")
    for one in found.running:
        since = "" if one["seconds"] is None else f", for {duration(one['seconds'])}"
        table.add_row("running", f"{one['key'][:10]}  {one['what']}  {one['part'] or 0:.0%}{since}")
    for reason, count in list(found.failures.items())[:5]:
        table.add_row("failed", f"{count} x {reason}")
    return table


@app.command()
def trials(
    store: StoreArgument,
    status: Annotated[str | None, typer.Option(help="pending, running, done or failed.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="NAME=VALUE",
            help="kind, model, plan, task, size, seed, key or a label; values with commas are "
            "any of them. Repeatable.",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="All about one trial: its key, or how that begins.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write CSV; - prints it.")
    ] = None,
    parquet: Annotated[Path | None, typer.Option(metavar="FILE", help="Write Parquet.")] = None,
    json: Json = False,
) -> None:
    """List the trials of a store with their numbers."""
    from restack.sweep.rows import STATUSES
    from restack.sweep.store import Store

    if status is not None and status not in STATUSES:
        raise RestackError(f"--status {status!r}", hint=f"say {', '.join(STATUSES)}")
    if (csv is not None) + (parquet is not None) + json > 1:
        raise RestackError("--json, --csv and --parquet exclude each other", hint="choose one")
    with Store.open(store) as opened:
        if key is not None:
            row = opened.row(key)
            if row is None:
                raise RestackError(f"{store} has no trial {key}")
            output.as_json(_all_about(row))
            return
        filters = _filters(where or [])
        if status is not None:
            filters["status"] = status
        rows = opened.rows(once=True, **filters)
        if not rows:
            _check_names(opened, filters)
        if json:
            output.as_json([row.to_json() for row in rows])
        elif csv is not None:
            _write_csv(rows, csv)
        elif parquet is not None:
            _write_parquet(rows, parquet)
        else:
            output.show(_table(rows))


def _filters(where: list[str]) -> dict[str, Any]:
    import json

    found: dict[str, Any] = {}
    for text in where:
        name, equals, values = text.partition("=")
        if not equals or not name:
            raise RestackError(f"--where {text!r}", hint="write NAME=VALUE, such as task=rte")
        options: list[Any] = []
        for value in [values, *(values.split(",") if "," in values else ())]:
            options.append(value)
            try:
                options.append(json.loads(value))
            except ValueError:
                continue
        found[name] = options
    return found


def _check_names(store: Store, names: Iterable[str]) -> None:
    """Nothing was found: refuse names that no trial could be found by."""
    from restack.sweep.rows import FIELDS

    known = [*FIELDS, *sorted({name for row in store.rows() for name in row.labels})]
    if unknown := [name for name in names if name not in known]:
        raise RestackError(
            f"trials have no {unknown[0]!r}",
            hint=f"Known: {', '.join(dict.fromkeys(known))}.",
        )


def _all_about(row: Row) -> dict[str, Any]:
    return row.to_json() | {
        "timings": row.timings,
        "environment": row.environment,
        "history": list(row.history),
        "artefacts": [
            {"name": a.name, "path": str(a.path), "sha256": a.sha256, "bytes": a.nbytes}
            for a in row.artefacts
        ],
        "curve": list(row.curve),
        "payload": row.payload,
    }


def _table(rows: list[Row]) -> Table:
    from rich.table import Table

    from restack.sweep.status import in_words

    names = list(
        dict.fromkeys(
            f"{s}/{n}" for row in rows for s, values in row.metrics.items() for n in values
        )
    )[:_NUMBERS]
    table = Table(box=None, pad_edge=False)
    for column in ("key", "status", "trial"):
        table.add_column(column)
    for column in (*names, "time", "attempts"):
        table.add_column(column, justify="right")
    for row in rows:
        flat = {f"{s}/{n}": v for s, values in row.metrics.items() for n, v in values.items()}
        numbers = [f"{flat[name]:.4f}" if name in flat else "" for name in names]
        took = "" if row.seconds is None else duration(row.seconds)
        told = in_words(row) + (f"\n  {row.error.splitlines()[0]}" if row.error else "")
        table.add_row(row.key[:10], row.status, told, *numbers, took, str(row.attempts))
    return table


def _write_csv(rows: list[Row], place: Path) -> None:
    import csv
    import io

    from restack.sweep.frames import columns, records

    found = columns(list(records(rows, "trials")))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(found)
    writer.writerows(zip(*found.values(), strict=True))
    if str(place) == "-":
        print(text.getvalue(), end="")
    else:
        place.write_text(text.getvalue())


def _write_parquet(rows: list[Row], place: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    from restack.sweep.frames import columns, records

    found = columns(list(records(rows, "trials")))
    plain = {
        # labels of one name may be numbers in one study and text in another
        name: [None if v is None else str(v) for v in values] if _mixed(values) else values
        for name, values in found.items()
    }
    part = place.with_name(f".{place.name}.part")
    pyarrow.parquet.write_table(pyarrow.table(plain), part)
    part.replace(place)


def _mixed(values: list[Any]) -> bool:
    return len({type(value) for value in values if value is not None}) > 1


@app.command()
def gc(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The directory of a store.")],
    only: Annotated[
        list[Path] | None,
        typer.Option(
            "--only",
            metavar="FILE",
            help="Remove trials that this sweep does not define. Repeatable.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed.")] = False,
    json: Json = False,
) -> None:
    """Remove what lies in a store and no trial needs."""
    from restack.sweep.definition import load
    from restack.sweep.garbage import collect
    from restack.sweep.search import Hunts
    from restack.sweep.store import FILE, Store

    if not (store / FILE).exists():
        raise RestackError(f"there is no store in {store}")
    defined = [load(file) for file in only or ()]
    with Store.open(store, write=True) as opened:
        wanted = None
        if only:
            wanted = {trial.key for one in defined for trial in one.trials}
            for one in defined:
                wanted |= Hunts.of(one.searches).known(opened)
        found = collect(opened, wanted=wanted, dry_run=dry_run)
    if json:
        output.as_json(found.to_json() | {"removed": not dry_run})
        return
    done = "would be removed" if dry_run else "removed"
    print(f"{len(found.directories)} leftovers, {output.size(found.nbytes)}, {done}")
    if only:
        print(f"{len(found.trials)} trials {done}")
