"""A tuned lens: one affine map a layer that turns its states into what the last layer would give.

A plain lens asks how much a layer is like the last one, a tuned one how much it knows, in whatever
coordinates. It belongs to the head that it was made for, and to no other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from restack.anatomy import models
from restack.errors import CheckpointError, DataError, StackError
from restack.observe.heads import MEMORY, Head, chunks, own_head
from restack.observe.right_tokens import asked_tokens, states_at
from restack.observe.running import Batch
from restack.observe.splitting import Pieces

_FORMAT = "restack tuned lens 1"
_COPIES = 8  # of the logits of a chunk: two distributions, and what their gradients need
_STEP = 512  # tokens for one step of the optimiser
EPOCHS = 3


@dataclass(frozen=True, slots=True)
class TunedLens:
    """Affine maps for the layers 0 to depth - 1; the last layer needs none."""

    maps: Tensor
    """Depth x hidden x hidden; what comes out is added to the state."""
    shifts: Tensor
    """Depth x hidden."""
    head: str
    """The fingerprint of the head that it was made for."""

    def translate(self, layer: int, states: Tensor) -> Tensor:
        """Rows of states of a layer, as the last layer would give them."""
        return _translate(states, *(t[layer].to(states.device) for t in (self.maps, self.shifts)))

    def check(self, head: Head, depth: int) -> None:
        """Refuse another head than the one that it was made for, and another depth."""
        if self.head != head.fingerprint:
            raise StackError(
                f"the tuned lens was made for the head {self.head}; this head is "
                f"{head.fingerprint}",
                hint="use it with the checkpoint that it was made for, in the same dtype, or make "
                "another one",
            )
        if len(self.maps) != depth:
            raise StackError(
                f"the tuned lens is for {len(self.maps)} layers; the stack has {depth}",
                hint="make another one for this model",
            )


def _translate(states: Tensor, change: Tensor, shift: Tensor) -> Tensor:
    states = states.float()
    return states + functional.linear(states, change, shift)


def tune_lens(
    model: PreTrainedModel,
    batches: Iterable[Batch],
    *,
    stack: str | None = None,
    head: Head | None = None,
    epochs: int = EPOCHS,
    learning_rate: float = 1e-3,
    seed: int = 0,
    memory: int = MEMORY,
    progress: Callable[[int, float], None] | None = None,
) -> TunedLens:
    """Train a tuned lens on texts: each layer's distribution is brought to that of the last.

    All maps start as the identity. The loss is the Kullback-Leibler divergence from the last
    layer's distribution, the model stays as it is. A batch that does not fit into memory is
    halved. `progress` is told the tokens of each step and their mean loss over the layers.
    """
    found = models.pick(model, stack)
    head = head or own_head(model, stack=found.path)

    def where(batch: Batch) -> Tensor:
        return asked_tokens(batch, head.reads).where

    kept = [batch for batch in batches if where(batch).any()]
    steps = epochs * sum(-(-int(where(batch).sum()) // _STEP) for batch in kept)
    if not steps:
        raise DataError("there is no token to train a tuned lens on", hint="give longer texts")
    size, width = found.depth, head.hidden
    maps = [torch.zeros(width, width, device=head.device, requires_grad=True) for _ in range(size)]
    shifts = [torch.zeros(width, device=head.device, requires_grad=True) for _ in range(size)]
    optimizer = torch.optim.Adam([*maps, *shifts], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.01, total_iters=steps)
    shuffle = torch.Generator().manual_seed(seed)
    pieces = Pieces()

    def states_of(batch: Batch) -> list[Tensor]:
        return states_at(model, found, batch, where(batch))

    for _ in range(epochs):
        mixed = (kept[i] for i in torch.randperm(len(kept), generator=shuffle).tolist())
        for _, states in (piece for batch in mixed for piece in pieces.run(batch, states_of)):
            if not len(states[0]):  # a half may hold no token that is asked for
                continue
            order = torch.randperm(len(states[0]), generator=shuffle).to(states[0].device)
            for rows in order.split(_STEP):
                loss = _gradients(head, [state[rows] for state in states], maps, shifts, memory)
                optimizer.step()
                schedule.step()
                if progress is not None:
                    progress(len(rows), loss / size)
    return TunedLens(
        torch.stack(maps).detach().cpu(), torch.stack(shifts).detach().cpu(), head.fingerprint
    )


def _gradients(
    head: Head, states: list[Tensor], maps: list[Tensor], shifts: list[Tensor], memory: int
) -> float:
    """Set the gradients of all maps for some rows; the loss, summed over layers."""
    total = 0.0
    for parameter in (*maps, *shifts):
        parameter.grad = torch.zeros_like(parameter)
    for chunk in chunks(head, *states, memory=memory, copies=_COPIES):
        with torch.no_grad():
            wanted = head.logits(chunk[-1]).float().log_softmax(-1)
        for change, shift, rows in zip(maps, shifts, chunk[:-1], strict=True):
            with torch.enable_grad():
                given = head.logits(_translate(rows, change, shift)).float().log_softmax(-1)
                loss = functional.kl_div(given, wanted, reduction="sum", log_target=True)
                loss = loss / len(states[0])
            # not backward(), which would leave gradients on the model
            for parameter, gradient in zip(
                (change, shift), torch.autograd.grad(loss, (change, shift)), strict=True
            ):
                assert parameter.grad is not None
                parameter.grad += gradient
            total += loss.item()
    return total


def save_tuned(tuned: TunedLens, path: str | Path) -> None:
    """Write a tuned lens as a safetensors file that names the head that it belongs to."""
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {"maps": tuned.maps.contiguous(), "shifts": tuned.shifts.contiguous()}
        written = save(tensors, metadata={"format": _FORMAT, "head": tuned.head})
        with part.open("wb") as file:  # save_file would give nobody else the right to read it
            file.write(written)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def load_tuned(path: str | Path, head: Head | None = None) -> TunedLens:
    """Read a tuned lens; given a head, it is refused if it was made for another."""
    try:
        with safe_open(path, framework="pt") as file:
            said = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read as a tuned lens: {error}") from error
    if said.get("format") != _FORMAT or set(tensors) != {"maps", "shifts"} or "head" not in said:
        raise CheckpointError(
            f"{path} is no tuned lens: its metadata should name the format {_FORMAT!r}, and says "
            f"{said.get('format')!r}"
        )
    tuned = TunedLens(tensors["maps"], tensors["shifts"], said["head"])
    if head is not None:
        tuned.check(head, len(tuned.maps))
    return tuned
