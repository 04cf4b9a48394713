"""The command that adds up the answers of tuned models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from restack.cli import output
from restack.cli.main import app
from restack.cli.surgery import Json

if TYPE_CHECKING:
    from rich.table import Table

    from restack.tune.ensemble import EnsembleResult

_PARTS = ("has_answer", "no_answer", "total", "threshold")
"""Of SQuAD's scores; --json has them."""


@app.command()
def ensemble(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Outputs of `restack tune`, two or more.")
    ],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="The data that the runs were evaluated on, if not from the Hub.",
        ),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(
            "--best",
            min=1,
            metavar="K",
            help="Also the best K: chosen on one half of the examples, scored on the other.",
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Which split; all that the runs share.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the halves.")] = 0,
    json: Json = False,
) -> None:
    """Add up the output probabilities of tuned models, and score them alone and together."""
    from restack.errors import DataError
    from restack.tune.ensemble import common_splits, judge, split_for
    from restack.tune.predictions import Predictions

    names = [str(run) for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise DataError(f"{twice} is named twice", hint="A member counts once; name other runs.")
    found = []
    for _, files in common_splits(runs, split).items():
        members = {name: Predictions.load(path) for name, path in zip(names, files, strict=True)}
        examples = split_for(next(iter(members.values())), data)
        found.append(judge(members, examples, k=best, seed=seed))
    if json:
        output.as_json([result.to_json() for result in found])
        return
    for result in found:
        part = f" ({result.partial})" if result.partial else ""
        output.note(f"{result.task}/{result.split}: {result.examples:,} examples{part}")
        output.show(_table(result))


def _table(result: EnsembleResult) -> Table:
    from rich.table import Table

    names = [name for name in result.all if not any(part in name for part in _PARTS)]
    table = Table(title=f"{result.task}/{result.split}, in per cent", title_justify="left")
    table.add_column("")
    table.add_column("examples", justify="right")
    for name in names:
        table.add_column(name, justify="right")

    def row(label: str, examples: int, scores: object) -> None:
        assert isinstance(scores, dict)
        table.add_row(label, f"{examples:,}", *(f"{100 * scores[n]:.2f}" for n in names))

    for name, scores in result.members.items():
        row(name, result.examples, scores)
    table.add_section()
    row(f"all {len(result.members)}, added up", result.examples, result.all)
    for choice in result.choices:
        table.add_section()
        other = "second" if choice.chosen_on == "first" else "first"
        row(
            f"best {result.k} by the {choice.chosen_on} half, on the {other}: "
            + ", ".join(choice.members),
            choice.examples,
            choice.scores,
        )
        row(f"all {len(result.members)}, on the same half", choice.examples, choice.all)
        row("the best one alone, on the same half", choice.examples, choice.single)
    if result.choices:
        table.add_section()
        row(f"best {result.k}, mean of both ways", result.examples, result.mean)
    return table
