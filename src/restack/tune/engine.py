"""Where and how a model runs: device, processes, number formats; what is asked of accelerate.

accelerate finds the device, wraps the model (DDP, FSDP by its own config) and joins results. It
keeps the number format of mixed precision once for the whole process and patches the model's
forward; a sweep has runs of several formats in one process, so autocast is torch's own here.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from restack.errors import RestackError
from restack.tune.optim import clip
from restack.tune.recipe import Precision, Recipe

_FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Engine:
    """A device or several, and a number format."""

    device: torch.device
    precision: Precision
    accelerator: Any
    """None where one process has one device."""
    scaler: Any
    """Keeps gradients in fp16 from vanishing; None for other formats."""

    @property
    def world(self) -> int:
        """Processes that train together."""
        return 1 if self.accelerator is None else int(self.accelerator.num_processes)

    @property
    def rank(self) -> int:
        return 0 if self.accelerator is None else int(self.accelerator.process_index)

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    @property
    def sharded(self) -> bool:
        """Whether each process holds a part of each weight."""
        return self.accelerator is not None and self.accelerator.distributed_type == "FSDP"

    @property
    def waits(self) -> bool:
        """Whether to look at a number is to wait for the device."""
        return self.device.type != "cpu"

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Matrix products in the number format of the run."""
        if self.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, _FORMATS[self.precision])

    def backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def apart(self, model: nn.Module, *, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Around a batch of several for one update: processes join gradients after the last."""
        if self.accelerator is None or last:
            return contextlib.nullcontext()
        return self.accelerator.no_sync(model)  # type: ignore[no-any-return]

    def clip(self, model: nn.Module, optimizer: Any, limit: float | None) -> Tensor:
        """Shorten the gradient; its norm before."""
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
        if self.sharded:
            most = float("inf") if limit is None else limit
            return self.accelerator.clip_grad_norm_(model.parameters(), most)  # type: ignore[no-any-return]
        return clip(model.parameters(), limit)

    def update(self, optimizer: Any) -> None:
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()
        optimizer.zero_grad(set_to_none=True)

    def placed(self, model: nn.Module, make_optimizer: Any) -> tuple[nn.Module, Any]:
        """The model on its device, wrapped if there are several, and its optimizer."""
        if self.accelerator is None:
            model.to(self.device)
            return model, make_optimizer()
        wrapped, optimizer = self.accelerator.prepare(model, make_optimizer())
        # the wrapper of accelerate is for its own scaler and accumulation
        return wrapped, getattr(optimizer, "optimizer", optimizer)

    def total(self, value: float) -> float:
        """The sum of a number over all processes."""
        if self.world == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        return float(self.accelerator.reduce(tensor, "sum"))

    def joined(self, items: list[Any]) -> list[Any]:
        """The items of all processes, those of the first process first."""
        if self.world == 1:
            return items
        from accelerate.utils import gather_object

        return list(gather_object(items))

    def any(self, wish: object) -> bool:
        """Whether one of the processes says yes."""
        return bool(self.total(float(bool(wish))))

    def wait(self) -> None:
        if self.accelerator is not None:
            self.accelerator.wait_for_everyone()


def make_engine(recipe: Recipe, device: str | torch.device | None = None) -> Engine:
    """The engine for a recipe: on `device`, or where accelerate says."""
    accelerator = None
    if device is None or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate import Accelerator

        found = Accelerator()
        device = found.device
        accelerator = found if found.num_processes > 1 else None
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise RestackError("there is no CUDA device", hint="Use the device 'cpu'.")
    sharded = accelerator is not None and accelerator.distributed_type == "FSDP"
    if sharded and not accelerator.is_fsdp2:  # type: ignore[union-attr]
        raise RestackError(
            "weights are sharded by FSDP 2 only, and accelerate is set to version 1",
            hint="Set fsdp_version to 2 by `accelerate config`, or in FSDP_VERSION.",
        )
    scaler = None
    if recipe.precision == "fp16":
        if place.type == "cpu":
            raise RestackError(
                "training in fp16 on a CPU is slow and of no use", hint="Use bf16 or fp32 there."
            )
        if sharded:
            raise RestackError("fp16 is not supported together with FSDP", hint="Use bf16.")
        scaler = torch.amp.GradScaler(place.type)
    return Engine(place, recipe.precision, accelerator, scaler)


def seed_all(seed: int) -> None:
    """Start all random numbers that a model may draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Any]:
    """Where all random numbers stand, as data that `torch.load(weights_only=True)` accepts."""
    name, keys, *rest = np.random.get_state()
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["device"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state["device"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Put all random numbers back to where they stood."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["device"], device)
    elif device.type == "mps":
        torch.mps.set_rng_state(state["device"])


@contextlib.contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Only kernels that give the same numbers each time, where a GPU has others too."""
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # asked for by CUDA's matrices
    before = torch.are_deterministic_algorithms_enabled()
    loud = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=loud)
