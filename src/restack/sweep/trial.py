"""A trial as data: what is measured, on which model, plan, data and seed. Its content is its key.

What decides about the numbers enters the key; where things lie and what they are called does not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from restack.errors import RestackError

_FORMAT = 1  # raise it when the same fields come to mean something else
_OF_TRIAL = "trial:"


@dataclass(frozen=True, slots=True)
class Model:
    """Where a model lies, and what tells its weights from others."""

    location: str
    """A directory, a Hub name, or `trial:KEY` for the model that another trial kept."""
    revision: str | None = None
    fingerprint: str | None = None
    """Of the content, by `restack.sweep.identify`; without one, location and revision count."""
    stack: str | None = None
    """The path of the stack, where a model has several."""

    @classmethod
    def of_trial(cls, key: str, *, stack: str | None = None) -> Model:
        """The model that another trial of the sweep ends with."""
        return cls(_OF_TRIAL + key, stack=stack)

    @property
    def trial(self) -> str | None:
        """The key of the trial that makes this model."""
        if self.location.startswith(_OF_TRIAL):
            return self.location.removeprefix(_OF_TRIAL)
        return None

    @property
    def identity(self) -> dict[str, Any]:
        """What of it decides about numbers."""
        where = self.fingerprint or [self.location, self.revision]
        return {"weights": where, "stack": self.stack}


@dataclass(frozen=True, slots=True)
class Data:
    """Which examples, and what tells them from others."""

    source: str | None = None
    """A directory or a file; None is the Hub."""
    train: str | None = "train"
    validation: tuple[str, ...] = ("validation",)
    size: int | None = None
    """So many examples to train on, drawn at random; None is all."""
    subsample: int | None = None
    """The seed of that draw."""
    limit: int | None = None
    """At most so many validation examples, the first ones."""
    fingerprint: str | None = None
    """Of all examples of the named splits, by `restack.sweep.identify`."""
    own: Mapping[str, Any] | None = None
    """What a task of one's own is defined by: the arguments of `Task.from_file`."""

    @property
    def identity(self) -> dict[str, Any]:
        """What of it decides about numbers."""
        values = asdict(self)
        if self.fingerprint is not None:
            del values["source"]
            values["own"] = {k: v for k, v in (self.own or {}).items() if k != "path"} or None
        return values


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement that is made once: a training run, a probe, a lens, a timing.

    Equal keys mean equal numbers to come, so that a trial which two studies share is run once.
    """

    kind: str
    """What is run: a name of `restack.sweep.kinds.KINDS`, or `module:function`."""
    model: Model | None = None
    plan: str | None = None
    """In canonical text form; None where the kind knows no plan."""
    task: str | None = None
    data: Data | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Plain data: the recipe of a training run (without its seed), or the options of a kind."""
    seed: int = 0
    inputs: tuple[str, ...] = ()
    """Keys of other trials that must be done first, since this one reads what they kept."""
    labels: Mapping[str, Any] = field(default_factory=dict)
    """Free tags to find and group trials by; not in the key."""
    keep: tuple[str, ...] = ()
    """Files to keep beside what the kind always keeps: `model`; not in the key."""

    def __post_init__(self) -> None:
        for name in ("settings", "labels"):
            object.__setattr__(self, name, _plain(getattr(self, name), name))
        for name in ("inputs", "keep"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> str:
        """A hash of everything that decides about the numbers.

        >>> one = Trial("tune", plan="0-5", seed=3, labels={"strategy": "top"})
        >>> one.key == one.labelled(strategy="symmetric").key, one.key == Trial("tune").key
        (True, False)
        """
        content = {
            "format": _FORMAT,
            "kind": self.kind,
            "model": None if self.model is None else self.model.identity,
            "plan": self.plan,
            "task": self.task,
            "data": None if self.data is None else self.data.identity,
            "settings": self.settings,
            "seed": self.seed,
            "inputs": list(self.inputs),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def needs(self) -> tuple[str, ...]:
        """Keys of all trials that come before this one."""
        made = self.model.trial if self.model is not None else None
        return tuple(dict.fromkeys([*([made] if made else []), *self.inputs]))

    def labelled(self, **labels: Any) -> Trial:
        """The same trial with more labels."""
        return replace(self, labels={**self.labels, **labels})

    def to_json(self) -> dict[str, Any]:
        """Plain data, from which `from_json` makes the trial again."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["model"] = None if self.model is None else asdict(self.model)
        values["data"] = None if self.data is None else asdict(self.data)
        plain: dict[str, Any] = json.loads(json.dumps(values))
        return plain

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Trial:
        """The trial that `to_json` wrote.

        >>> trial = Trial("tune", Model("bert", "main"), "0-5", "sst2", Data(size=500, subsample=1))
        >>> Trial.from_json(trial.to_json()) == trial
        True
        """
        given = dict(values)
        if given.get("model") is not None:
            given["model"] = Model(**given["model"])
        if given.get("data") is not None:
            data = given["data"]
            given["data"] = Data(**{**data, "validation": tuple(data["validation"])})
        return cls(**given)


def _plain(values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """A copy as JSON would give it back, so that a trial and its stored copy are equal."""
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(values), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise RestackError(
            f"the {what} of a trial hold something that JSON cannot: {error}",
            hint="Use text, numbers, truth values, lists and mappings of them.",
        ) from error
    return copy
