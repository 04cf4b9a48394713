"""The head of Tamkin et al.: the mean of the last hidden states over real tokens, and a linear
layer.

On disk it is an ordinary directory of the model without a head, and the linear layer beside it in
a small file of its own; `AutoModel` loads the one, `load_mean_pool` both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from restack.errors import CheckpointError
from restack.tune.silence import silence

FILE = "mean_pool_head.safetensors"


class MeanPool(nn.Module):
    """A model without a head, and the linear layer behind the mean of its last states."""

    def __init__(self, body: PreTrainedModel, head: nn.Linear | int, *, seed: int = 0) -> None:
        super().__init__()
        self.body = body
        self.head = head if isinstance(head, nn.Linear) else _drawn(body.config, head, seed)

    @property
    def config(self) -> PreTrainedConfig:
        return self.body.config

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, **inputs: Any
    ) -> SequenceClassifierOutput:
        states = self.body(input_ids=input_ids, attention_mask=attention_mask, **inputs)[0]
        real = attention_mask.unsqueeze(-1).to(states.dtype)
        # padding may hold anything, and 0 x NaN is NaN
        total = torch.where(real > 0, states, 0).sum(1)
        return SequenceClassifierOutput(logits=self.head(total / real.sum(1)))

    def save_pretrained(self, directory: Path, **options: Any) -> None:
        """Write the body as an ordinary model, and the head beside it."""
        self.body.save_pretrained(directory, **options)
        tensors = {
            name: t.detach().cpu().contiguous() for name, t in self.head.state_dict().items()
        }
        save_file(tensors, directory / FILE)


def _drawn(config: PreTrainedConfig, outputs: int, seed: int) -> nn.Linear:
    head = nn.Linear(config.get_text_config().hidden_size, outputs)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.weight.normal_(0, 0.02, generator=random)
        head.bias.zero_()
    return head


def has_mean_pool(directory: Path) -> bool:
    """Whether a directory holds such a head."""
    return (directory / FILE).is_file()


def load_mean_pool(directory: Path) -> MeanPool:
    """The model that `MeanPool.save_pretrained` wrote."""
    tensors = load_file(directory / FILE)
    if set(tensors) != {"weight", "bias"}:
        raise CheckpointError(
            f"{directory / FILE} holds {', '.join(sorted(tensors))}, not a weight and a bias"
        )
    outputs, hidden = tensors["weight"].shape
    head = nn.Linear(hidden, outputs)
    head.load_state_dict(tensors)
    with silence():
        body = AutoModel.from_pretrained(directory, dtype=torch.float32)
    return MeanPool(body, head)
