"""Low-rank updates by peft, laid beside the linear layers of the stack and merged at the end."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from restack.errors import RestackError
from restack.plan import Mark, Plan
from restack.tune.optim import Layers, embeddings
from restack.tune.recipe import Lora


def add_lora(
    model: nn.Module, layers: Layers | None, lora: Lora, plan: Plan | None, *, head: bool
) -> Any:
    """Freeze the model and lay updates beside its layers; give what `merge` takes.

    With `head` all that lies outside of stack and embeddings is trained too.
    """
    try:
        from peft import LoraConfig, LoraModel
    except ImportError as error:
        raise RestackError(
            "LoRA needs peft, which is not installed", hint="pip install 'restack[lora]'"
        ) from error
    if layers is None:
        raise RestackError(
            "LoRA goes beside the layers, and the model has no stack or several",
            hint="Name the stack.",
        )
    if plan is not None and Mark.TIED in plan.marks:
        raise RestackError(
            "slots that are tied would get updates of their own with LoRA, and be tied no more",
            hint="Use copies without @tied, or train the whole model.",
        )
    linear = [
        name
        for name, module in model.named_modules()
        if name.startswith(f"{layers.path}.") and isinstance(module, nn.Linear | Conv1D)
    ]
    if not linear:
        raise RestackError(f"the layers of `{layers.path}` hold no linear layer for LoRA")
    conv = isinstance(model.get_submodule(linear[0]), Conv1D)
    outside = _outside(model, layers) if head else []
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # it is only multiplied by
        lora_dropout=lora.dropout,
        target_modules=linear,
        fan_in_fan_out=conv,
    )
    tuner = LoraModel(model, config, "default")
    for parameter in outside:
        parameter.requires_grad_(True)
    return tuner


def _outside(model: nn.Module, layers: Layers) -> list[nn.Parameter]:
    """Trained parameters that belong neither to the stack nor to the embeddings."""
    below = {id(parameter) for parameter in embeddings(model)}
    return [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        and id(parameter) not in below
        and not name.startswith(f"{layers.path}.")
    ]


def merge(tuner: Any) -> nn.Module:
    """Add the updates to the weights; the model is as it was before `add_lora`, but tuned."""
    merged: nn.Module = tuner.merge_and_unload()
    for parameter in merged.parameters():
        parameter.requires_grad_(True)
    return merged
