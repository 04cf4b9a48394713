"""What the solvers of linear readers share: the problems, their losses, and access to features."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from restack.errors import DataError

Kind = Literal["classification", "regression", "multilabel"]
Solver = Literal["adam", "exact"]
_LEAST = {"epochs": 1, "batch_size": 1, "rate": 0, "patience": 1, "l2": 0, "iterations": 1}
CHUNK = 1 << 23  # numbers of features that are in work at a time


@dataclass(frozen=True, slots=True)
class Settings:
    """How readers are trained.

    `adam` goes by mini-batches and stops early. `exact` trains on the same rows and goes to the
    optimum: by L-BFGS for classification and multi-label, in closed form (ridge) for regression.
    Epochs, batches, rates and patience are for the one, `l2` and iterations for the other.
    """

    solver: Solver = "adam"
    standardise: bool = False
    """Bring each feature to mean 0 and deviation 1 over the rows that a trial trains on."""
    seed: int = 0
    epochs: int = 40
    """At most so many."""
    batch_size: int = 32
    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    patience: int | None = 5
    """Stop after so many epochs without a lower loss on the held-out rows; None: never."""
    l2: float = 1.0
    """The weight of the squared coefficients against the sum of the losses. scikit-learn's
    Ridge calls it alpha, its LogisticRegression 1 / C; of two classes that has but one row of
    coefficients, so that its C there is 2 / l2. The bias is free."""
    iterations: int = 200
    """At most so many, of L-BFGS."""

    def __post_init__(self) -> None:
        if self.solver not in get_args(Solver):
            known = ", ".join(get_args(Solver))
            raise DataError(f"there is no solver {self.solver!r}", hint=f"Known: {known}.")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:
                raise DataError(f"{name} is {value}", hint=f"Give a number of {least} or more.")


PAPER = Settings(batch_size=8, rate=2e-5)
"""Tamkin et al., appendix I; how patient they were is not given."""


@dataclass(frozen=True, slots=True)
class Examples:
    """What all problems read: features, and targets to meet."""

    features: Tensor
    """Rows x layers x hidden, float32 or float16; it may lie in a mapped file."""
    targets: Tensor
    """Rows x outputs, float32: one-hot classes, marks of labels, or values."""
    kind: Kind


@dataclass(frozen=True, slots=True)
class Draw:
    """The rows of one trial. Its number decides about its first weights and order of batches."""

    number: int
    train: np.ndarray
    held: np.ndarray
    """Rows left out of the training, to know when to stop."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Trained readers, by layers x trials; their weights apply to the features as they are."""

    layers: tuple[int, ...]
    weight: Tensor
    """Layers x trials x outputs x hidden."""
    bias: Tensor
    loss: Tensor
    """The mean loss on the held-out rows."""
    rounds: Tensor
    """The epoch that the weights are from; or the iterations of L-BFGS; 1 for ridge."""


def losses(kind: Kind, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each row: cross entropy, squared error, or binary cross entropy over labels.

    Both are ... x outputs x rows: a softmax over the last of the dimensions is slow where it is
    short.
    """
    if kind == "classification":
        return -(targets * functional.log_softmax(outputs, -2)).sum(-2)
    if kind == "regression":
        return (outputs - targets).square().sum(-2)
    return functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(-2)


def slopes(kind: Kind, outputs: Tensor, targets: Tensor) -> Tensor:
    """The derivative of `losses` by the outputs."""
    if kind == "classification":
        return functional.softmax(outputs, -2).sub_(targets)
    if kind == "regression":
        return (outputs - targets).mul_(2)
    return torch.sigmoid(outputs).sub_(targets)


def chunks(rows: int, width: int) -> Iterator[slice]:
    """Slices of rows of this width, such that what they hold is of bounded size."""
    size = max(1, CHUNK // max(1, width))
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def means(examples: Examples, draws: Sequence[Draw], layers: Sequence[int]) -> Tensor:
    """The mean of the features over each trial's training rows: layers x trials x hidden."""
    return _over_rows(examples, draws, layers, lambda x, trial: x)


def deviations(
    examples: Examples, draws: Sequence[Draw], layers: Sequence[int], mean: Tensor
) -> Tensor:
    """The standard deviation of the same; that of a constant counts as 1."""
    square = _over_rows(examples, draws, layers, lambda x, t: (x - mean[:, t, None]).square())
    return torch.where(square > 0, square.sqrt(), 1.0)


def _over_rows(
    examples: Examples,
    draws: Sequence[Draw],
    layers: Sequence[int],
    what: Callable[[Tensor, int], Tensor],
) -> Tensor:
    features, device = examples.features, examples.targets.device
    shape = (len(layers), len(draws), features.shape[2])
    total = torch.zeros(shape, dtype=torch.float64, device=device)
    for trial, draw in enumerate(draws):
        for x in blocks(features, draw.train, layers, device):
            total[:, trial] += what(x.double(), trial).sum(1)
        total[:, trial] /= len(draw.train)
    return total


def blocks(
    features: Tensor, rows: np.ndarray, layers: Sequence[int], device: torch.device
) -> Iterator[Tensor]:
    """These rows in float32, chunk after chunk, as layers x rows x hidden."""
    every = list(layers) == list(range(features.shape[1]))
    index = torch.from_numpy(rows).to(features.device)
    chosen = torch.tensor(list(layers), device=features.device)
    for part in chunks(len(rows), features.shape[1] * features.shape[2]):
        x = features.index_select(0, index[part])
        x = x if every else x.index_select(1, chosen)
        yield x.to(device, torch.float32).transpose(0, 1)


def on_raw(weight: Tensor, bias: Tensor, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Weights for standardised features as weights for the features as they are."""
    weight = weight.double() / deviation.unsqueeze(-2)
    bias = bias.double() - (weight * mean.unsqueeze(-2)).sum(-1)
    return weight, bias
