"""Which tensors a result was computed with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode


class Trace(TorchFunctionMode):
    """Notes what is computed from what, once `begin` was called.

    The graph of gradients would tell the same, but only of parameters that train.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on = False
        # the tensors themselves are kept, lest the id of one that is gone be given to another
        self.steps: list[tuple[list[Tensor], list[Tensor]]] = []

    def begin(self) -> None:
        self.on = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.on:
            taken = list(_tensors((args, kwargs or {})))
            # an assignment to a part gives nothing back, and changes its first argument
            self.steps.append((taken, list(_tensors(result)) or taken[:1]))
        return result

    def behind(self, result: Tensor) -> set[int]:
        """The ids of all tensors that the result depends on."""
        wanted = {id(result)}
        for taken, made in reversed(self.steps):
            if any(id(tensor) in wanted for tensor in made):
                wanted.update(id(tensor) for tensor in taken)
        return wanted


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, Tensor):
        yield value
