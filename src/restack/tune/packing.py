"""Whether a model keeps texts apart that stand end to end in one row."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from restack.errors import StackError
from restack.tune.examples import Examples
from restack.tune.losses import task_loss

_FAR = 1e-3  # relative; texts that see each other are much farther apart than kernels are


@torch.no_grad()
def check_packing(model: nn.Module, examples: Examples) -> None:
    """Try the first texts packed and one by one; refuse a model that gives other losses."""
    rows = np.arange(min(3, len(examples)))
    loss = task_loss("lm")
    was = model.training
    model.eval()
    try:
        packed = float(loss(model, examples.batch(rows)))
        alone = sum(float(loss(model, examples.batch(rows[i : i + 1]))) for i in rows)
    except TypeError as error:
        raise StackError(
            f"{type(model).__name__} cannot read packed texts: {error}",
            hint="Leave packing out.",
        ) from error
    finally:
        model.train(was)
    if not abs(packed - alone) <= _FAR * abs(alone):
        raise StackError(
            f"{type(model).__name__} does not keep packed texts apart: their loss is "
            f"{packed:.4f}, one by one it is {alone:.4f}",
            hint="Leave packing out, or load the model with another attention.",
        )
