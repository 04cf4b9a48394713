"""Kinds of trials that look into a model without training it: what studies measure beside tuning.

Each is a function from a sweep's context to a result. Payloads are those of `restack.observe`,
without what may differ from run to run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from restack.anatomy import models
from restack.anatomy.live import quiet
from restack.data.batches import batches
from restack.data.splits import load_split, subsample
from restack.data.texts import Text, load_texts
from restack.data.tokens import length_limit, tokenize
from restack.errors import RestackError
from restack.observe.curves import plan_accuracy
from restack.observe.decode import decode
from restack.observe.evaluate import evaluate
from restack.observe.heads import graft_head, vocabulary
from restack.observe.lens import lens as run_lens
from restack.observe.linear import PAPER
from restack.observe.probe import probe as run_probe
from restack.observe.readouts import causal_lm
from restack.observe.running import Batch
from restack.observe.score import score as run_score
from restack.observe.similarity import compare as run_compare
from restack.plan import Plan
from restack.sweep.identify import task_of
from restack.sweep.kinds import Context, Result, Stopped
from restack.sweep.tuning import MODEL, model_place, splits, tokenizer_of

_BATCH_TOKENS = 4096


def lens(context: Context) -> Result:
    """How well each layer's states are read by the model's own head.

    With an input, the states are those of the model that this trial made, read by the head of the
    trial's model all the same. Settings: `decode`, how many texts to show in full.
    """
    settings = context.trial.settings
    texts = _texts(context)
    place, stack = model_place(context), _stack(context)
    tokenizer = tokenizer_of(place)
    head = None
    body = _model(context, place)
    if context.trial.inputs:
        source, body = body, _model(context, _made(context), "AutoModel")
        head = replace(graft_head(body, source, stack=stack), label="pretrained")
    ready = _batches(body, tokenizer, texts, settings)
    found = run_lens(body, ready, stack=stack, head=head, progress=_leaving(context))
    few = texts[: settings.get("decode", 0)]
    shown = decode(body, tokenizer, few, stack=stack, head=head) if few else []
    payload = found.to_json() | {"model": None, "decoded": [text.to_json() for text in shown]}
    last = found.layers[-1].accuracy
    return Result({"texts": {"accuracy": last, "tokens": found.tokens}}, payload=payload)


def plans(context: Context) -> Result:
    """What comes out along many plans without training, all in one virtual evaluation.

    Settings: `plans`, and `read`, which is `tokens` (how often the head names the right token) or
    `loss` (perplexity of the next token, for causal models).
    """
    settings = context.trial.settings
    body = _model(context, model_place(context))
    depth = models.pick(body, _stack(context)).depth
    wanted = [Plan.parse(text, depth) for text in settings["plans"]]
    texts = _texts(context)
    ready = _batches(body, tokenizer_of(model_place(context)), texts, settings)
    total, done = len(texts) * len(wanted), [0]
    leaving = _leaving(context)

    def progress(count: int) -> None:
        leaving()
        done[0] += count
        context.tell(min(0.99, done[0] / total))

    rows: list[dict[str, Any]]
    if settings["read"] == "tokens":
        curve = plan_accuracy(body, wanted, ready, stack=_stack(context), progress=progress)
        tokens, fallback = curve.tokens, curve.fallback
        rows = [{"accuracy": found.accuracy} for found in curve.plans]
    else:
        run = evaluate(body, wanted, ready, causal_lm(), stack=_stack(context), progress=progress)
        fallback = run.fallback
        tokens = run.results[0]["tokens"]
        names = ("loss", "perplexity", "accuracy")
        rows = [{name: float(found[name]) for name in names} for found in run.results]
    payload = {
        "tokens": tokens,
        "texts": len(texts),
        "fallback": fallback,
        "plans": [
            {"plan": text, "depth": len(plan), **row}
            for text, plan, row in zip(settings["plans"], wanted, rows, strict=True)
        ],
    }
    return Result(payload=payload)


def score(context: Context) -> Result:
    """Measures of layers and blocks. Settings: `measures`, and `blocks`, their lengths."""
    settings = context.trial.settings
    body = _model(context, model_place(context), settings.get("class"))
    ready = _batches(body, tokenizer_of(model_place(context)), _texts(context), settings)
    found = run_score(
        body,
        ready,
        stack=_stack(context),
        blocks=settings.get("blocks", [1]),
        measures=settings["measures"],
        progress=_leaving(context),
    )
    return Result(payload=found.to_json() | {"model": None})


def compare(context: Context) -> Result:
    """How alike the model and the one that the input trial made of it are, layer by layer."""
    one = _model(context, model_place(context), "AutoModel")
    two = _model(context, _made(context), "AutoModel")
    tokenizer = tokenizer_of(model_place(context))
    ready = _batches(one, tokenizer, _texts(context), context.trial.settings)
    found = run_compare(one, two, ready, stack=_stack(context), progress=_leaving(context))
    return Result(payload=found.to_json() | {"a": None, "b": None})


def probe(context: Context) -> Result:
    """Linear readers on each frozen layer, trained as Tamkin et al. do.

    Settings: `trials`, `epochs` (40), `pooling` (mean), `size` (all examples). With a size, each
    trial draws so many of twice as many, so that few states are computed; of a task that has fewer
    examples, of all of them.
    """
    settings = context.trial.settings
    train, validation = splits(context.trial)
    place = model_place(context)
    size = settings.get("size")
    if size and 2 * size < len(train):
        train = subsample(train, 2 * size, 0)
    begun = time.perf_counter()
    found = run_probe(
        _model(context, place, "AutoModel"),
        tokenizer_of(place),
        train,
        next(iter(validation.values())),
        trials=settings["trials"],
        sizes=[min(size, len(train))] if size else None,
        settings=replace(PAPER, seed=context.trial.seed, epochs=settings.get("epochs", 40)),
        pooling=settings.get("pooling", "mean"),
        stack=_stack(context),
        max_length=settings.get("max_length"),
        progress=_leaving(context),
    ).to_json()
    # these depend on what the cache holds
    for name in ("model", "seconds", "layer_applications"):
        del found[name]
    return Result(payload=found, timings={"probe": time.perf_counter() - begun})


def _leaving(context: Context) -> Callable[..., None]:
    """A progress that leaves when the sweep is stopped; nothing of a look is worth keeping."""

    def progress(*_: object) -> None:
        if context.stop():
            raise Stopped("stopped while looking")

    return progress


def _made(context: Context) -> str:
    """Where the model of the input trial lies."""
    (key,) = context.trial.inputs
    return str(context.inputs[key].directory / MODEL)


def _stack(context: Context) -> str | None:
    return None if context.trial.model is None else context.trial.model.stack


def _model(context: Context, place: str, kind: str | None = None) -> PreTrainedModel:
    """A model in the class that its config names, or as `AutoModel` of a kind."""
    with quiet():
        cls = getattr(transformers, kind) if kind else _class_of(place)
        model: PreTrainedModel = cls.from_pretrained(place, dtype=torch.float32)
    return model.to(context.device).eval()  # type: ignore[arg-type]


def _class_of(place: str) -> Any:
    config = transformers.AutoConfig.from_pretrained(place)
    named = (getattr(transformers, name, None) for name in config.architectures or ())
    return next((cls for cls in named if cls is not None), transformers.AutoModel)


def _texts(context: Context) -> list[Text]:
    """The texts of the validation split of the trial's task, or of its file or directory."""
    task, data = context.trial.task, context.trial.data
    assert data is not None
    if task is not None:
        found = load_split(task_of(task, data), data.validation[0], data.source, limit=data.limit)
        return list(found.texts)
    if data.source is None:
        raise RestackError("texts that belong to no task need a file or a directory")
    split = data.validation[0] if Path(data.source).is_dir() else None
    return list(load_texts(data.source, split=split, limit=data.limit).texts)


def _batches(
    model: PreTrainedModel, tokenizer: Any, texts: Sequence[Text], settings: Mapping[str, Any]
) -> list[Batch]:
    limit = length_limit(model.config, tokenizer, settings.get("max_length"))
    tokens = tokenize(tokenizer, texts, max_length=limit, vocab_size=vocabulary(model))
    pad = 0 if tokens.pad_id is None else None
    return list(batches(tokens, _BATCH_TOKENS, pad_id=pad))
