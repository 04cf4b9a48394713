"""Names of tensors on disk, from names in a model.

The one place that imports transformers' conversion code, which is semi-internal; a test holds it
to what `save_pretrained` writes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion


def names_on_disk(model: PreTrainedModel, state: Mapping[str, torch.Tensor]) -> set[str]:
    """The names under which `save_pretrained` would store this (part of a) state dict."""
    return set(revert_weight_conversion(model, dict(state)))
