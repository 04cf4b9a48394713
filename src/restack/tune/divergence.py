"""How far a student's answers are from a teacher's, with little memory for large vocabularies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MEMORY = 256 * 2**20
"""Bytes for what exists of one chunk of rows at once."""
_COPIES = 6  # float32 tensors of rows x outputs

Goal = Callable[[Tensor], Tensor]
"""Gives the teacher's logits for some rows, by their numbers."""


def divergence(
    logits: Tensor, rows: Tensor, goal: Goal, temperature: float = 1.0, *, memory: int = MEMORY
) -> Tensor:
    """The sum over rows of KL(teacher || student), times the squared temperature.

    `logits` are the student's (n x outputs), of which `rows` count. The teacher's are asked for a
    few rows at a time, and the gradient is found on the way: besides the student's logits and
    their gradient nothing as large exists. Outputs at -inf on both sides take no part.
    """
    found: Tensor = _Divergence.apply(logits, rows, goal, temperature, memory)
    return found


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, rows: Tensor, goal: Goal, temperature: float, memory: int
    ) -> Tensor:
        step = max(1, memory // (4 * _COPIES * logits.shape[-1]))
        gradient = torch.zeros_like(logits) if ctx.needs_input_grad[0] else None
        total = torch.zeros((), dtype=torch.float64, device=logits.device)
        for some in rows.split(step):
            ours = (logits[some].float() / temperature).log_softmax(-1)
            theirs = (goal(some).float() / temperature).log_softmax(-1)
            right = theirs.exp()
            apart = torch.where(right > 0, right * (theirs - ours), 0)
            total += apart.sum(dtype=torch.float64)
            if gradient is not None:
                # one temperature of its square is taken back by the division above
                gradient[some] = (temperature * (ours.exp() - right)).to(gradient.dtype)
        ctx.save_for_backward(*([] if gradient is None else [gradient]))
        return (total * temperature**2).float()

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * above[0], None, None, None, None
