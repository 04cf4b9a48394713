"""Tiny models with a tokenizer in a directory, and made-up splits of every kind of task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoConfig

from restack.data.cache import fingerprint
from restack.data.glue import TASKS
from restack.data.splits import Split
from restack.data.tasks import Task
from restack.tune.recipe import Recipe
from tests.families import BERT, LLAMA
from tests.observe import reviews

MNLI = replace(TASKS["mnli"], sizes={})
LM = Task("stories", "lm", ("text",), None, (), ("perplexity",))
MLM = Task("stories", "mlm", ("text",), None, (), ("perplexity",))
QUICK = Recipe(epochs=2, batch_size=8, rate=3e-3, warmup=2)
LEARNING = Recipe(epochs=4, batch_size=8, rate=5e-3, warmup=2)
"""What `learner` learns the made-up reviews by."""

_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def tokenizer() -> Any:
    """That of the reviews, with a mask."""
    made = reviews.tokenizer()
    made.add_special_tokens({"mask_token": "[MASK]"})
    return made


def bert(*, dropout: bool = True, cls: str = "BertModel", **config: Any) -> Any:
    """A BERT of five layers, which has no head unless the class has."""
    values = {**BERT, **({} if dropout else _NO_DROPOUT), **config}
    torch.manual_seed(0)
    return getattr(transformers, cls)(AutoConfig.for_model("bert", **values))


def learner(**config: Any) -> Any:
    """A BERT of two layers that is wide enough to learn the made-up reviews soon."""
    wide = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    return bert(**{"num_hidden_layers": 2, "initializer_range": 0.1, **wide, **config})


def llama(**config: Any) -> Any:
    torch.manual_seed(0)
    made = AutoConfig.for_model("llama", **{**LLAMA, "initializer_range": 0.1, **config})
    return transformers.LlamaForCausalLM(made)


def save(model: Any, where: Path) -> Path:
    """A directory as a user has it."""
    model.save_pretrained(where)
    tokenizer().save_pretrained(where)
    return where


def sentiment(rows: int = 64, seed: int = 0, name: str = "train", **options: Any) -> Split:
    return reviews.split(name, rows, seed, **options)


def entailment(rows: int, seed: int, name: str) -> Split:
    """Pairs that agree, disagree, or have nothing to do with each other."""
    random = np.random.default_rng(seed)
    texts: list[Any] = []
    labels = []
    for _ in range(rows):
        good, label = int(random.integers(2)), int(random.integers(3))
        words = (reviews.GOOD, reviews.BAD)
        second = (words[1 - good], words[good], reviews.OTHER)[(0, 2, 1).index(label)]
        texts.append((random.choice(words[1 - good]), f"{random.choice(second)} word1"))
        labels.append(label)
    return Split(MNLI, name, texts, labels, range(rows), fingerprint(texts, labels))


def stories(rows: int = 48, seed: int = 0, name: str = "train", task: Task = LM) -> Split:
    """Texts in which each word says which one follows."""
    random = np.random.default_rng(seed)
    texts = []
    for _ in range(rows):
        start, length = int(random.integers(len(reviews.OTHER))), int(random.integers(4, 12))
        texts.append(" ".join(f"word{(start + i) % len(reviews.OTHER)}" for i in range(length)))
    none = [None] * rows
    return Split(task, name, texts, none, range(rows), fingerprint(texts, none))


def questions(rows: int = 48, seed: int = 0, name: str = "train", *, lacking: bool = True) -> Split:
    """What stands behind `word1` is asked for; some contexts do not have it, some are long."""
    random = np.random.default_rng(seed)
    texts: list[Any] = []
    labels = []
    for row in range(rows):
        words = list(random.choice(reviews.OTHER[5:], int(random.integers(4, 30))))
        answer = str(random.choice(reviews.GOOD))
        has = not lacking or row % 3 > 0
        if has:
            at = int(random.integers(len(words)))
            words[at:at] = ["word1", answer]
        context = " ".join(words)
        texts.append(("word0 word1", context))
        begin = context.index(f"word1 {answer}") + len("word1 ") if has else 0
        labels.append({"text": [answer] if has else [], "answer_start": [begin] if has else []})
    ids = [f"q{row}" for row in range(rows)]
    task = replace(TASKS["squad_v2" if lacking else "squad"], sizes={})
    return Split(task, name, texts, labels, ids, fingerprint(texts, labels))


def state(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(a: Any, b: Any) -> bool:
    """Whether two models have the same weights, bit for bit."""
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)
