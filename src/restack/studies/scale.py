"""How large a study is made, as data: as in the papers, for two CPU cores, or for minutes.

`paper` has the tasks, sizes, numbers of trials and settings of the papers; where one says nothing,
the comment says what was taken instead. `small` fits two cores in about two hours with twelve
layers of 384, and keeps what each claim needs to be seen or refuted. `smoke` shows that all runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from restack.errors import RestackError

Name = Literal["smoke", "small", "paper"]
NAMES: tuple[Name, ...] = ("smoke", "small", "paper")


@dataclass(frozen=True, slots=True)
class Examples:
    """How much of a task is used."""

    train: int | None = None
    """Examples to train on; None is all of them."""
    validation: int | None = None
    """The first so many of the validation split."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Sizes of the study of duplicated layers."""

    tasks: Mapping[str, Examples]
    texts: int | None
    """Texts for curves without training, of the validation split; None is all."""
    added: tuple[int, ...] | Mapping[str, tuple[int, ...]]
    """How many layers are added before fine-tuning; by name of the paper's models, if a mapping."""
    baselines: int
    """Seeds of the untouched model."""
    seeds: int
    """Seeds of each deeper model."""
    compared: int | None
    """How many layers are added when the rules are compared after fine-tuning; None is never."""
    recipes: Mapping[str, Mapping[str, Any]]
    """Settings of a training run, by task; `*` for all others."""
    longest: int = 50
    """How deep a shared layer is repeated."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Sizes of the study of dropped layers."""

    tasks: Mapping[str, Examples]
    seeds: int
    """Of each trial; the paper has one."""
    every: tuple[str, ...]
    """Tasks on which top layers go one by one, to see how many are needed (table 2)."""
    steps: int
    """Between the numbers of layers of `every`."""
    thresholds: tuple[float, ...]
    recipes: Mapping[str, Mapping[str, Any]]
    again: tuple[str, ...]
    """Tasks on which layers are dropped from a fine-tuned model (table 5)."""
    iterative: tuple[str, ...]
    """Tasks on which one layer goes after every two epochs."""
    looked: tuple[str, ...]
    """Tasks whose fine-tuned model is looked into: layer-wise classifiers, what has moved."""
    cost_task: str = "qqp"
    cost_rows: int | None = None


@dataclass(frozen=True, slots=True)
class Reinit:
    """Sizes of the study of fresh layers."""

    tasks: Mapping[str, Examples]
    sizes: tuple[tuple[int, int, int, tuple[str, ...]], ...]
    """Training examples, trials, epochs, and the tasks: for the incremental curves."""
    kept: tuple[int, ...] | None
    """After how many layers all is made fresh, as parts of 12; None is all numbers."""
    size: int
    """Training examples of all other parts."""
    epochs: int
    blocks: int
    """Trials of each block of three."""
    apart: int
    """Layers between the beginnings of blocks."""
    singles: int
    """Trials of each single layer."""
    single_layers: tuple[int, ...] | None
    """Which layers, as parts of 12; None is all."""
    orders: int
    """Permutations."""
    local: tuple[str, ...]
    """Tasks of blocks and single layers."""
    ablations: int
    """Trials of each ablation."""
    ablated: tuple[str, ...]
    long: int
    """Epochs of the longest run; 0 is none."""
    long_sizes: tuple[int, ...]
    probe_trials: int
    probe_epochs: int
    probe_size: int | None
    recipe: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Successors:
    """Sizes of the studies without training."""

    texts: int | None
    removed: float
    """The largest part of the layers that is taken away."""
    pairs: int | None
    """At most so many layers in a repeated block; None is any number."""
    max_length: int


# What is reported is the end of training, so nothing is scored before it.
_AT_THE_END: dict[str, Any] = {"keep_best": False, "evaluate_every": 1_000_000}
# Kao et al. give no settings ("carefully chose hyperparameters"): these are BERT's own.
_DUPLICATE_RECIPES: dict[str, dict[str, Any]] = {
    "*": {"epochs": 3, "batch_size": 32, "rate": 3e-5, **_AT_THE_END},
    "squad_v2": {
        "epochs": 2,
        "batch_size": 24,
        "rate": 3e-5,
        "max_length": 384,
        "stride": 128,
        **_AT_THE_END,
    },
}
# Three epochs; all else "the default setting in the Transformer library", that is its example
# script of the time: no warm-up, no weight decay, at most 128 tokens.
_DROP_RECIPE: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 32,
    "rate": 2e-5,
    "warmup": 0.0,
    "weight_decay": 0.0,
    "max_length": 128,
    **_AT_THE_END,
}
# "Adam, batch size of 8, learning rate of 2e-5, and default parameters otherwise"
_REINIT_RECIPE: dict[str, Any] = {
    "batch_size": 8,
    "rate": 2e-5,
    "head": "mean-pool",
    "schedule": "constant",
    "warmup": 0.0,
    "weight_decay": 0.0,
    "clip": None,
    **_AT_THE_END,
}

DUPLICATE: dict[Name, Duplicate] = {
    "paper": Duplicate(
        tasks={name: Examples() for name in ("squad_v2", "snli", "sst2_sentence")},
        texts=None,
        # From one layer to the deepest model that tables 3 to 6 name; BERT to twice its depth.
        added={
            "BERT-base": tuple(range(1, 13)),
            "BERT-large": tuple(range(1, 25)),
            "ALBERT-base": tuple(range(1, 13)),
            "ALBERT-large": tuple(range(1, 12)),
            "ALBERT-xlarge": tuple(range(1, 9)),
            "ALBERT-xxlarge": tuple(range(1, 9)),
            "*": tuple(range(1, 13)),
        },
        baselines=3,
        seeds=1,
        compared=3,
        recipes=_DUPLICATE_RECIPES,
    ),
    "small": Duplicate(
        tasks={
            "squad_v2": Examples(1000, 500),
            "snli": Examples(2000, 1000),
            "sst2_sentence": Examples(2000, 872),
        },
        texts=500,
        added=(1, 3, 6),
        baselines=3,
        seeds=3,
        compared=3,
        recipes={
            "*": {"epochs": 2, "batch_size": 16, "rate": 5e-5, **_AT_THE_END},
            "squad_v2": {
                "epochs": 1,
                "batch_size": 12,
                "rate": 1e-4,
                "max_length": 384,
                "stride": 128,
                **_AT_THE_END,
            },
        },
    ),
    "smoke": Duplicate(
        tasks={"sst2_sentence": Examples(96, 96)},
        texts=32,
        added=(1,),
        baselines=3,
        seeds=1,
        compared=1,
        recipes={"*": {"epochs": 1, "batch_size": 16, "rate": 5e-5, **_AT_THE_END}},
    ),
}

_DROP_TASKS = ("sst2", "mnli", "qnli", "qqp", "stsb", "rte", "mrpc")
_STABLE = ("sst2", "mnli", "qnli", "qqp", "stsb")  # the paper leaves RTE and MRPC out of averages

DROP: dict[Name, Drop] = {
    "paper": Drop(
        tasks={task: Examples() for task in _DROP_TASKS},
        seeds=1,
        every=_STABLE,
        steps=1,
        thresholds=(0.95, 0.925, 0.9),
        recipes={"*": _DROP_RECIPE},
        again=_STABLE,
        iterative=_STABLE,
        looked=_STABLE,
    ),
    "small": Drop(
        tasks={
            "sst2": Examples(1500, 872),
            "qnli": Examples(800, 500),
            "stsb": Examples(1000, 500),
        },
        seeds=3,
        every=("sst2",),
        steps=2,
        thresholds=(0.95, 0.925, 0.9),
        recipes={"*": {**_DROP_RECIPE, "batch_size": 16, "rate": 1e-4}},
        again=("sst2", "stsb"),
        iterative=("sst2",),
        looked=("sst2", "qnli", "stsb"),
        cost_task="qnli",
        cost_rows=256,
    ),
    "smoke": Drop(
        tasks={"sst2": Examples(96, 96)},
        seeds=1,
        every=(),
        steps=4,
        thresholds=(0.95,),
        recipes={"*": {**_DROP_RECIPE, "epochs": 1, "batch_size": 16, "rate": 1e-4}},
        again=("sst2",),
        iterative=(),
        looked=("sst2",),
        cost_task="sst2",
        cost_rows=32,
    ),
}

_REINIT_TASKS = ("sst2", "qnli", "cola")

REINIT: dict[Name, Reinit] = {
    "paper": Reinit(
        tasks={task: Examples() for task in _REINIT_TASKS},
        sizes=(
            (500, 50, 5, _REINIT_TASKS),
            (5000, 3, 3, _REINIT_TASKS),
            (50000, 3, 3, ("sst2", "qnli")),  # CoLA has 8,551 examples
        ),
        kept=None,
        size=5000,
        epochs=3,
        blocks=10,
        apart=1,
        singles=3,
        single_layers=None,
        orders=10,
        local=_REINIT_TASKS,
        ablations=3,
        ablated=_REINIT_TASKS,
        long=10,
        long_sizes=(500, 5000),
        probe_trials=8,
        probe_epochs=40,
        probe_size=None,
        recipe=_REINIT_RECIPE,
    ),
    "small": Reinit(
        tasks={"sst2": Examples(), "cola": Examples()},
        sizes=((500, 5, 5, ("sst2", "cola")), (5000, 3, 3, ("sst2",))),
        kept=(0, 3, 6, 9, 12),
        size=500,
        epochs=5,
        blocks=3,
        apart=3,
        singles=3,
        single_layers=(0, 5, 11),
        orders=5,
        local=("sst2",),
        ablations=3,
        ablated=("sst2",),
        long=10,
        long_sizes=(500,),
        probe_trials=8,
        probe_epochs=40,
        probe_size=5000,
        recipe=_REINIT_RECIPE,
    ),
    "smoke": Reinit(
        tasks={"sst2": Examples(validation=128)},
        sizes=((100, 3, 1, ("sst2",)),),
        kept=(0, 6, 12),
        size=100,
        epochs=1,
        blocks=1,
        apart=6,
        singles=0,
        single_layers=(),
        orders=3,
        local=("sst2",),
        ablations=0,
        ablated=(),
        long=0,
        long_sizes=(),
        probe_trials=3,
        probe_epochs=5,
        probe_size=200,
        recipe=_REINIT_RECIPE,
    ),
}

SUCCESSORS: dict[Name, Successors] = {
    "paper": Successors(texts=None, removed=0.5, pairs=None, max_length=2048),
    "small": Successors(texts=64, removed=0.5, pairs=None, max_length=128),
    "smoke": Successors(texts=8, removed=0.34, pairs=4, max_length=64),
}


_Scale = TypeVar("_Scale")


def scale_of(scales: Mapping[Name, _Scale], name: str) -> _Scale:
    """The scale of this name."""
    for known, scale in scales.items():
        if known == name:
            return scale
    raise RestackError(f"there is no scale {name!r}", hint=f"Known: {', '.join(NAMES)}.")
