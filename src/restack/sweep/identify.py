"""What tells models and data from others: hashes of content; moving files changes no trial."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from restack.anatomy.checkpoint import open_checkpoint
from restack.anatomy.checkpoints import anatomy
from restack.anatomy.fingerprint import fingerprint as header_digest
from restack.anatomy.fingerprint import sampled_digest
from restack.data import cache as data_cache
from restack.data.glue import get_task
from restack.data.splits import Split, load_split, subsample
from restack.data.tasks import Task
from restack.errors import DataError, RestackError
from restack.sweep.trial import Data, Model, Trial

_MOVED = "It was changed since the sweep was read, or differs on the machine that runs the trial."


def identify_model(model: Model) -> Model:
    """The model with its fingerprint (of a directory) or its commit (of the Hub)."""
    if model.trial is not None or model.fingerprint is not None:
        return model
    fingerprint, commit = _weights(model.location, model.revision, _stamp(model.location))
    if fingerprint is None:
        return replace(model, revision=commit)
    return replace(model, fingerprint=fingerprint)


def check_model(model: Model) -> None:
    """Refuse what lies at the place of a model if its content is not the model's."""
    if model.fingerprint is None:
        return
    found = identify_model(replace(model, fingerprint=None)).fingerprint
    if found != model.fingerprint:
        raise RestackError(f"{model.location} is not the model that this trial is of", hint=_MOVED)


def depth_of(model: Model) -> int:
    """How many layers the stack of a model has; reads headers only."""
    return _depth(model.location, model.revision, model.stack, _stamp(model.location))


def identify_data(task: str, data: Data) -> Data:
    """The data with the fingerprint of all splits that it names."""
    if data.fingerprint is not None:
        return data
    names = [name for name in (data.train, *data.validation) if name is not None]
    found = [_split(task, data, name) for name in names]
    if data.train is not None and data.size is not None and data.size > len(found[0]):
        raise DataError(
            f"{data.size:,} examples are wanted, and {found[0]} has {len(found[0]):,}",
            hint="Leave the size out to take all of them.",
        )
    return replace(data, fingerprint=data_cache.fingerprint([s.fingerprint for s in found]))


def task_of(task: str, data: Data | None) -> Task:
    """The task by its name, or as it was defined by a file."""
    if data is not None and data.own is not None:
        own = dict(data.own)
        return Task.from_file(own.pop("path"), **own)
    return get_task(task)


def splits_of(task: str, data: Data) -> tuple[Split | None, dict[str, Split]]:
    """The training split, drawn as `data` says, and the validation splits by name.

    Refuses examples that are not those that a trial was defined for.
    """
    if data.fingerprint is not None:
        found = identify_data(task, replace(data, fingerprint=None)).fingerprint
        if found != data.fingerprint:
            where = (data.own or {}).get("path") or data.source or "the Hub"
            raise DataError(f"{where} has other examples than this trial is of", hint=_MOVED)
    train = None
    if data.train is not None:
        train = _split(task, data, data.train)
        if data.size is not None and data.size < len(train):
            train = subsample(train, data.size, data.subsample or 0)
    scored = [_split(task, data, name, data.limit) for name in data.validation]
    return train, {split.name: split for split in scored}


def identify(trials: Iterable[Trial]) -> list[Trial]:
    """All trials with what tells their models and data from others."""
    return [
        replace(
            trial,
            model=None if trial.model is None else identify_model(trial.model),
            data=trial.data
            if trial.data is None or trial.task is None
            else identify_data(trial.task, trial.data),
        )
        for trial in trials
    ]


def _split(task: str, data: Data, name: str, limit: int | None = None) -> Split:
    own = None if data.own is None else tuple(sorted((k, _frozen(v)) for k, v in data.own.items()))
    place = str((data.own or {}).get("path") or data.source or "")
    return _loaded(task, own, data.source, name, limit, _stamp(place))


@lru_cache(maxsize=16)
def _loaded(
    task: str, own: Any, source: str | None, name: str, limit: int | None, stamp: Any
) -> Split:
    defined = Data(own=None if own is None else dict(own))
    return load_split(task_of(task, defined), name, source, limit=limit)


@cache
def _weights(location: str, revision: str | None, stamp: Any) -> tuple[str | None, str | None]:
    checkpoint = open_checkpoint(location, revision=revision)
    if checkpoint.directory is None or checkpoint.commit is not None:
        return None, checkpoint.commit or revision
    both = header_digest(checkpoint) + sampled_digest(checkpoint)
    return hashlib.sha256(both.encode()).hexdigest()[:32], None


@cache
def _depth(location: str, revision: str | None, stack: str | None, stamp: Any) -> int:
    return anatomy(open_checkpoint(location, revision=revision)).pick(stack).depth


def _stamp(location: str) -> Any:
    """Changes when files at a place do, so that what was read of them is read again."""
    place = Path(location).expanduser()
    if not location or not place.exists():
        return None
    files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
    return tuple((str(p), os.stat(p).st_size, os.stat(p).st_mtime_ns) for p in files[:10_000])


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
