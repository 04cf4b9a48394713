"""Made-up reviews whose words tell their label, and tokenizers and models small enough to run."""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from restack.data.cache import fingerprint
from restack.data.splits import Split
from restack.data.tasks import Task
from tests.families import FAMILIES

GOOD = ("great", "lovely", "bright", "warm", "clever")
BAD = ("dull", "poor", "grey", "cold", "silly")
OTHER = tuple(f"word{n}" for n in range(40))
TASK = Task("reviews", "classification", ("text",), "label", ("bad", "good"))
GRADES = Task("grades", "regression", ("text",), "label", (), ("pearson", "spearman"))
MARKS = Task("marks", "multilabel", ("text",), "label", ("bad", "good", "other"), ("f1_micro",))


def tokenizer(*, special: bool = True) -> Any:
    """Words as tokens, `[CLS]` and `[SEP]` around them; or bare and without padding, as GPT-2."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *GOOD, *BAD, *OTHER]
    raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    named = {}
    if special:
        raw.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
        named = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        unk_token="[UNK]",
        model_max_length=32,
        model_input_names=["input_ids", "attention_mask"],
        **named,
    )


def model(family: str = "bert") -> PreTrainedModel:
    return FAMILIES[family].build()


def split(name: str, rows: int, seed: int, task: Task = TASK, *, shuffled: bool = False) -> Split:
    """Texts of 3 to 9 words, some of which are good or bad as the label says; see `task.kind`."""
    random = np.random.default_rng(seed)
    texts, labels = [], []
    for _ in range(rows):
        good = int(random.integers(2))
        strong = int(random.integers(1, 4))
        words = [*random.choice(GOOD if good else BAD, strong)]
        words += [*random.choice(OTHER, int(random.integers(2, 7)))]
        texts.append(" ".join(random.permutation(words)))
        labels.append(
            {
                "classification": good,
                "regression": float(strong if good else -strong),
                "multilabel": (good, 2) if len(words) > 6 else (good,),
            }[task.kind]
        )
    if shuffled:
        labels = [labels[i] for i in random.permutation(rows)]
    return Split(task, name, texts, labels, range(rows), fingerprint(texts, labels))
