"""A layer applied to the states of several plans at once, as one larger batch.

What a layer is given beside the state holds rows too: masks, positions. Where, is seen by recording
the model on several copies of the batch: the rows lie along what has grown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from restack.errors import StackError
from restack.observe.recording import Call, Recording, record
from restack.observe.running import Batch
from restack.observe.splitting import rows_of, take_rows
from restack.observe.stack_run import state_out


@dataclass(frozen=True, slots=True)
class Joint:
    """How layers are called for up to so many copies of a batch."""

    one: Recording
    """Of the batch itself."""
    calls: tuple[Call, ...]
    """For all the copies."""
    rows: int
    """Of one copy."""
    axis: int
    """Of a state: where its rows lie."""

    def apply(
        self, layer: int, states: Sequence[Tensor], module: nn.Module | None = None
    ) -> list[Tensor]:
        """What this layer makes of each of the states; `module` takes its place."""
        if len(states) == 1:
            return [self.one.apply(layer, states[0], module)]
        small, large = self.one.calls[layer], self.calls[layer]
        rows = self.rows * len(states)
        call = Call(large.layer, *_first_rows(_given(small), _given(large), self.rows, rows))
        made = state_out(call.again(torch.cat(list(states), self.axis), module))
        return list(made.split(self.rows, self.axis))


def joint(one: Recording, batch: Batch, copies: int) -> Joint | None:
    """The calls for so many copies of a batch; None if rows cannot be told from all else."""
    rows = rows_of(batch)
    if rows is None or one.earlier:  # another stack came before, and would run for every copy
        return None
    many = record(one.model, one.stack, take_rows(batch, list(range(rows)) * copies), one.form)
    try:
        axis = _axis(one.start, many.start, rows)
        for small, large in zip(one.calls, many.calls, strict=True):
            _first_rows(_given(small), _given(large), rows, rows * copies)
    except StackError:
        return None
    return None if axis is None else Joint(one, many.calls, rows, axis)


def _given(call: Call) -> tuple[Any, ...]:
    return call.args, call.kwargs


def _first_rows(small: Any, large: Any, rows: int, wanted: int) -> Any:
    """What a model gives for so many rows, out of what it gives for more and for fewer."""
    if isinstance(large, Tensor):
        axis = _axis(small, large, rows)
        return large if axis is None else large.narrow(axis, 0, wanted)
    if isinstance(large, dict):
        return {name: _first_rows(small[name], v, rows, wanted) for name, v in large.items()}
    if isinstance(large, tuple | list):
        return tuple(_first_rows(*pair, rows, wanted) for pair in zip(small, large, strict=True))
    if small is not large and small != large:
        raise StackError(f"a layer is given {small!r} for {rows} rows, and {large!r} for more")
    return large


def _axis(small: Any, large: Tensor, rows: int) -> int | None:
    """Where the rows of a tensor lie; None if it holds none."""
    if not isinstance(small, Tensor) or small.dim() != large.dim():
        raise StackError("a layer is given other things for more rows")
    grown = [i for i, (a, b) in enumerate(zip(small.shape, large.shape, strict=True)) if a != b]
    if not grown:
        return None
    if len(grown) > 1 or small.shape[grown[0]] != rows:
        raise StackError(f"a layer is given {[*small.shape]} for {rows} rows")
    return grown[0]
