"""Fine-tuning beside transformers' Trainer, in one process, in turns.

All train the same examples in as many updates of as many examples, with the same recipe, from the
same weights: restack's loop, the Trainer with dynamic padding, the Trainer with padding to 128. All
order the examples their own way, since that is part of what is compared. A Trainer that is given
restack's batches sees the same tokens in the same order; what it takes longer is the loop alone.
Texts are tokenised before the clock. `accuracy` trains for longer, with several seeds, and scores
a validation split.

    python bench/tune.py speed --model models/bge-small --data data
    python bench/tune.py accuracy --model models/bge-small --data data --precision bf16
    python bench/tune.py speed --model models/bge-small --data data --base
    python bench/tune.py --quick
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common import ROOT, Claim, Spread, add_options, alternate, finish, note, ratio, table

sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from restack.data import Split, get_task, load_split, subsample
from restack.data.batches import rows_for_epoch
from restack.stats import paired_difference
from restack.tune import Recipe, tune
from restack.tune.engine import Engine
from restack.tune.heads import load_for_task
from restack.tune.losses import task_loss

PADDED = 128
OURS, DYNAMIC, FIXED = "restack", "Trainer, dynamic padding", f"Trainer, padded to {PADDED}"
SAME = "Trainer, with our batches"
WANTED = {DYNAMIC: 3.0, FIXED: 10.0}
OVERHEAD = 0.03


@dataclass(frozen=True, slots=True)
class Work:
    """What is trained, on what."""

    model: Any
    tokenizer: Any
    train: Split
    validation: Split | None
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Ran:
    """How one training went."""

    seconds: float
    """Of training alone: without loading, tokenising and scoring."""
    steps: int
    accuracy: float | None


def main() -> int:
    options = parsed()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["RESTACK_CACHE"] = cache
        parts = {"speed": speed, "overhead": overhead, "accuracy": accuracy}
        chosen = [options.part] if options.part else list(parts)
        said = [parts[name](options) for name in chosen]
    texts, values, claims = zip(*said, strict=True)
    settings = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(options).items()
    }
    return finish(
        options,
        "\n\n".join(texts),
        {"settings": settings, **dict(zip(chosen, values, strict=True))},
        [claim for some in claims for claim in some],
    )


def speed(options: argparse.Namespace) -> tuple[str, dict[str, Any], list[Claim]]:
    """Seconds of a short training, in turns."""
    work = given(options, options.steps * options.batch)
    recipe = replace(work.recipe, steps=options.steps)
    ways = _ways(replace(work, recipe=recipe, validation=None))
    ways = {name: way for name, way in ways.items() if name in (OURS, *options.beside)}
    for name, way in ways.items():  # what a library does once is none of its speed
        note(f"warming up: {name}")
        way(replace(recipe, steps=2))
    note(f"{options.repeats} rounds of {options.steps} updates each, in turns")
    runs = alternate(
        {name: (lambda way=way: way(recipe)) for name, way in ways.items()}, options.repeats
    )
    seconds = {name: [run.seconds for run in found] for name, found in runs.items()}
    times = {name: ratio(seconds[name], seconds[OURS]) for name in ways}
    rows = [
        (name, Spread.of([s / options.steps for s in seconds[name]]).text(3), times[name].text())
        for name in ways
    ]
    claims = [
        Claim(f"time of an update, by that of the {name}", 1 / times[name].median, 1 / WANTED[name])
        for name in options.beside
        if name in WANTED
    ]
    text = f"{_about(work, options)}, {options.precision}\n" + table(
        ("training", "s an update", "by ours"), rows
    )
    found = {"seconds": seconds, "by_ours": {n: spread.to_json() for n, spread in times.items()}}
    return text, found, claims


def overhead(options: argparse.Namespace) -> tuple[str, dict[str, Any], list[Claim]]:
    """The part of our loop that is no forward, no backward and no update."""
    work = given(options, options.steps * options.batch)
    recipe = replace(work.recipe, steps=options.steps)
    spent = {"forward": 0.0, "backward": 0.0, "clip": 0.0, "update": 0.0}
    own = task_loss(work.train.task.kind)

    def loss(model: Any, batch: Any) -> Any:
        with _clocked(spent, "forward"):
            return own(model, batch)

    with _engine_clocked(spent):
        ran = ours(replace(work, recipe=recipe, validation=None), loss=loss)
    rest = ran.seconds - sum(spent.values())
    parts = {**spent, "all else": rest}
    text = f"{_about(work, options)}: parts of the loop\n" + table(
        ("", "", "s", "part"),
        [(name, "", f"{s:.3f}", f"{s / ran.seconds:.2%}") for name, s in parts.items()],
    )
    claim = Claim("loop beside forward, backward and update", rest / ran.seconds, OVERHEAD, "")
    return text, {"seconds": parts}, [claim]


def accuracy(options: argparse.Namespace) -> tuple[str, dict[str, Any], list[Claim]]:
    """Scores of longer trainings, seed by seed."""
    work = given(options, options.examples)
    ways = {n: w for n, w in _ways(work).items() if n in (OURS, *options.beside)}
    runs: dict[str, list[Ran]] = {name: [] for name in ways}
    for seed in range(options.seeds):
        for name, way in ways.items():
            note(f"seed {seed}: {name}")
            runs[name].append(way(replace(work.recipe, epochs=options.epochs, seed=seed)))
    scores = {name: [run.accuracy for run in found] for name, found in runs.items()}
    assert all(score is not None for found in scores.values() for score in found)
    rows, claims = [], []
    for name, found in scores.items():
        seconds = sum(run.seconds for run in runs[name])
        rows.append((name, "", Spread.of(found).text(4), f"{seconds:.1f}"))  # type: ignore[arg-type]
        if name != OURS:
            apart = paired_difference(found, scores[OURS])  # type: ignore[arg-type]
            low = apart.low  # None for less than three seeds
            claims.append(Claim(f"accuracy lost beside the {name}, lower end of 95%", low, 0.0, ""))
    text = (
        f"{_about(work, options)}, {options.epochs:g} epochs, {options.seeds} seeds, "
        f"{options.precision}\n" + table(("training", "", "accuracy", "s of training"), rows)
    )
    return (
        text,
        {"accuracy": scores, "runs": {n: [asdict(r) for r in f] for n, f in runs.items()}},
        claims,
    )


def _ways(work: Work) -> dict[str, Callable[[Recipe], Ran]]:
    return {
        OURS: lambda recipe: ours(replace(work, recipe=recipe)),
        DYNAMIC: lambda recipe: theirs(replace(work, recipe=recipe), "longest"),
        FIXED: lambda recipe: theirs(replace(work, recipe=recipe), "max_length"),
        SAME: lambda recipe: theirs(replace(work, recipe=recipe), "longest", ordered=True),
    }


def ours(work: Work, **options: Any) -> Ran:
    """restack's loop."""
    validation = {} if work.validation is None else {"validation": work.validation}
    tuned = tune(
        work.model,
        work.train,
        validation,
        work.recipe,
        tokenizer=work.tokenizer,
        device="cpu",
        **options,
    )
    score = tuned.metrics["validation"]["accuracy"] if validation else None
    return Ran(tuned.seconds["train"], tuned.steps, score)


class _Clock(TrainerCallback):
    """Seconds between the beginning and the end of a training."""

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.begun = time.perf_counter()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.seconds = time.perf_counter() - self.begun


class _Ordered(Trainer):
    """The Trainer with batches that are given."""

    batches: list[list[int]]

    def get_train_dataloader(self) -> DataLoader:
        return DataLoader(
            self.train_dataset, batch_sampler=self.batches, collate_fn=self.data_collator
        )


def theirs(work: Work, padding: str, *, ordered: bool = False) -> Ran:
    """transformers' Trainer, from the same weights and by the same recipe."""
    recipe, task = work.recipe, work.train.task
    pad = work.tokenizer.pad_token_id
    model = load_for_task(work.model, task, seed=recipe.seed, pad_id=pad).model
    assert recipe.batch_size is not None
    steps = recipe.steps or round(math.ceil(len(work.train) / recipe.batch_size) * recipe.epochs)
    clock = _Clock()
    with tempfile.TemporaryDirectory() as place:
        rows = _rows(work.train, work.tokenizer)
        trainer = (_Ordered if ordered else Trainer)(
            model=model,
            args=TrainingArguments(
                output_dir=place,
                max_steps=steps,
                per_device_train_batch_size=recipe.batch_size,
                per_device_eval_batch_size=recipe.batch_size,
                learning_rate=recipe.rate,
                warmup_steps=math.ceil(recipe.warmup * steps),
                weight_decay=recipe.weight_decay,
                max_grad_norm=recipe.clip or 0.0,
                seed=recipe.seed,
                bf16=recipe.precision == "bf16",
                use_cpu=True,
                dataloader_pin_memory=False,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=rows,
            data_collator=DataCollatorWithPadding(
                work.tokenizer, padding=padding, max_length=PADDED
            ),
            callbacks=[clock],
        )
        trainer.remove_callback(PrinterCallback)
        if ordered:
            trainer.batches = _our_batches(rows, recipe, steps)
        trainer.train()
        score = None
        if work.validation is not None:
            found = trainer.predict(_rows(work.validation, work.tokenizer))
            score = float((found.predictions.argmax(-1) == found.label_ids).mean())
    return Ran(clock.seconds, steps, score)


def _rows(split: Split, tokenizer: Any) -> list[dict[str, Any]]:
    texts = list(split.texts)
    first, second = (
        (texts, None) if isinstance(texts[0], str) else map(list, zip(*texts, strict=True))
    )
    made = tokenizer(first, second, truncation=True, max_length=PADDED)
    return [
        {**{name: column[row] for name, column in made.items()}, "labels": label}
        for row, label in enumerate(split.labels)
    ]


def _our_batches(rows: list[dict[str, Any]], recipe: Recipe, steps: int) -> list[list[int]]:
    """The rows of each update, as restack's loop has them."""
    lengths = np.array([len(row["input_ids"]) for row in rows])
    found: list[np.ndarray] = []
    epoch = 0
    while len(found) < steps:
        found += rows_for_epoch(
            lengths,
            seed=recipe.seed,
            epoch=epoch,
            batch_size=recipe.batch_size,
            window=recipe.window,
            limit=recipe.max_length,
        )
        epoch += 1
    return [batch.tolist() for batch in found[:steps]]


@contextmanager
def _clocked(spent: dict[str, float], name: str) -> Iterator[None]:
    begun = time.perf_counter()
    try:
        yield
    finally:
        spent[name] += time.perf_counter() - begun


@contextmanager
def _engine_clocked(spent: dict[str, float]) -> Iterator[None]:
    """Count the time of the engine's methods, for all engines."""
    kept = {name: getattr(Engine, name) for name in spent if hasattr(Engine, name)}

    def clocked(name: str) -> Any:
        def run(self: Engine, *arguments: Any) -> Any:
            with _clocked(spent, name):
                return kept[name](self, *arguments)

        return run

    try:
        for name in kept:
            setattr(Engine, name, clocked(name))
        yield
    finally:
        for name, method in kept.items():
            setattr(Engine, name, method)


def given(options: argparse.Namespace, examples: int) -> Work:
    """The model and so many examples of the task."""
    recipe = Recipe(
        batch_size=options.batch,
        rate=options.rate,
        precision=options.precision,
        max_length=None if options.quick else PADDED,
        keep_best=False,
    )
    if options.quick:
        from tests.tune import tiny

        train, validation = tiny.sentiment(examples, 0), tiny.sentiment(64, 1, "validation")
        return Work(
            tiny.bert(max_position_embeddings=PADDED), tiny.tokenizer(), train, validation, recipe
        )
    task = get_task(options.task)
    train = subsample(load_split(task, "train", options.data), examples, 0)
    validation = load_split(task, task.validation[0], options.data)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model: Any = str(options.model)
    if options.base:
        config = AutoConfig.for_model("bert", vocab_size=len(tokenizer))
        model = AutoModel.from_config(config)
    return Work(model, tokenizer, train, validation, recipe)


def _about(work: Work, options: argparse.Namespace) -> str:
    name = work.model if isinstance(work.model, str) else "fresh weights"
    size = "of BERT-base's size" if options.base else ""
    return (
        f"{Path(str(name)).name} {size}".strip()
        + f", {work.train}, batches of {options.batch}, {options.threads} threads"
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=("speed", "overhead", "accuracy"))
    parser.add_argument("--model", type=Path, help="a directory")
    parser.add_argument("--data", type=Path, help="a directory with the task's files")
    parser.add_argument("--task", default="sst2", help="a classification (%(default)s)")
    parser.add_argument("--base", action="store_true", help="fresh weights of BERT-base's size")
    parser.add_argument("--batch", type=int, default=32, help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=32, help="of speed (%(default)s)")
    parser.add_argument("--examples", type=int, default=5000, help="of accuracy (%(default)s)")
    parser.add_argument("--epochs", type=float, default=3.0, help="of accuracy (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="of accuracy (%(default)s)")
    parser.add_argument("--rate", type=float, default=5e-5, help="(%(default)s)")
    parser.add_argument("--precision", default="fp32", help="fp32 or bf16 (%(default)s)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--beside",
        nargs="+",
        choices=("dynamic", "fixed", "same"),
        default=["dynamic", "fixed", "same"],
    )
    parser.add_argument("--quick", action="store_true", help="a tiny model on made-up texts")
    add_options(parser, repeats=3)
    options = parser.parse_args()
    options.beside = [
        {"dynamic": DYNAMIC, "fixed": FIXED, "same": SAME}[name] for name in options.beside
    ]
    if options.quick:
        options.steps, options.examples, options.epochs, options.seeds = 4, 64, 1.0, 2
    elif options.model is None or options.data is None:
        parser.error("give --model and --data, or --quick")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
