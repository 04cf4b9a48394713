"""A tiny model and task on disk, to sweep over."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.observe.reviews import BAD, GOOD, OTHER
from tests.tune import tiny


def make_model(where: Path, *, layers: int = 2, hidden: int = 32, dropout: float = 0.0) -> Path:
    """A random BERT with its tokenizer."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    tokenizer = tiny.tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=4 * hidden,
        max_position_embeddings=32,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    BertModel(config).save_pretrained(where)
    tokenizer.save_pretrained(where)
    return where


def make_data(where: Path, *, train: int = 50, validation: int = 20, words: int = 8) -> Path:
    """Sentences of a few words; the label tells whether the good ones are more."""
    where.mkdir(parents=True)
    random = np.random.default_rng(0)
    for name, count in (("train", train), ("validation", validation)):
        lines = []
        for _ in range(count):
            said = random.choice([*GOOD, *BAD, *OTHER[:3]], size=random.integers(3, words + 1))
            label = int(sum(w in GOOD for w in said) > sum(w in BAD for w in said))
            lines.append(json.dumps({"text": " ".join(said), "label": label}))
        (where / f"{name}.jsonl").write_text("\n".join(lines))
    return where
