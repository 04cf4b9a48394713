"""Which tensors of a layer to zero so that it passes its input on unchanged, found by trying."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from restack.anatomy import live
from restack.anatomy.config import get, put, section_path, walk
from restack.anatomy.facts import Facts

# The matrices that write into the residual stream, by the last part of their names.
_OUTPUT = re.compile(
    r"(?i)(^|\.)(o_proj|out_proj|o|wo|dense|down_proj|output_linear|dense_4h_to_h|c_proj|fc2|fc_out|"
    r"w2|lin2|linear2|out|out_lin|proj|w_out|linear_2|output_proj|attn_out|ff_out|to_out|wo_b|"
    r"SelfAttention\.o|EncDecAttention\.o|value|fc_2)(\.weight|\.bias)?$"
)

_SMALLER = {
    "vocab_size": 300,
    "intermediate_size": 64,
    "ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "encoder_ffn_dim": 64,
    "d_ff": 64,
    "ffn_hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 16,
}
_TOO_LARGE = 400_000_000


def find_outputs(config: PreTrainedConfig, facts: Facts) -> tuple[str, ...]:
    """Names of the tensors to zero; none where no such set is found (all post-norm models)."""
    found: dict[str, None] = {}
    for variant in _variants(config, facts):
        try:
            with live.quiet(), torch.no_grad():
                model = _small(variant, facts)
                names = _search(model, facts) if model is not None else ()
        except Exception:  # the model does not run on plain inputs: nothing is known
            names = ()
        if not names:
            return ()
        found |= dict.fromkeys(names)
    return tuple(found)


def _variants(config: PreTrainedConfig, facts: Facts) -> list[PreTrainedConfig]:
    """The config, and one with a dense layer where by default all layers have experts."""
    values = live.config_json(config)
    where = section_path(facts)
    field = f"{where}.mlp_only_layers".lstrip(".")
    if get(values, field) != []:
        return [config]
    put(values, field, [0])
    return [config, live.config_from(values, type(config))]


def _small(config: PreTrainedConfig, facts: Facts) -> PreTrainedModel | None:
    """A model with weights, with a layer of each kind and narrow where that is safe."""
    from restack.anatomy.learn import resized

    layers = live.find_stacks(live.build_meta(config))[facts.path]
    seen = dict.fromkeys(str(live.shapes(layer)) for layer in layers)
    depth = max([str(live.shapes(layer)) for layer in layers].index(kind) for kind in seen) + 1
    values = live.config_json(resized(config, facts.counts, depth))
    for name, value in list(walk(values)):
        field = name.rpartition(".")[2]
        if type(value) is int and field in _SMALLER and value > _SMALLER[field]:
            put(values, name, _SMALLER[field])
        elif type(value) is int and field.endswith("_token_id") and value >= 300:
            put(values, name, 1)
    narrow = copy.deepcopy(values)
    for name, value in list(walk(narrow)):
        if name.rpartition(".")[2] == "hidden_size" and type(value) is int and value > 512:
            put(narrow, name, 512)
    for candidate in (values, narrow, live.config_json(resized(config, facts.counts, depth))):
        try:
            small = live.config_from(candidate, type(config))
            meta = live.build_meta(small)
            if sum(p.numel() for p in meta.parameters()) > _TOO_LARGE:
                continue
            torch.manual_seed(0)
            return AutoModel.from_config(small).float().eval()
        except Exception:
            continue
    return None


def _search(model: PreTrainedModel, facts: Facts) -> tuple[str, ...]:
    """The union over all kinds of layers; none as soon as one kind has no such set."""
    found: dict[str, None] = {}
    for layer in live.find_stacks(model)[facts.path]:
        names = _zeroed(model, layer)
        if not names:
            return ()
        found |= dict.fromkeys(names)
    return tuple(found)


def _zeroed(model: PreTrainedModel, layer: nn.Module) -> list[str]:
    named = dict(layer.named_parameters())
    for tensor in named.values():  # norms away from their start, where two in a row look like one
        tensor.add_(torch.randn_like(tensor) * (0.3 if tensor.dim() == 1 else 0.02))
    chosen = [name for name in named if _OUTPUT.search(name)]
    kept = {name: named[name].clone() for name in chosen}
    for name in chosen:
        named[name].zero_()
    if not _is_identity(model, layer):
        return []
    for name in list(chosen):  # leave alone what need not be zero
        named[name].copy_(kept[name])
        if _is_identity(model, layer):
            chosen.remove(name)
        else:
            named[name].zero_()
    return chosen


def _is_identity(model: PreTrainedModel, layer: nn.Module) -> bool:
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def look(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        before = args[0] if args else kwargs["hidden_states"]
        seen.append((before, output[0] if isinstance(output, tuple) else output))

    hook = layer.register_forward_hook(look, with_kwargs=True)
    try:
        _run(model)
    finally:
        hook.remove()
    before, after = seen[0]
    return before.shape == after.shape and torch.allclose(before, after, atol=1e-5)


def _run(model: PreTrainedModel) -> None:
    """Run the model on whichever of the usual inputs it takes."""
    failure: Exception | None = None
    for inputs in _inputs(model.config):
        try:
            model(**inputs)
            return
        except Exception as error:
            failure = error
    raise failure or ValueError("no inputs")


def _inputs(config: Any) -> Iterator[dict[str, torch.Tensor]]:
    text = {"input_ids": torch.arange(3, 19)[None]}
    yield text
    yield {**text, "decoder_input_ids": text["input_ids"]}
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None)
    if size:
        height, width = size if isinstance(size, list | tuple) else (size, size)
        pixels = torch.randn(1, getattr(vision, "num_channels", 3), height, width)
        yield {"pixel_values": pixels}
        yield {**text, "pixel_values": pixels}
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        speech = torch.randn(1, config.num_mel_bins, 2 * config.max_source_positions)
        yield {"input_features": speech, "decoder_input_ids": text["input_ids"]}
