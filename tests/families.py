"""Tiny random models of many architectures, from explicit configs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedModel

SMALL = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT = {
    **SMALL,
    "hidden_size": 16,
    "num_hidden_layers": 5,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
}
LLAMA = {
    **BERT,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "tie_word_embeddings": False,
}
VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 5,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 16,
    "patch_size": 8,
}


@dataclass(frozen=True)
class Family:
    """A tiny model: its config, its class, and what it is fed."""

    model_type: str
    cls: str
    config: dict[str, Any]
    stacks: tuple[str, ...]
    inputs: Callable[[], dict[str, torch.Tensor]] = field(default=lambda: text())
    generates: bool = False

    def build(self, seed: int = 0) -> PreTrainedModel:
        """The model, all its tensors away from where initialisers leave them."""
        config = AutoConfig.for_model(self.model_type, **self.config)
        torch.manual_seed(seed)
        model = getattr(transformers, self.cls)(config).eval()
        with torch.no_grad():
            for tensor in model.parameters():
                tensor.add_(torch.randn_like(tensor) * 0.05)
        return model


def text() -> dict[str, torch.Tensor]:
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 0, 0, 0]])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def text_pair() -> dict[str, torch.Tensor]:
    return {**text(), "decoder_input_ids": torch.tensor([[1, 5, 6], [1, 7, 8]])}


def pixels() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return {"pixel_values": torch.randn(2, 3, 16, 16)}


def speech() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return {
        "input_features": torch.randn(2, 8, 20),
        "decoder_input_ids": torch.tensor([[1, 5, 6], [1, 7, 8]]),
    }


def both() -> dict[str, torch.Tensor]:
    return {**text(), **pixels()}


_GPT2 = {**SMALL, "n_embd": 16, "n_layer": 5, "n_head": 2, "n_positions": 64}
_BART = {
    **SMALL,
    "d_model": 16,
    "encoder_layers": 5,
    "decoder_layers": 4,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
_GEMMA3 = {
    **LLAMA,
    "num_hidden_layers": 6,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
}
_QWEN = {**LLAMA, "use_sliding_window": False}
_MOE = {
    **LLAMA,
    "num_experts_per_tok": 2,
    "num_experts": 4,
    "moe_intermediate_size": 8,
}

FAMILIES: dict[str, Family] = {
    "bert": Family("bert", "BertForMaskedLM", BERT, ("bert.encoder.layer",)),
    "roberta": Family(
        "roberta",
        "RobertaForSequenceClassification",
        {**BERT, "pad_token_id": 1, "bos_token_id": 0},
        ("roberta.encoder.layer",),
    ),
    "albert": Family(
        "albert", "AlbertForMaskedLM", {**BERT, "embedding_size": 8}, ("albert_layer_groups",)
    ),
    "distilbert": Family(
        "distilbert",
        "DistilBertForQuestionAnswering",
        {**SMALL, "dim": 16, "n_layers": 5, "n_heads": 2, "hidden_dim": 24},
        ("distilbert.transformer.layer",),
    ),
    "xlnet": Family(
        "xlnet",
        "XLNetLMHeadModel",
        {**SMALL, "d_model": 16, "n_layer": 5, "n_head": 2, "d_inner": 24},
        ("transformer.layer",),
    ),
    "electra": Family(
        "electra",
        "ElectraForMaskedLM",
        {**BERT, "embedding_size": 8},
        ("electra.encoder.layer",),
    ),
    "deberta-v2": Family(
        "deberta-v2",
        "DebertaV2ForTokenClassification",
        {**BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
        ("deberta.encoder.layer",),
    ),
    "modernbert": Family(
        "modernbert",
        "ModernBertForMaskedLM",
        {**BERT, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 4},
        ("model.layers",),
    ),
    "mpnet": Family("mpnet", "MPNetForMaskedLM", BERT, ("mpnet.encoder.layer",)),
    "gpt2": Family("gpt2", "GPT2LMHeadModel", _GPT2, ("transformer.h",), generates=True),
    "gpt_neo": Family(
        "gpt_neo",
        "GPTNeoForCausalLM",
        {
            **SMALL,
            "hidden_size": 16,
            "num_layers": 6,
            "num_heads": 2,
            "attention_types": [[["global", "local"], 3]],
            "window_size": 4,
            "max_position_embeddings": 64,
        },
        ("transformer.h",),
        generates=True,
    ),
    "gpt_neox": Family(
        "gpt_neox", "GPTNeoXForCausalLM", BERT, ("gpt_neox.layers",), generates=True
    ),
    "opt": Family(
        "opt",
        "OPTForCausalLM",
        {**BERT, "ffn_dim": 24, "word_embed_proj_dim": 16},
        ("model.decoder.layers",),
        generates=True,
    ),
    "llama": Family("llama", "LlamaForCausalLM", LLAMA, ("model.layers",), generates=True),
    "llama-tied": Family(
        "llama",
        "LlamaForCausalLM",
        {**LLAMA, "tie_word_embeddings": True},
        ("model.layers",),
        generates=True,
    ),
    "mistral": Family("mistral", "MistralForCausalLM", LLAMA, ("model.layers",), generates=True),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", _QWEN, ("model.layers",), generates=True),
    "qwen2-sliding": Family(
        "qwen2",
        "Qwen2ForCausalLM",
        {**LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
        ("model.layers",),
        generates=True,
    ),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", _QWEN, ("model.layers",), generates=True),
    "gemma3_text": Family(
        "gemma3_text", "Gemma3ForCausalLM", _GEMMA3, ("model.layers",), generates=True
    ),
    "gemma3": Family(
        "gemma3",
        "Gemma3ForConditionalGeneration",
        {
            "text_config": {**_GEMMA3, "model_type": "gemma3_text"},
            "vision_config": {**VISION, "model_type": "siglip_vision_model"},
            "mm_tokens_per_image": 4,
            "image_token_index": 90,
        },
        ("model.language_model.layers",),
        generates=True,
    ),
    "phi3": Family(
        "phi3",
        "Phi3ForCausalLM",
        {**LLAMA, "original_max_position_embeddings": 64},
        ("model.layers",),
        generates=True,
    ),
    "mixtral": Family(
        "mixtral",
        "MixtralForCausalLM",
        {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2},
        ("model.layers",),
        generates=True,
    ),
    "qwen3_moe": Family(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        {**_MOE, "mlp_only_layers": [1], "decoder_sparse_step": 1},
        ("model.layers",),
        generates=True,
    ),
    "deepseek_v3": Family(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        {
            **LLAMA,
            "num_key_value_heads": 2,
            "head_dim": 4,
            "moe_intermediate_size": 8,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 2,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_nope_head_dim": 4,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
        },
        ("model.layers",),
        generates=True,
    ),
    "falcon": Family(
        "falcon",
        "FalconForCausalLM",
        {**BERT, "new_decoder_architecture": False},
        ("transformer.h",),
        generates=True,
    ),
    "bloom": Family(
        "bloom",
        "BloomForCausalLM",
        {**SMALL, "hidden_size": 16, "n_layer": 5, "n_head": 2},
        ("transformer.h",),
        generates=True,
    ),
    "t5": Family(
        "t5",
        "T5ForConditionalGeneration",
        {
            **SMALL,
            "d_model": 16,
            "num_layers": 5,
            "num_decoder_layers": 4,
            "num_heads": 2,
            "d_kv": 8,
            "d_ff": 24,
            "decoder_start_token_id": 0,
        },
        ("encoder.block", "decoder.block"),
        text_pair,
        generates=True,
    ),
    "bart": Family(
        "bart",
        "BartForConditionalGeneration",
        _BART,
        ("model.encoder.layers", "model.decoder.layers"),
        text_pair,
        generates=True,
    ),
    "whisper": Family(
        "whisper",
        "WhisperForConditionalGeneration",
        {
            **{k: v for k, v in _BART.items() if k != "max_position_embeddings"},
            "num_mel_bins": 8,
            "max_source_positions": 10,
            "max_target_positions": 32,
            "begin_suppress_tokens": None,
            "suppress_tokens": None,
        },
        ("model.encoder.layers", "model.decoder.layers"),
        speech,
        generates=True,
    ),
    "vit": Family("vit", "ViTForImageClassification", VISION, ("vit.layers",), pixels),
    "dinov2": Family("dinov2", "Dinov2Model", VISION, ("encoder.layer",), pixels),
    "clip": Family(
        "clip",
        "CLIPModel",
        {
            "text_config": {**BERT, "num_hidden_layers": 4, "eos_token_id": 2},
            "vision_config": VISION,
            "projection_dim": 8,
        },
        ("text_model.encoder.layers", "vision_model.encoder.layers"),
        both,
    ),
    "esm": Family(
        "esm",
        "EsmForMaskedLM",
        {**BERT, "mask_token_id": 3, "position_embedding_type": "rotary"},
        ("esm.encoder.layer",),
    ),
}
