"""A tiny tokenizer and a cache of each test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

WORDS = (
    *("the", "a", "cat", "dog", "sat", "on", "mat", "ran", "1066", "in", "battle", "of"),
    *("hastings", "was", "when", "who", "did", "it", "##s", ",", "."),
)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    where = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("RESTACK_CACHE", str(where))
    return where


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """WordPiece with [CLS] and [SEP], as BERT has."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocab = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    raw = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    raw.normalizer = normalizers.Lowercase()
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=32,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


@pytest.fixture(scope="session")
def bare_tokenizer() -> Any:
    """Words only: no special token, no padding token, no token types."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["?", *WORDS])}, unk_token="?"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="?")
