"""Probes of all layers beside the procedure of Tamkin et al., in one process.

Theirs: for every layer, every trial and every epoch the texts go through the model up to that
layer, in batches of 8, and the head takes a step. That is measured on a part of the texts and
scaled; evaluations on held-out texts are left out. Ours is run whole and counted whole: hashing
the weights, tokenising, one pass over training and validation texts, all readers for all
epochs without early stopping, and the scores of all of them.

    python bench/probe.py --model DIRECTORY --data DIRECTORY
    python bench/probe.py --quick
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT, Claim, Spread, add_options, finish, note, table

sys.path.insert(0, str(ROOT / "src"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

from restack.anatomy.models import pick
from restack.data import Split, get_task, load_split
from restack.data.batches import collate
from restack.data.cache import fingerprint
from restack.data.tasks import Task
from restack.data.tokens import Tokens, tokenize
from restack.observe.linear import PAPER, Settings
from restack.observe.probe import ProbeResult, probe
from restack.observe.reading import pool
from restack.observe.running import Enough, model_inputs, observing
from restack.observe.stack_run import layers_of, state_in, state_out

_HELD_OUT = 0.1


@dataclass(frozen=True, slots=True)
class Setup:
    """What is probed."""

    model: Any
    tokenizer: Any
    train: Split
    validation: Split


def main() -> int:
    options = parsed()
    torch.set_num_threads(options.threads)
    setup = given(options) if options.model else made_up(options)
    depth = pick(setup.model).depth
    settings = Settings(
        batch_size=PAPER.batch_size, rate=PAPER.rate, epochs=options.epochs, patience=None
    )
    with tempfile.TemporaryDirectory() as cache:
        os.environ["RESTACK_CACHE"] = cache
        tokens = tokenize(setup.tokenizer, setup.train.texts, max_length=options.max_length)
        note(f"theirs: {options.part} texts through each of {depth + 1} layers")
        rounds = [theirs(setup, tokens, options, number) for number in range(options.repeats)]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["RESTACK_CACHE"] = cache
        note(
            f"ours: {len(setup.train):,} + {len(setup.validation):,} texts, {options.epochs} epochs"
        )
        begun = time.perf_counter()
        found = probe(
            setup.model,
            setup.tokenizer,
            setup.train,
            setup.validation,
            trials=options.trials,
            held_out=_HELD_OUT,
            settings=settings,
            max_length=options.max_length,
            progress=Told(),
        )
        ours = time.perf_counter() - begun
    return report(options, setup, found, ours, rounds, depth)


def theirs(setup: Setup, tokens: Tokens, options: Any, number: int) -> list[float]:
    """Seconds for one epoch of one trial over the part, for each layer."""
    random = np.random.default_rng(number)
    rows = random.choice(len(tokens), options.part, replace=False)
    labels = torch.tensor(setup.train.labels)
    layers = layers_of(setup.model, pick(setup.model))
    outputs = len(setup.train.task.labels)
    seconds = []
    for layer in range(len(layers) + 1):
        head = nn.Linear(setup.model.config.hidden_size, outputs)
        optimiser = torch.optim.Adam(head.parameters(), lr=PAPER.rate)
        begun = time.perf_counter()
        for some in np.array_split(rows, -(-len(rows) // PAPER.batch_size)):
            vectors = up_to(setup.model, layers, layer, collate(tokens, some))
            loss = nn.functional.cross_entropy(head(vectors), labels[some])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        seconds.append(time.perf_counter() - begun)
    return seconds


def up_to(model: Any, layers: list[nn.Module], layer: int, batch: Any) -> torch.Tensor:
    """The pooled state before a layer (or behind the last); what comes after is not run."""
    kept = []

    def before(_: nn.Module, args: Any, kwargs: Any) -> None:
        kept.append(state_in(args, kwargs))
        raise Enough

    def after(_: nn.Module, args: Any, output: Any) -> None:
        kept.append(state_out(output))
        raise Enough

    if layer < len(layers):
        hook = layers[layer].register_forward_pre_hook(before, with_kwargs=True)
    else:
        hook = layers[-1].register_forward_hook(after)
    with observing(model):
        try:
            model(**model_inputs(model, batch))
        except Enough:
            pass
        finally:
            hook.remove()
    return pool(kept, batch["attention_mask"].bool(), "mean")[:, 0]


def report(
    options: Any,
    setup: Setup,
    found: ProbeResult,
    ours: float,
    rounds: Sequence[Sequence[float]],
    depth: int,
) -> int:
    trained = len(setup.train) - max(1, round(len(setup.train) * _HELD_OUT))
    runs = options.trials * options.epochs
    applications = sum(range(depth + 1)) * trained * runs
    by_round = [sum(seconds) / options.part * trained * runs for seconds in rounds]
    paper = Spread.of(by_round)
    # the same number of texts through the same layers, at the speed of our own large batches
    texts = len(setup.train) + len(setup.validation)
    batched = found.seconds["features"] / texts / depth * applications
    rows = [
        ("theirs, scaled", "batches of 8", f"{applications:,}", paper.text(0)),
        ("theirs, scaled", "our batches, heads for nothing", f"{applications:,}", f"{batched:.0f}"),
        ("ours", "whole", f"{found.layer_applications:,}", f"{ours:.1f}"),
        ("", "features", "", f"{found.seconds['features']:.1f}"),
        ("", "readers and scores", "", f"{found.seconds['readers']:.1f}"),
    ]
    best = max(found.layers, key=lambda layer: layer.mean.mean)
    lines = [
        f"{found.model}, {depth} layers; {found.train}; {options.trials} trials, "
        f"{options.epochs} epochs, {options.threads} threads",
        "",
        table(("", "", "layer applications", "seconds"), rows),
        "",
        f"{applications / found.layer_applications:,.0f} times fewer layer applications; "
        f"{paper.median / ours:,.0f} times faster than in batches of 8, "
        f"{batched / ours:,.0f} times than in ours",
        f"{found.metric} of layer 0: {found.layers[0].mean.mean:.3f}, best of layer {best.layer}: "
        f"{best.mean.mean:.3f}, baseline {found.baseline[found.metric]:.3f}",
    ]
    claims = [
        Claim("layer applications, by theirs", found.layer_applications / applications, 1 / 300),
        Claim("time, by theirs in batches of 8", ours / paper.median, 1 / 50),
        Claim("time, by theirs in our batches", ours / batched, 1 / 50),
    ]
    values = {
        "probe": found.to_json(),
        "layer_applications": {"theirs": applications, "ours": found.layer_applications},
        "seconds": {"theirs": by_round, "theirs_batched": batched, "ours": ours},
        "part": {"texts": options.part, "seconds_by_layer": [list(r) for r in rounds]},
    }
    return finish(options, "\n".join(lines), values, claims)


class Told:
    """Says on standard error how far it is, every ten seconds."""

    def __init__(self) -> None:
        self.last = time.perf_counter()

    def __call__(self, what: str, done: int, total: int, pace: float) -> None:
        if time.perf_counter() - self.last > 10:
            self.last = time.perf_counter()
            note(f"{what}: {done:,} of {total:,}, {pace:.1f} a second")


def given(options: Any) -> Setup:
    """A checkpoint, and a task's data."""
    model = AutoModel.from_pretrained(options.model, dtype=torch.float32)
    task = get_task(options.task)
    train = load_split(task, "train", options.data, limit=options.rows, seed=0)
    validation = load_split(task, task.validation[0], options.data)
    return Setup(model, AutoTokenizer.from_pretrained(options.model), train, validation)


def made_up(options: Any) -> Setup:
    """A BERT of random weights, and random words of which some tell the label."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"word{n}" for n in range(2000))]
    raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]")
    hidden, layers = (64, 6) if options.quick else (384, 12)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        intermediate_size=4 * hidden,
    )
    task = Task("made-up", "classification", ("text",), "label", ("no", "yes"))
    random = np.random.default_rng(0)
    splits = []
    for name, count in (("train", options.rows), ("validation", max(50, options.rows // 11))):
        labels = random.integers(2, size=count)
        lengths = np.clip(random.lognormal(2.1, 0.6, count), 1, 60).astype(int)  # as in SST-2
        texts = [
            " ".join(f"word{n}" for n in [*random.integers(1000, size=k), 1000 + 500 * y])
            for k, y in zip(lengths, labels, strict=True)
        ]
        splits.append(
            Split(task, name, texts, labels.tolist(), range(count), fingerprint(texts, [name]))
        )
    return Setup(BertModel(config).eval(), tokenizer, *splits)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a checkpoint; otherwise random weights")
    parser.add_argument("--data", type=Path, help="the directory with the task's data")
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--rows", type=int, help="training texts (10,000; quick: 600)")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--part", type=int, default=64, help="texts to measure theirs on")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a small version, in seconds")
    add_options(parser, repeats=3)
    options = parser.parse_args()
    if (options.model is None) != (options.data is None):
        parser.error("--model and --data belong together")
    options.rows = options.rows or (600 if options.quick else 10_000)
    return options


if __name__ == "__main__":
    raise SystemExit(main())
