"""Tiny random models in the ordinary layout, to try commands on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

VOCABULARY = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "a", "cat", "dog", "bird", "mouse", "sat", "ran", "flew", "slept"),
    *("on", "under", "over", "in", "mat", "house", "tree", "and", "then", "."),
)


def make(name: str, where: Path) -> None:
    """Save the tiny model of this name, `bert` or `llama`; one that is there already is kept."""
    if where.exists():
        return
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    work = where.with_name(f".{where.name}.new")  # renamed at the end: half a model is never found
    shutil.rmtree(work, ignore_errors=True)
    {"bert": bert, "llama": llama}[name]().save_pretrained(work)
    tokenizer().save_pretrained(work)
    work.rename(where)


def bert() -> PreTrainedModel:
    """Twelve layers that look both ways, in float32."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        num_hidden_layers=12,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=128,
    )
    return BertForMaskedLM(config)


def llama() -> PreTrainedModel:
    """Eight layers that look back only, in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=192,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def tokenizer() -> PreTrainedTokenizerFast:
    """Whole words, between [CLS] and [SEP]."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {word: number for number, word in enumerate(VOCABULARY)}
    raw = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(word, ids[word]) for word in ("[CLS]", "[SEP]")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=128,
    )
