"""Ensembles: the output probabilities of several tuned models, added up.

Members may have any depth and come from any model, as long as they answered the same examples; for
spans they must also have cut the texts into the same tokens. Kao et al. add up models of three
seeds, and the best three depths.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from restack.data.splits import Split, load_split, take
from restack.errors import DataError
from restack.tune.predictions import Predictions, Reading, log_probabilities

FOLDER = "predictions"
HALVES = ("first", "second")


def ensemble(members: Mapping[str, Predictions]) -> Predictions:
    """The mean of the members' probabilities, for a regression of their values.

    It is given as predictions of its own: its outputs are the logarithms (for multi-label the
    log-odds) of the mean probabilities, so that answers to spans are those with the largest product
    of summed probabilities of start and end.
    """
    from scipy.special import log_expit, log_softmax, logsumexp

    check_alike(members)
    models = list(members.values())
    first = models[0]
    count = np.log(len(models))
    if first.spans is not None:
        every = [log_probabilities(m.spans) for m in models if m.spans is not None]
        starts, ends = (logsumexp(every, axis=0) - count).astype(np.float32)
        return dataclasses.replace(
            first, spans=dataclasses.replace(first.spans, starts=starts, ends=ends)
        )
    logits = np.stack([m.logits for m in models if m.logits is not None]).astype(np.float64)
    if first.kind == "regression":
        joined = logits.mean(0)
    elif first.kind == "multilabel":
        joined = logsumexp(log_expit(logits), axis=0) - logsumexp(log_expit(-logits), axis=0)
    else:
        joined = logsumexp(log_softmax(logits, axis=2), axis=0) - count
    return dataclasses.replace(first, logits=joined.astype(np.float32))


def check_alike(members: Mapping[str, Predictions]) -> None:
    """Refuse members that did not answer the same questions."""
    if len(members) < 2:
        raise DataError("an ensemble has two members or more", hint="Name more runs.")
    (name, first), *others = members.items()
    for other, found in others:
        problem = None
        if found.task.name != first.task.name:
            problem = f"{found.task.name}, not {first.task.name}"
        elif (found.kind, found.task.labels) != (first.kind, first.task.labels):
            problem = f"{found.task.name} with other labels"
        elif found.fingerprint != first.fingerprint:
            problem = f"other examples ({found}, not those of {first})"
        elif _tokens(found) != _tokens(first):
            problem = "other tokens: the texts were cut otherwise, or by another tokenizer"
        if problem:
            raise DataError(
                f"{other} and {name} cannot be added up: {other} answered {problem}",
                hint="Members need the same task, split and limit; for spans also the same "
                "tokenizer, maximal length and stride.",
            )


def _tokens(found: Predictions) -> str | None:
    return None if found.spans is None else found.spans.tokens


@dataclass(frozen=True, slots=True)
class Choice:
    """The best members by one half of the examples, and how they do on the other half."""

    chosen_on: str
    """`first` or `second` half of a fixed random draw."""
    members: tuple[str, ...]
    scores: Mapping[str, float]
    all: Mapping[str, float]
    """All members together on the same half, to compare with."""
    single: Mapping[str, float]
    """The one best member on the same half."""
    examples: int


@dataclass(frozen=True, slots=True)
class EnsembleResult:
    """What members score alone, together, and chosen."""

    task: str
    split: str
    partial: str | None
    examples: int
    metric: str
    members: Mapping[str, Mapping[str, float]]
    all: Mapping[str, float]
    k: int | None
    choices: tuple[Choice, ...]
    """One for each half that the k best were chosen on; none if all or one are taken."""

    @property
    def mean(self) -> dict[str, float]:
        """What the chosen ones score on the half that they were not chosen on, both ways round."""
        names = self.choices[0].scores if self.choices else ()
        return {n: sum(c.scores[n] for c in self.choices) / len(self.choices) for n in names}

    def to_json(self) -> dict[str, Any]:
        """As `--json` has it."""
        return dataclasses.asdict(self) | {"mean": self.mean}


def judge(
    members: Mapping[str, Predictions], split: Split, *, k: int | None = None, seed: int = 0
) -> EnsembleResult:
    """Score members, all of them together, and the best `k` of them.

    The best are those that score highest alone, by the task's first metric, on a random half of the
    examples; they are scored on the other half. So no example has a say in its own score.
    """
    check_alike(members)
    if k is not None and not 1 <= k < len(members):
        raise DataError(
            f"the best {k} of {len(members)} members",
            hint=f"Choose from 1 to {len(members) - 1}, or all by leaving it out.",
        )
    if k is not None and len(split) < 4:
        raise DataError(f"{split}: too few examples to choose on one half of them")
    readings = {name: found.read(split) for name, found in members.items()}
    whole = ensemble(members).read(split)
    metric = split.task.metrics[0]
    choices = []
    if k is not None:
        halves = _halves(len(split), seed)
        joined: dict[tuple[str, ...], Reading] = {}
        for which, (own, other) in enumerate((halves, halves[::-1])):
            alone = {name: reading.scores(own)[metric] for name, reading in readings.items()}
            # of equals the one that was named first
            best = tuple(sorted(alone, key=lambda name: -alone[name])[:k])
            key = tuple(sorted(best))
            if key not in joined:
                some = {name: members[name] for name in key}
                joined[key] = ensemble(some).read(split) if k > 1 else readings[key[0]]
            choices.append(
                Choice(
                    HALVES[which],
                    best,
                    joined[key].scores(other),
                    whole.scores(other),
                    readings[best[0]].scores(other),
                    len(other),
                )
            )
    first = next(iter(members.values()))
    return EnsembleResult(
        split.task.name,
        split.name,
        first.partial,
        len(split),
        metric,
        {name: reading.scores() for name, reading in readings.items()},
        whole.scores(),
        k,
        tuple(choices),
    )


def _halves(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two random halves, each in the order of the examples; the same for the same seed."""
    order = np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable")
    return np.sort(order[: count // 2]), np.sort(order[count // 2 :])


def predictions_of(run: str | Path) -> dict[str, Path]:
    """The files of predictions in the output of a run, by split; or one such file itself."""
    place = Path(run).expanduser()
    if place.is_file():
        return {place.stem: place}
    if not place.is_dir():
        raise DataError(f"{run}: there is no such directory or file")
    found = {path.stem: path for path in sorted((place / FOLDER).glob("*.npz"))}
    if not found:
        raise DataError(
            f"{run} holds no {FOLDER}/<split>.npz",
            hint="Give outputs of `restack tune`; those of language modelling have no predictions.",
        )
    return found


def common_splits(runs: Sequence[str | Path], wanted: str | None = None) -> dict[str, list[Path]]:
    """The splits that all runs have predictions for, or the wanted one; with the files."""
    every = {str(run): predictions_of(run) for run in runs}
    names = [name for name in every[str(runs[0])] if all(name in f for f in every.values())]
    if wanted is not None:
        lacking = next((run for run, files in every.items() if wanted not in files), None)
        if lacking is not None:
            raise DataError(
                f"{lacking} has no predictions for the split {wanted!r}",
                hint=f"It has: {', '.join(every[lacking])}.",
            )
        names = [wanted]
    if not names:
        listed = "; ".join(f"{run}: {', '.join(files)}" for run, files in every.items())
        raise DataError("the runs have no split in common", hint=listed)
    return {name: [files[name] for files in every.values()] for name in names}


def split_for(found: Predictions, data: str | Path | None = None) -> Split:
    """The examples that predictions are for: those of the split that they name, or a part of it."""
    split = load_split(found.task, found.split, data)
    if split.fingerprint == found.fingerprint:
        return split
    place = {name: row for row, name in enumerate(split.ids)}
    rows = [place.get(name) for name in found.ids]
    kept = [row for row in rows if row is not None]
    part = take(split, kept, found.partial or "") if len(kept) == len(rows) else split
    if part.fingerprint != found.fingerprint:
        raise DataError(
            f"the data are not those that the predictions are for ({found})",
            hint="Give by --data what the runs were evaluated on.",
        )
    return part
