"""Several models of one architecture as one: each module that has weights holds those of all.

The rows of all models follow each other in one batch, (models x rows, ...). A linear layer is then
one batched product with a weight matrix a model; whatever has no weights (attention, activations)
sees a larger batch and need not know. `torch.vmap` would do the same for any module, and was tried
first: on a CPU its attention falls back to a loop over the models, and biases and transposed
gradients cost it passes of their own over memory, so that nothing was gained.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Unfoldable(Exception):
    """These models cannot be run as one."""


@dataclass(slots=True)
class _Batch:
    """What all modules of a folded model know of the batch that they are in."""

    models: int
    rows: int = 0
    """Of each model."""

    def apart(self, tensor: Tensor) -> Tensor:
        """(models x rows, ..., width) as (models, all the rest, width)."""
        if tensor.shape[0] != self.models * self.rows:
            raise Unfoldable(f"a module is given {tuple(tensor.shape)}, which is no row a text")
        return tensor.reshape(self.models, -1, tensor.shape[-1])


class _Linear(nn.Module):
    """Linear layers; matrices lie as (models, in, out), so that no gradient is transposed."""

    def __init__(self, own: Sequence[nn.Linear], batch: _Batch) -> None:
        super().__init__()
        self.batch = batch
        self.weight = _together([one.weight.T for one in own])
        self.bias = None
        if own[0].bias is not None:
            self.bias = _together([one.bias.unsqueeze(0) for one in own])

    def forward(self, x: Tensor) -> Tensor:
        rows = self.batch.apart(x)
        if self.bias is None:
            made = torch.bmm(rows, self.weight)
        else:
            made = torch.baddbmm(self.bias, rows, self.weight)
        return made.view(*x.shape[:-1], -1)


class _Embedding(nn.Module):
    """Tables of vectors, one below the other."""

    def __init__(self, own: Sequence[nn.Embedding], batch: _Batch) -> None:
        super().__init__()
        if own[0].max_norm is not None or own[0].sparse or own[0].scale_grad_by_freq:
            raise Unfoldable("an embedding with rules of its own")
        self.batch = batch
        self.weight = _together([one.weight for one in own])
        self.padding_idx = own[0].padding_idx
        if self.padding_idx is not None:  # this row learns nothing
            self.weight.register_post_accumulate_grad_hook(self._forget)

    def _forget(self, weight: Tensor) -> None:
        assert weight.grad is not None
        weight.grad[:, self.padding_idx] = 0

    def forward(self, index: Tensor) -> Tensor:
        models, size = self.weight.shape[:2]
        rows = models * self.batch.rows
        if index.shape[0] == 1:  # positions, which are the same for every text
            index = index.expand(rows, *index.shape[1:])
        if index.shape[0] != rows:
            raise Unfoldable(f"an embedding is asked for {tuple(index.shape)}, which is no text")
        first = torch.arange(0, models * size, size, device=index.device)
        first = first.repeat_interleave(self.batch.rows)
        below = first.view(-1, *[1] * (index.dim() - 1))
        return functional.embedding(index + below, self.weight.flatten(0, 1))


class _LayerNorm(nn.Module):
    """Norms over the last dimension."""

    def __init__(self, own: Sequence[nn.LayerNorm], batch: _Batch) -> None:
        super().__init__()
        if len(own[0].normalized_shape) != 1 or own[0].bias is None:
            raise Unfoldable("a norm over several dimensions, or without a bias")
        self.batch, self.eps = batch, own[0].eps
        self.weight = _together([one.weight.unsqueeze(0) for one in own])
        self.bias = _together([one.bias.unsqueeze(0) for one in own])

    def forward(self, x: Tensor) -> Tensor:
        even = functional.layer_norm(x, x.shape[-1:], None, None, self.eps)
        return torch.addcmul(self.bias, self.batch.apart(even), self.weight).view(x.shape)


_FOLDED: dict[type[nn.Module], Any] = {
    nn.Linear: _Linear,
    nn.Embedding: _Embedding,
    nn.LayerNorm: _LayerNorm,
}


class Folded(nn.Module):
    """Models of one architecture as one; parameters have the names that they have in each."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        """Refuses what it does not know with `Unfoldable`; the given models stay as they are."""
        super().__init__()
        self.batch = _Batch(len(models))
        _compare(models)
        # their weights are copied when they are put together, and not before
        shared = {id(tensor): tensor for tensor in models[0].parameters()}
        self.model = copy.deepcopy(models[0], shared)  # type: ignore[arg-type]
        self._fold(self.model, list(models), {})

    def _fold(
        self, parent: nn.Module, own: Sequence[nn.Module], done: dict[int, nn.Module]
    ) -> None:
        if parent._parameters and any(p is not None for p in parent._parameters.values()):
            raise Unfoldable(f"{type(parent).__name__} holds weights in a way of its own")
        for name, child in list(parent.named_children()):
            those = [getattr(one, name) for one in own]
            if id(child) in done:  # a layer that stands in several places
                setattr(parent, name, done[id(child)])
                continue
            kind = _FOLDED.get(type(child))
            if kind is None:
                self._fold(child, those, done)
                done[id(child)] = child
            else:
                done[id(child)] = kind(those, self.batch)
                setattr(parent, name, done[id(child)])

    def forward(self, **inputs: Tensor) -> Tensor:
        """The logits of all models on their rows: (models, rows, outputs)."""
        self.batch.rows = len(inputs["input_ids"]) // self.batch.models
        logits: Tensor = self.model(**inputs).logits
        return logits.view(self.batch.models, self.batch.rows, *logits.shape[1:])


def _compare(models: Sequence[nn.Module]) -> None:
    """Refuse models that differ in more than their weights, or tie some of them."""
    first = models[0]
    named = dict(first.named_parameters(remove_duplicate=False))
    modules = dict(first.named_modules())  # each once, though it may stand in several places
    owned = [id(p) for name, p in named.items() if name.rpartition(".")[0] in modules]
    if len(set(owned)) < len(owned):
        raise Unfoldable("some of its weights are tied")
    for other in models[1:]:
        theirs = dict(other.named_buffers())
        for name, buffer in first.named_buffers():
            if not torch.equal(buffer, theirs[name]):
                raise Unfoldable(f"the models differ in {name}")


def _together(tensors: Sequence[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.stack([tensor.detach() for tensor in tensors]))
