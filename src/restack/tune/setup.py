"""What a run is made of: a model with its head, tokenised splits, and notes about them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel

from restack.anatomy.shipped import local
from restack.data.splits import Split, check_classes
from restack.errors import CheckpointError, DataError
from restack.observe.heads import vocabulary
from restack.plan import Plan
from restack.surgery.fresh import DEFAULT
from restack.tune.engine import Engine
from restack.tune.examples import Examples, prepare
from restack.tune.heads import Loaded, Location, fresh_note, load_for_task
from restack.tune.mean_pool import MeanPool
from restack.tune.optim import Layers
from restack.tune.recipe import Recipe
from restack.tune.seeing import check_causal, check_packing
from restack.tune.silence import silence


@dataclass(frozen=True, slots=True)
class Setup:
    """A model and data that fit each other."""

    source: str
    loaded: Loaded
    tokenizer: Any
    layers: Layers | None
    train: Examples
    validation: Mapping[str, Examples]
    notes: tuple[str, ...]
    init: str
    """How fresh slots were started."""


def set_up(
    model: Location | PreTrainedModel | MeanPool,
    train: Split,
    validation: Mapping[str, Split],
    recipe: Recipe,
    engine: Engine,
    *,
    tokenizer: Any = None,
    plan: Plan | str | None = None,
    stack: str | None = None,
    init: str = DEFAULT,
) -> Setup:
    """Load, re-stack and tokenise; refuse what does not fit together."""
    _check_splits(train, validation)
    source = _name(model)
    tokenizer = tokenizer if tokenizer is not None else load_tokenizer(source)
    own = tokenizer.pad_token_id
    loaded = load_for_task(
        model,
        train.task,
        plan=plan,
        head=recipe.head,
        stack=stack,
        seed=recipe.seed,
        init=init,
        pad_id=own if own is not None else tokenizer.eos_token_id,
    )
    layers = None
    if loaded.layers is not None and loaded.stack is not None and loaded.depth is not None:
        shared = bool(loaded.stack.facts.shared)
        layers = Layers.of(loaded.layers, loaded.depth, loaded.plan, shared=shared)
    multiple = recipe.multiple or (8 if engine.waits else 1)

    def made(split: Split) -> Examples:
        return prepare(
            split,
            tokenizer,
            loaded.body.config,
            recipe,
            vocab_size=vocabulary(loaded.body),
            multiple=multiple,
            types=reads_types(loaded.body),
        )

    examples = made(train)
    if train.task.kind == "lm":
        with without_cache(loaded.body):
            check_causal(loaded.model, _plain(examples))
            if examples.packing:
                check_packing(loaded.model, examples)
    others = {name: _plain(made(split)) for name, split in validation.items()}
    notes = [fresh_note(loaded.fresh) or _kept_note(loaded, train)]
    notes += [_cut_note(each) for each in (examples, *others.values())]
    return Setup(
        source, loaded, tokenizer, layers, examples, others, tuple(n for n in notes if n), init
    )


@contextmanager
def without_cache(body: PreTrainedModel) -> Iterator[None]:
    """Training and scoring look at whole texts: keys and values need not be kept.

    transformers also looks for packed texts only where nothing is kept.
    """
    config = body.config.get_text_config()
    before = getattr(config, "use_cache", None)
    if before:
        config.use_cache = False
    try:
        yield
    finally:
        if before:
            config.use_cache = before


def _check_splits(train: Split, validation: Mapping[str, Split]) -> None:
    check_classes(train)
    for name, split in validation.items():
        ours, theirs = train.task, split.task
        if (ours.kind, ours.labels, ours.outputs) != (theirs.kind, theirs.labels, theirs.outputs):
            raise DataError(
                f"{split} ({theirs.kind}, {theirs.outputs} outputs) cannot judge a model that is "
                f"trained on {train} ({ours.kind}, {ours.outputs} outputs)",
                hint="Give splits of the same task.",
            )
        if split.lacks_labels:
            raise DataError(f"{split}: without labels nothing can be scored")
        if "/" in name or name.startswith("."):
            raise DataError(f"{name!r} cannot be the name of a split: files are called by it")


def _name(model: Any) -> str:
    """What to call the source of a model."""
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    return str(model.config.name_or_path or type(model).__name__)


def load_tokenizer(source: str) -> Any:
    """The tokenizer that lies beside a model."""
    try:
        with silence():
            return AutoTokenizer.from_pretrained(local(source))
    except Exception as error:  # not there, broken, or of a library that is not installed
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{source} has no tokenizer that can be loaded: {reason}",
            hint="Put the tokenizer beside the model, or name one.",
        ) from error


def reads_types(body: PreTrainedModel) -> bool:
    """Whether a model tells first and second texts apart by token types."""
    if "token_type_ids" not in inspect.signature(body.forward).parameters:
        return False
    size = getattr(body.config, "type_vocab_size", None)
    return size is None or size > 1


def _plain(examples: Examples) -> Examples:
    """As a split is scored: text by text, and with the same tokens hidden for every seed."""
    masking = None if examples.masking is None else replace(examples.masking, seed=0)
    return replace(examples, packing=False, masking=masking)


def _kept_note(loaded: Loaded, train: Split) -> str | None:
    if train.task.kind in ("lm", "mlm"):
        return None
    return "the head is that of the checkpoint"


def _cut_note(examples: Examples) -> str | None:
    if not examples.tokens.cut:
        return None
    return (
        f"{examples.split.name}: {examples.tokens.cut:,} of {len(examples.split):,} texts were "
        f"longer than {examples.tokens.max_length} tokens and lost their end"
    )
