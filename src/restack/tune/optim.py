"""Which weights are trained at which rate, the schedule, and clipping."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from restack.errors import PlanError, RestackError
from restack.plan import Mark, Plan
from restack.tune.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Layers:
    """Where the layers of a model lie, for rates that differ from slot to slot."""

    path: str
    """The module path of the stack in the model that is trained."""
    depth: int
    shared: bool = False
    """All layers are one module, as in ALBERT."""
    fresh: tuple[int, ...] = ()
    """The slots that the plan made fresh."""

    @classmethod
    def of(cls, path: str, depth: int, plan: Plan | None, *, shared: bool = False) -> Layers:
        slots = enumerate(plan) if plan is not None else ()
        return cls(path, depth, shared, tuple(i for i, s in slots if s.mark is Mark.FRESH))

    def slot(self, name: str) -> int | None:
        """The slot that a parameter belongs to; None outside the stack, or where slots share."""
        if self.shared or not name.startswith(f"{self.path}."):
            return None
        return int(name[len(self.path) + 1 :].partition(".")[0])


def freeze(model: nn.Module, layers: Layers | None, recipe: Recipe) -> None:
    """Take frozen slots and embeddings out of the training."""
    if recipe.freeze:
        layers = needed(layers, "freeze")
        for slot in recipe.freeze:
            if not 0 <= slot < layers.depth:
                raise PlanError(
                    f"slot {slot} cannot be frozen; the slots are 0..{layers.depth - 1}"
                )
        # tied slots share their parameters: what is frozen in one does not train in the other
        owners: dict[int, set[int]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            own = layers.slot(name)
            if own is not None:
                owners.setdefault(id(parameter), set()).add(own)
        for slots in owners.values():
            if slots & set(recipe.freeze) and not slots <= set(recipe.freeze):
                raise PlanError(
                    f"slots {', '.join(map(str, sorted(slots)))} are tied, and only some of them "
                    "are to be frozen",
                    hint="Freeze all of them or none.",
                )
        for name, parameter in model.named_parameters():
            if layers.slot(name) in recipe.freeze:
                parameter.requires_grad_(False)
    if recipe.freeze_embeddings:
        for parameter in embeddings(model):
            parameter.requires_grad_(False)


def embeddings(model: nn.Module) -> list[nn.Parameter]:
    """All parameters of the module that holds the token embeddings (positions and norms too)."""
    body: Any = getattr(model, "body", model)
    tokens = body.get_input_embeddings()
    for name, module in body.named_modules():
        if name.rpartition(".")[2] == "embeddings" and any(m is tokens for m in module.modules()):
            return list(module.parameters())
    return list(tokens.parameters())


def parameter_groups(
    model: nn.Module, layers: Layers | None, recipe: Recipe
) -> list[dict[str, Any]]:
    """The trained parameters, each once, by rate and weight decay.

    The top layer and all outside the stack have the full rate; with `layer_decay` each layer below
    has that part of the rate of the one above, and the embeddings that part of the lowest layer's.
    """
    if recipe.layer_decay != 1 or recipe.fresh_factor != 1:
        layers = needed(layers, "layer_decay" if recipe.layer_decay != 1 else "fresh_factor")
    if recipe.fresh_factor != 1 and layers is not None and not layers.fresh:
        raise RestackError(
            f"fresh_factor is {recipe.fresh_factor}, and the plan makes no slot fresh",
            hint="Mark slots @fresh, or leave the factor at 1.",
        )
    lowest = {id(p) for p in embeddings(model)} if recipe.layer_decay != 1 else set()
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():  # gives tied parameters once
        if not parameter.requires_grad:
            continue
        factor = 1.0
        slot = layers.slot(name) if layers is not None else None
        if layers is not None and slot is not None:
            factor = recipe.layer_decay ** (layers.depth - 1 - slot)
            factor *= recipe.fresh_factor if slot in layers.fresh else 1
        elif layers is not None and id(parameter) in lowest:
            factor = recipe.layer_decay**layers.depth
        decay = recipe.weight_decay if parameter.dim() > 1 else 0.0
        groups.setdefault((factor, decay), []).append(parameter)
    if not groups:
        raise RestackError("nothing is left to train", hint="Freeze less.")
    return [
        {"params": parameters, "factor": factor, "weight_decay": decay}
        for (factor, decay), parameters in groups.items()
    ]


def needed(layers: Layers | None, setting: str) -> Layers:
    """The layers, for a setting that needs to tell them apart."""
    if layers is None:
        raise RestackError(
            f"{setting} goes by layers, and the model has no stack or several",
            hint="Name the stack.",
        )
    if layers.shared:
        raise RestackError(
            f"{setting} goes by layers, and all layers of `{layers.path}` share their weights",
            hint=f"Leave {setting} out.",
        )
    return layers


def make_optimizer(groups: list[dict[str, Any]], recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW, its update in one kernel where there is one."""
    devices = {p.device.type for group in groups for p in group["params"]}
    fused = devices <= {"cpu", "cuda", "mps", "xpu"}
    return torch.optim.AdamW(
        groups, lr=recipe.rate, betas=recipe.betas, eps=recipe.epsilon, fused=fused
    )


def rate_at(step: int, total: int, recipe: Recipe) -> float:
    """The rate of update `step`, counted from 0: up in a line, then down to 0 in a line.

    >>> [rate_at(i, 4, Recipe(rate=1.0, warmup=2)) for i in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    rising = recipe.warmup if recipe.warmup >= 1 else math.ceil(recipe.warmup * total)
    if step < rising:
        return recipe.rate * (step + 1) / rising
    if recipe.schedule == "constant":
        return recipe.rate
    return recipe.rate * (total - step) / max(1, total - rising)


def set_rate(optimizer: Any, rate: float) -> None:
    """Give each group its part of a rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]


def clip(parameters: Iterable[Tensor], limit: float | None) -> Tensor:
    """Shorten the gradient to `limit`; its norm before."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients, foreach=None)
    if limit is None or (norm.device.type == "cpu" and norm <= limit):
        return norm  # on a GPU to look at the norm would be to wait for it
    # a gradient that is no finite number is stopped by the loop and need not be raised here
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
    torch._foreach_mul_(gradients, factor)
    return norm
