"""Tokenizers of the demo models, learned from texts of the demo language."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Kind = Literal["mlm", "clm"]
SIZE = 1024
POSITIONS = 128


def learn_tokenizer(kind: Kind, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Word pieces in lower case between [CLS] and [SEP], or byte pairs as decoders have them.

    The vocabulary is small, so that rare words and many forms of words are of several pieces.
    """
    from transformers import PreTrainedTokenizerFast

    common = {"model_max_length": POSITIONS, "clean_up_tokenization_spaces": False}
    if kind == "mlm":
        return PreTrainedTokenizerFast(
            tokenizer_object=_word_pieces(texts),
            pad_token="[PAD]",
            unk_token="[UNK]",
            cls_token="[CLS]",
            sep_token="[SEP]",
            mask_token="[MASK]",
            model_input_names=["input_ids", "token_type_ids", "attention_mask"],
            **common,
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=_byte_pairs(texts),
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_input_names=["input_ids", "attention_mask"],
        **common,
    )


def _word_pieces(texts: Iterable[str]) -> object:
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer(lowercase=True)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = list("abcdefghijklmnopqrstuvwxyz0123456789.,?!'-")
    trainer = trainers.WordPieceTrainer(
        vocab_size=SIZE, special_tokens=special, initial_alphabet=letters, show_progress=False
    )
    raw.train_from_iterator(texts, trainer)
    ids = [(token, raw.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    raw.decoder = decoders.WordPiece()
    return raw


def _byte_pairs(texts: Iterable[str]) -> object:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<pad>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", raw.token_to_id("<s>"))]
    )
    raw.decoder = decoders.ByteLevel()
    return raw
