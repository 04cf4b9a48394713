"""Linear readers by Adam on mini-batches, with early stopping, all in one batch of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from restack.observe.linear_base import (
    CHUNK,
    Draw,
    Examples,
    Fit,
    Settings,
    deviations,
    losses,
    means,
    on_raw,
    slopes,
)

_SPREAD = 0.02  # of the first weights, as BERT starts its heads
_WEIGHTS, _ORDER = 0, 1  # keep the random numbers for these apart


@dataclass(slots=True)
class _Learners:
    """The problems that still learn, with the state of their optimiser."""

    place: Tensor
    """Where each stands among all problems."""
    layer: Tensor
    trial: Tensor
    weight: Tensor
    bias: Tensor
    mean: Tensor
    deviation: Tensor
    averages: tuple[Tensor, ...]
    """Of the gradients and of their squares: for the weights, then for the bias."""
    standardised: bool
    steps: int = 0

    def keep(self, chosen: Tensor) -> None:
        """Forget all but the chosen."""
        if bool(chosen.all()):
            return
        for name in ("place", "layer", "trial", "weight", "bias", "mean", "deviation"):
            setattr(self, name, getattr(self, name)[chosen])
        self.averages = tuple(average[chosen] for average in self.averages)

    def read(self, features: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Each problem's rows as it reads them, and what it makes of them (outputs x rows)."""
        x = _gather(features, rows, self.layer)
        if self.standardised:
            x = x.sub_(self.mean[:, None]).div_(self.deviation[:, None])
        return x, torch.baddbmm(self.bias[..., None], self.weight, x.transpose(1, 2))

    def step(self, by_weight: Tensor, by_bias: Tensor, settings: Settings) -> None:
        """Go one step of Adam."""
        self.steps += 1
        first, second = settings.betas
        pace = settings.rate / (1 - first**self.steps)
        spread = (1 - second**self.steps) ** 0.5
        for place, (values, gradient) in enumerate(
            ((self.weight, by_weight), (self.bias, by_bias))
        ):
            average, square = self.averages[2 * place : 2 * place + 2]
            average.lerp_(gradient, 1 - first)
            square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            values.addcdiv_(average, square.sqrt().div_(spread).add_(settings.epsilon), value=-pace)


def adam(
    examples: Examples,
    draws: Sequence[Draw],
    layers: Sequence[int],
    settings: Settings,
    progress: Callable[[int, int, int], None] | None = None,
) -> Fit:
    """Train all problems; one that gets no better leaves the batch, with its best weights."""
    device = examples.targets.device
    learners = _beginners(examples, draws, layers, settings)
    best = Fit(
        tuple(layers),
        learners.weight.clone(),
        learners.bias.clone(),
        torch.full(learners.place.shape, float("inf"), device=device),
        torch.zeros_like(learners.place),
    )
    mean, deviation = learners.mean.double(), learners.deviation.double()
    held = torch.from_numpy(np.stack([draw.held for draw in draws])).to(device)
    for epoch in range(1, settings.epochs + 1):
        orders = np.stack([_order(draw, settings.seed, epoch) for draw in draws])
        for part in torch.from_numpy(orders).to(device).split(settings.batch_size, 1):
            _learn(examples, learners, part[learners.trial], settings)
        loss = _held_loss(examples, learners, held)
        better = loss < best.loss[learners.place]
        where = learners.place[better]
        best.loss[where], best.rounds[where] = loss[better], epoch
        best.weight[where], best.bias[where] = learners.weight[better], learners.bias[better]
        if settings.patience is not None:
            learners.keep(epoch - best.rounds[learners.place] < settings.patience)
        if progress is not None:
            progress(epoch, settings.epochs, len(learners.place))
        if not len(learners.place):
            break
    weight, bias = on_raw(best.weight, best.bias, mean, deviation)
    shape = (len(layers), len(draws))
    return Fit(
        best.layers,
        weight.float().view(*shape, *weight.shape[1:]),
        bias.float().view(*shape, -1),
        best.loss.view(shape),
        best.rounds.view(shape),
    )


def _learn(examples: Examples, learners: _Learners, rows: Tensor, settings: Settings) -> None:
    """One mini-batch for each problem; the gradient of a linear reader needs no autograd."""
    x, outputs = learners.read(examples.features, rows)
    wanted = examples.targets[rows].transpose(1, 2)
    wrong = slopes(examples.kind, outputs, wanted).div_(rows.shape[1])
    learners.step(torch.bmm(wrong, x), wrong.sum(2), settings)


def _held_loss(examples: Examples, learners: _Learners, held: Tensor) -> Tensor:
    """The mean loss of each problem on the rows that its trial holds out."""
    width = len(learners.place) * examples.features.shape[2]
    total = torch.zeros(len(learners.place), dtype=torch.float64, device=held.device)
    for part in held.split(max(1, CHUNK // max(1, width)), 1):
        rows = part[learners.trial]
        outputs = learners.read(examples.features, rows)[1]
        wanted = examples.targets[rows].transpose(1, 2)
        total += losses(examples.kind, outputs, wanted).double().sum(1)
    return (total / held.shape[1]).float()


def _beginners(
    examples: Examples, draws: Sequence[Draw], layers: Sequence[int], settings: Settings
) -> _Learners:
    device, outputs = examples.targets.device, examples.targets.shape[1]
    hidden, trials = examples.features.shape[2], len(draws)
    pairs = [(layer, draw) for layer in layers for draw in draws]
    first = np.stack(
        [
            _random(settings.seed, draw.number, _WEIGHTS, layer).standard_normal(outputs * hidden)
            for layer, draw in pairs
        ]
    )
    weight = torch.from_numpy(first).float().mul_(_SPREAD).view(-1, outputs, hidden).to(device)
    bias = torch.zeros(len(pairs), outputs, device=device)
    if examples.kind == "regression":  # a start at the mean spares many small steps
        middle = [examples.targets[torch.from_numpy(draw.train)].mean(0) for draw in draws]
        bias += torch.stack(middle * len(layers))
    if settings.standardise:
        mean = means(examples, draws, layers)
        deviation = deviations(examples, draws, layers, mean)
    else:
        mean = torch.zeros(len(layers), trials, hidden, dtype=torch.float64, device=device)
        deviation = torch.ones_like(mean)
    return _Learners(
        place=torch.arange(len(pairs), device=device),
        layer=torch.tensor([layer for layer, _ in pairs], device=device),
        trial=torch.arange(trials, device=device).repeat(len(layers)),
        weight=weight,
        bias=bias,
        mean=mean.flatten(0, 1).float(),
        deviation=deviation.flatten(0, 1).float(),
        averages=tuple(torch.zeros_like(t) for t in (weight, weight, bias, bias)),
        standardised=settings.standardise,
    )


def _gather(features: Tensor, rows: Tensor, layers: Tensor) -> Tensor:
    """Features in float32 as problems x rows x hidden; each problem has its rows and its layer."""
    depth, hidden = features.shape[1:]
    index = (rows * depth + layers[:, None]).flatten().to(features.device)
    found = features.view(-1, hidden).index_select(0, index)
    return found.to(rows.device, torch.float32).view(*rows.shape, hidden)


def _order(draw: Draw, seed: int, epoch: int) -> np.ndarray:
    """The training rows of a trial in the order of an epoch."""
    # numpy promises to keep the raw numbers of a generator, but not those of permutation()
    raw = _random(seed, draw.number, _ORDER, epoch).bit_generator.random_raw(len(draw.train))
    return draw.train[np.argsort(raw, kind="stable")]


def _random(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(list(key)))
