"""Many linear readers at once: each layer of each trial is one problem of one batch.

What a problem learns is a function of the settings, its layer and its trial, and not of the other
problems in the batch, up to the rounding of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from restack.errors import DataError
from restack.observe.linear_adam import adam
from restack.observe.linear_base import (
    PAPER,
    Draw,
    Examples,
    Fit,
    Kind,
    Settings,
    blocks,
)
from restack.observe.linear_exact import lbfgs, ridge

__all__ = ["PAPER", "Draw", "Examples", "Fit", "Kind", "Settings", "fit", "predict"]


def fit(
    examples: Examples,
    draws: Sequence[Draw],
    layers: Sequence[int],
    settings: Settings | None = None,
    *,
    device: str | torch.device = "cpu",
    progress: Callable[[int, int, int], None] | None = None,
) -> Fit:
    """Train a reader for each of the layers in each of the trials, all together.

    All draws must be of one size. `progress` is told the epoch, the most epochs, and how many
    problems still learn (by `adam` alone). A loss that becomes no finite number is an error.
    """
    settings = settings or Settings()
    if len({(len(draw.train), len(draw.held)) for draw in draws}) != 1:
        raise DataError("the trials that are trained together must have rows of one number")
    place = torch.device(device)
    if place.type == "mps":  # it has no float64, and the features lie on the CPU's side anyway
        place = torch.device("cpu")
    examples = replace(
        examples, features=_near(examples.features, place), targets=examples.targets.to(place)
    )
    with torch.no_grad():
        if settings.solver == "adam":
            found = adam(examples, draws, layers, settings, progress)
        else:
            solve = ridge if examples.kind == "regression" else lbfgs
            found = solve(examples, draws, layers, settings)
    bad = (~torch.isfinite(found.loss)).nonzero()
    if len(bad):
        layer, trial = bad[0].tolist()
        raise DataError(
            f"the reader of layer {layers[layer]}, trial {draws[trial].number}, has come to no "
            f"finite loss (solver {settings.solver!r})",
            hint="Lower the learning rate, or standardise the features.",
        )
    return found


def predict(found: Fit, features: Tensor) -> np.ndarray:
    """What all readers make of the features: layers x trials x rows x outputs.

    Before any softmax or sigmoid.
    """
    layers, trials, outputs, hidden = found.weight.shape
    weight = found.weight.reshape(layers, trials * outputs, hidden).transpose(1, 2)
    bias = found.bias.reshape(layers, 1, trials * outputs)
    made = np.empty((layers, trials, len(features), outputs), dtype=np.float32)
    done = 0
    for x in blocks(features, np.arange(len(features)), found.layers, weight.device):
        out = torch.baddbmm(bias, x, weight).view(layers, -1, trials, outputs)
        made[:, :, done : done + x.shape[1]] = out.transpose(1, 2).cpu().numpy()
        done += x.shape[1]
    return made


def _near(features: Tensor, device: torch.device) -> Tensor:
    """The features, on the GPU if they take less than half of what is free there."""
    if device.type != "cuda":
        return features
    free, _ = torch.cuda.mem_get_info(device)
    return features.to(device) if features.nbytes < free // 2 else features
