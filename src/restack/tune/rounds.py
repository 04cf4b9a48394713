"""Tuning in rounds: apply a plan, tune, apply it again (Sajjad et al. drop a layer at a time)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from restack.data.splits import Split
from restack.errors import CheckpointError, RestackError
from restack.plan import Plan
from restack.tune.output import RESULTS
from restack.tune.recipe import Recipe
from restack.tune.tuned import Tuned
from restack.tune.tuning import tune

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Round:
    """One round; round 0 tunes the model as it is."""

    number: int
    plan: str | None
    depth: int | None
    parameters: int
    metrics: Mapping[str, Mapping[str, float]]
    place: Path | None
    """The directory of its model, where one was written."""
    tuned: Tuned | None
    """None where it was finished before this run."""

    def to_json(self) -> dict[str, Any]:
        return {
            "round": self.number,
            "plan": self.plan,
            "depth": self.depth,
            "parameters": self.parameters,
            "metrics": {name: dict(found) for name, found in self.metrics.items()},
            "output": None if self.place is None else str(self.place),
        }


def tune_in_rounds(
    model: Any,
    train: Split,
    validation: Mapping[str, Split],
    recipe: Recipe,
    *,
    plan: Plan | str,
    rounds: int,
    out: Path | None = None,
    resume: bool = False,
    **options: Any,
) -> tuple[Round, ...]:
    """Tune a model as it is, then `rounds` times re-stack what came out by `plan` and tune that.

    Each round has the whole recipe, warm-up and decay included. With `out` each leaves a model of
    its own, `OUT/round-0` and so on, and with `resume` those that are there are not done again.
    Other options are those of `tune`.
    """
    if isinstance(plan, Plan) and rounds > 1 and len(plan) != plan.depth:
        raise RestackError(
            f"the plan {plan} is for {plan.depth} layers and cannot be applied to its own outcome",
            hint="Give a verb, such as drop:top=1.",
        )
    if out is not None and Path(out).exists() and any(Path(out).iterdir()) and not resume:
        raise CheckpointError(
            f"The output {out} exists", hint="Give another name, or go on by --resume."
        )
    found: list[Round] = []
    source = model
    for number in range(rounds + 1):
        place = None if out is None else Path(out) / f"round-{number}"
        given = plan if number else None
        if place is not None and resume and (place / RESULTS).is_file():
            found.append(_finished(number, place))
        else:
            tuned = tune(
                source,
                train,
                validation,
                recipe,
                plan=given,
                out=place,
                resume=resume,
                **options,
            )
            found.append(
                Round(
                    number,
                    tuned.plan,
                    tuned.depth,
                    tuned.parameters,
                    tuned.metrics,
                    place,
                    tuned,
                )
            )
        last = found[-1]
        source = str(place) if place is not None else last.tuned.model  # type: ignore[union-attr]
    return tuple(found)


def _finished(number: int, place: Path) -> Round:
    """A round of which the output is there."""
    try:
        said = json.loads((place / RESULTS).read_text(encoding="utf-8"))
        return Round(
            number, said["plan"], said["depth"], said["parameters"], said["metrics"], place, None
        )
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{place / RESULTS} cannot be read", hint=f"Remove {place} to do this round again."
        ) from error


def rounds_table(rounds: Sequence[Round]) -> Table:
    """A row for each round."""
    from rich.table import Table

    table = Table("round", "plan", "layers", "parameters", box=None, pad_edge=False)
    names = [(split, metric) for split, found in rounds[0].metrics.items() for metric in found]
    for split, metric in names:
        table.add_column(f"{split} {metric}" if len(rounds[0].metrics) > 1 else metric)
    for each in rounds:
        scores = (f"{each.metrics[split][metric]:.4f}" for split, metric in names)
        table.add_row(
            str(each.number), each.plan or "", str(each.depth), f"{each.parameters:,}", *scores
        )
    return table
