"""A model's own language-modelling head, as a function of a raw state of its stack.

The model runs its own tail: whatever lies between the stack and the logits (final norm, transform,
scaling, soft-capping) is what its forward does there, so that no architecture needs a table.
States are given as rows, one per real token, and taken in chunks: tokens x vocabulary never exists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from restack.anatomy import models
from restack.anatomy.anatomy import Stack
from restack.errors import StackError
from restack.observe.stack_run import finish

MEMORY = 64 * 2**20  # bytes for the logits of one chunk and what is made of them
_COPIES = 3  # of the logits at once: themselves, in float32, and a comparison or exponentials


@dataclass(frozen=True, slots=True)
class Head:
    """What turns raw states into logits, and whose it is."""

    label: str
    """`own`, `fitted`, or the name of the checkpoint that it was taken from."""
    reads: Literal["same", "next"]
    """Whether it names the token at its place (masked models) or the one behind (causal ones)."""
    hidden: int
    vocab: int
    logits: Callable[[Tensor], Tensor]
    """Rows of states (n x hidden) to rows of logits (n x vocab)."""
    weights: Mapping[str, Tensor]
    """What it computes with, by name."""

    @property
    def fingerprint(self) -> str:
        """A hash of its weights, by which a tuned lens knows the head that it was made for."""
        seen = hashlib.sha256()
        for name, tensor in sorted(self.weights.items()):
            # the name of the model class may stand in front, the end tells the parts apart
            seen.update(f"{name.rpartition('.')[2]} {tensor.dtype} {list(tensor.shape)}".encode())
            seen.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return seen.hexdigest()[:32]
