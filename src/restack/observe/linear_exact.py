"""Linear readers at their optimum: logistic regression by L-BFGS, ridge in closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from restack.errors import DataError
from restack.observe.linear_base import (
    CHUNK,
    Draw,
    Examples,
    Fit,
    Settings,
    blocks,
    deviations,
    losses,
    means,
    on_raw,
    slopes,
)

_PAIRS = 10  # steps that L-BFGS remembers
_HALVINGS = 10  # of a step that does not lower the value
_FLAT = 1e-6  # a mean gradient below this is an optimum
_STEADY = 1e-9  # so is a step that lowers the value, a sum of many losses, by less than this part

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From parameters (problems x any) to the value and the gradient of each problem."""


def lbfgs(
    examples: Examples, draws: Sequence[Draw], layers: Sequence[int], settings: Settings
) -> Fit:
    """Logistic regression, multinomial or one for each label, of all problems at once."""
    mean, deviation = _scale(examples, draws, layers, settings.standardise)
    grid, outputs = mean.shape[:2], examples.targets.shape[1]
    start = mean.new_zeros(grid.numel(), outputs * (mean.shape[2] + 1))
    objective = _logistic(examples, draws, layers, settings.l2, mean, deviation)
    flat = _FLAT * len(draws[0].train)
    found, rounds = minimise(objective, start, settings.iterations, flat)
    found = found.view(*grid, outputs, -1)
    weight, bias = on_raw(found[..., :-1], found[..., -1], mean, deviation)
    return _fit(examples, draws, layers, weight, bias, rounds.view(grid))


def ridge(
    examples: Examples, draws: Sequence[Draw], layers: Sequence[int], settings: Settings
) -> Fit:
    """Linear regression with penalised weights: trial after trial, a few layers at a time."""
    device, hidden = examples.targets.device, examples.features.shape[2]
    shape = (len(layers), len(draws), examples.targets.shape[1], hidden)
    weight = torch.zeros(shape, dtype=torch.float64, device=device)
    bias = torch.zeros(shape[:-1], dtype=torch.float64, device=device)
    mean, deviation = _scale(examples, draws, layers, settings.standardise)
    together = max(1, 4 * CHUNK // hidden**2)  # layers whose hidden x hidden matrices are held
    for trial, draw in enumerate(draws):
        for first in range(0, len(layers), together):
            part = slice(first, first + together)
            weight[part, trial], bias[part, trial] = _ridge(
                examples, draw, layers[part], settings.l2, mean[part, trial], deviation[part, trial]
            )
    rounds = torch.ones(shape[:2], dtype=torch.int64, device=device)
    return _fit(examples, draws, layers, weight, bias, rounds)


def _scale(
    examples: Examples, draws: Sequence[Draw], layers: Sequence[int], standardise: bool
) -> tuple[Tensor, Tensor]:
    """What to subtract from the features and divide them by.

    To centre them changes no optimum, as the bias is free, and takes far fewer steps to find it.
    """
    mean = means(examples, draws, layers)
    return mean, deviations(examples, draws, layers, mean) if standardise else torch.ones_like(mean)


def _ridge(
    examples: Examples,
    draw: Draw,
    layers: Sequence[int],
    l2: float,
    mean: Tensor,
    deviation: Tensor,
) -> tuple[Tensor, Tensor]:
    """The readers of one trial: layers x outputs x hidden, and layers x outputs."""
    device = examples.targets.device
    targets = examples.targets[torch.from_numpy(draw.train).to(device)].double()
    hidden = deviation.shape[1]
    square = deviation.new_zeros(len(layers), hidden, hidden)
    product = deviation.new_zeros(len(layers), hidden, targets.shape[1])
    done = 0
    for x in blocks(examples.features, draw.train, layers, device):
        x = (x.double() - mean[:, None]) / deviation[:, None]
        square.baddbmm_(x.transpose(1, 2), x)
        product += x.transpose(1, 2) @ targets[done : done + x.shape[1]]
        done += x.shape[1]
    square.diagonal(dim1=1, dim2=2).add_(l2)
    root, failed = torch.linalg.cholesky_ex(square)
    if failed.any():
        raise DataError(
            f"the ridge regression of layer {layers[int(failed.nonzero()[0])]}, trial "
            f"{draw.number}, has no unique solution with l2={l2}",
            hint="Give a larger l2.",
        )
    weight = torch.cholesky_solve(product, root).transpose(1, 2) / deviation[:, None]
    return weight, targets.mean(0) - (weight * mean[:, None]).sum(-1)


def _logistic(
    examples: Examples,
    draws: Sequence[Draw],
    layers: Sequence[int],
    l2: float,
    mean: Tensor,
    deviation: Tensor,
) -> Objective:
    """The penalised sum of losses of all problems.

    Each chunk of features is read once for all trials: which trial trains on which row is a mask.
    """
    device, kind, trials = examples.targets.device, examples.kind, len(draws)
    rows = np.unique(np.concatenate([draw.train for draw in draws]))
    member = np.stack([np.isin(rows, draw.train) for draw in draws], axis=1)
    mask = torch.from_numpy(member).to(device, torch.float32)  # rows x trials
    targets = examples.targets[torch.from_numpy(rows).to(device)][..., None]
    outputs, hidden, count = targets.shape[1], mean.shape[2], len(layers)

    def evaluate(flat: Tensor) -> tuple[Tensor, Tensor]:
        theta = flat.view(count, trials, outputs, hidden + 1)
        weight, bias = on_raw(theta[..., :-1], theta[..., -1], mean, deviation)
        # layers x (outputs x trials): all trials of a layer are one product
        matrix = weight.float().transpose(1, 2).reshape(count, outputs * trials, hidden)
        offset = bias.float().transpose(1, 2).reshape(count, 1, outputs * trials)
        value = flat.new_zeros(count, trials)
        by_matrix = torch.zeros_like(matrix, dtype=torch.float64)
        by_bias = torch.zeros_like(bias)
        done = 0
        for x in blocks(examples.features, rows, layers, device):
            part = slice(done, done + x.shape[1])
            out = torch.baddbmm(offset, x, matrix.transpose(1, 2))
            out = out.view(count, -1, outputs, trials)
            wanted = targets[part].expand_as(out)
            value += (losses(kind, out, wanted) * mask[part]).double().sum(1)
            wrong = slopes(kind, out, wanted).mul_(mask[part, None])
            by_bias += wrong.sum(1).transpose(1, 2)
            by_matrix += torch.bmm(wrong.flatten(2).transpose(1, 2), x)
            done = part.stop
        by_weight = by_matrix.view(count, outputs, trials, hidden).transpose(1, 2)
        # from the features as they are back to standardised ones
        by_weight = (by_weight - by_bias[..., None] * mean[:, :, None]) / deviation[:, :, None]
        by_weight += l2 * theta[..., :-1]
        value += l2 / 2 * theta[..., :-1].square().sum((2, 3))
        gradient = torch.cat([by_weight, by_bias[..., None]], -1)
        return value.flatten(), gradient.view_as(flat)

    return evaluate


def minimise(
    objective: Objective, start: Tensor, iterations: int, flat: float
) -> tuple[Tensor, Tensor]:
    """L-BFGS for many convex problems at once; each has its own steps and its own end.

    A problem has ended when no part of its gradient is above `flat`, or when no step lowers its
    value. Gives the parameters and each problem's number of iterations.
    """
    at, rounds = start.clone(), torch.zeros(len(start), dtype=torch.int64, device=start.device)
    value, gradient = objective(at)
    active = gradient.abs().amax(1) > flat
    pairs: list[tuple[Tensor, Tensor]] = []
    for _ in range(iterations):
        if not active.any():
            break
        way = _direction(gradient, pairs)
        slope = (way * gradient).sum(1)
        active &= slope < -_STEADY * value.abs()
        way, slope = way * active[:, None], slope * active
        size = torch.ones_like(value)
        if not pairs:  # no curvature is known yet
            size = (1 / gradient.norm(dim=1).clamp_min(1e-12)).clamp_max(1.0)
        for _ in range(_HALVINGS):
            new = at + size[:, None] * way
            new_value, new_gradient = objective(new)
            enough = value + 1e-4 * size * slope + _STEADY * value.abs()
            lower = (new_value <= enough) & active
            if bool((lower | ~active).all()):
                break
            size = torch.where(lower, size, size / 2)
        moved = torch.where(lower[:, None], new, at)
        turned = torch.where(lower[:, None], new_gradient, gradient)
        pairs = [*pairs, (moved - at, turned - gradient)][-_PAIRS:]
        rounds += active
        gained = value - new_value > _STEADY * value.abs()
        value = torch.where(lower, new_value, value)
        at, gradient = moved, turned
        active = active & lower & gained & (gradient.abs().amax(1) > flat)
    return at, rounds


def _direction(gradient: Tensor, pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Downhill by the curvature that past steps (and the changes of the gradient) tell."""
    way = -gradient
    weights: list[tuple[Tensor, Tensor]] = []
    scale = torch.ones_like(gradient[:, 0])
    for step, turn in reversed(pairs):
        curve = (step * turn).sum(1)
        # a problem that stood still has no curvature to tell
        told = curve > 1e-12 * turn.square().sum(1)
        inverse = torch.where(told, 1 / curve, 0.0)
        weight = inverse * (step * way).sum(1)
        way = way - weight[:, None] * turn
        weights.append((inverse, weight))
        seen = told & (scale == 1)  # the latest pair that tells sets the scale
        scale = torch.where(seen, curve / turn.square().sum(1), scale)
    way = way * scale[:, None]
    for (step, turn), (inverse, weight) in zip(pairs, reversed(weights), strict=True):
        way = way + (weight - inverse * (turn * way).sum(1))[:, None] * step
    return way


def _fit(
    examples: Examples,
    draws: Sequence[Draw],
    layers: Sequence[int],
    weight: Tensor,
    bias: Tensor,
    rounds: Tensor,
) -> Fit:
    """The result, with the loss on the held-out rows."""
    weight, bias = weight.float(), bias.float()
    device = examples.targets.device
    loss = torch.zeros(weight.shape[:2], dtype=torch.float64, device=device)
    for trial, draw in enumerate(draws):
        targets = examples.targets[torch.from_numpy(draw.held).to(device)]
        done = 0
        for x in blocks(examples.features, draw.held, layers, device):
            out = weight[:, trial] @ x.transpose(1, 2) + bias[:, trial, :, None]
            wanted = targets[done : done + x.shape[1]].T.expand_as(out)
            loss[:, trial] += losses(examples.kind, out, wanted).double().sum(1)
            done += x.shape[1]
    loss /= len(draws[0].held)
    return Fit(tuple(layers), weight, bias, loss.float(), rounds)
