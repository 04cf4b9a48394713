"""How alike two models are, layer by layer: a checkpoint and its fine-tuned or re-stacked self."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from restack.anatomy import models
from restack.anatomy.anatomy import Stack
from restack.errors import DataError, PlanError, StackError
from restack.observe.measures import Cka, Geometry
from restack.observe.reading import Anchor, pieces, reading_of, real_tokens, state_names
from restack.observe.running import Batch
from restack.observe.splitting import Pieces, rows_of
from restack.observe.stack_run import layer_states, layers_of
from restack.plan import Plan

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class LayerSimilarity:
    """A layer of the one model beside the layer of the other that it is compared with."""

    layer: int | None
    """In the second model; None for what enters the stacks, beside the input embeddings."""
    source: int | None
    """In the first one."""
    cls_cosine: float | None
    token_cosine: float | None
    cka: float | None
    """Debiased linear CKA over all real tokens."""
    weight_change: float | None
    """|Wa - Wb| / |Wa| over all weights of the layer; None where there are none to compare."""


@dataclass(frozen=True, slots=True)
class SimilarityResult:
    """How alike what leaves each layer is in two models, and how far apart their weights are."""

    a: str
    b: str
    texts: int
    tokens: int
    anchor: Anchor
    """Which real token stands for a text in `cls_cosine`."""
    plan: Plan | None
    """Which layer of the first model each layer of the second one was compared with."""
    entering: LayerSimilarity
    layers: tuple[LayerSimilarity, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "a": self.a,
            "b": self.b,
            "texts": self.texts,
            "tokens": self.tokens,
            "anchor": self.anchor,
            "plan": None if self.plan is None else str(self.plan),
            "entering": asdict(self.entering),
            "layers": [asdict(layer) for layer in self.layers],
        }

    def __rich__(self) -> RenderableType:
        from restack.observe.showing import similarity_table

        return similarity_table(self)


def compare(
    a: PreTrainedModel,
    b: PreTrainedModel,
    batches: Iterable[Batch],
    *,
    stack: str | None = None,
    plan: Plan | str | None = None,
    tokenizers: tuple[Any, Any] | None = None,
    anchor: Anchor | None = None,
    progress: Callable[[int], None] | None = None,
) -> SimilarityResult:
    """Compare the states and the weights of two models of one family on the same texts.

    Layer i is compared with layer i, or, where `b` is `a` re-stacked along a `plan`, each layer
    with the one that it was made of. Both models read the same token ids, so their vocabularies
    must be one: `tokenizers`, if given, are asked about every token that occurs; without them the
    models must have equally many embeddings. `progress` is told how many texts were just run.
    """
    one, two = models.pick(a, stack), models.pick(b, stack)
    _same_family(a, b, one, two)
    matched = _match(one, two, plan)
    if tokenizers is None:
        _same_sizes(a, b)
    changes = [
        _layer_change(a, b, (one, source), (two, layer))
        for layer, source in enumerate(matched.sources)
    ]
    sources = [0, *(source + 1 for source in matched.sources)]
    width = len(sources)
    names = [f"in the first model, {state_names(one)[i]}" for i in sources]
    names += [f"in the second model, {name}" for name in state_names(two)]
    geometry, cka = Geometry(2 * width), Cka((i, width + i) for i in range(width))
    texts = tokens = 0
    place: Anchor | None = None

    def work(batch: Batch) -> list[Tensor]:
        ours, theirs = (
            layer_states(m, batch, s, tail=False).states for m, s in ((a, one), (b, two))
        )
        _same_shape(ours[0], theirs[0])
        return [x.to(ours[0].device, torch.float32) for x in (*(ours[i] for i in sources), *theirs)]

    halves = Pieces()
    for batch in batches:
        if tokenizers is not None:
            same_tokens(batch, *tokenizers)
        place = place or reading_of(a, one, batch, anchor).anchor
        for piece, states in halves.run(batch, work):
            real = real_tokens(a, one, piece, states[0])
            for x, is_anchor in pieces(states, real, place, names):
                geometry.add(x, is_anchor)
                cka.add(x)
            texts += len(real)
            tokens += int(real.sum())
            if progress is not None:
                progress(rows_of(piece) or 1)
    if place is None:
        raise DataError("no batch to compare the models on", hint="Give at least one text.")
    values = cka.values()

    def row(i: int, layer: int | None, source: int | None, change: float | None) -> LayerSimilarity:
        j = width + i
        first, every = geometry.cosine(i, j, anchors=True), geometry.cosine(i, j)
        return LayerSimilarity(layer, source, first, every, values[i, j], change)

    return SimilarityResult(
        _name(a),
        _name(b),
        texts,
        tokens,
        place,
        None if plan is None else matched,
        row(0, None, None, _embedding_change(a, b)),
        tuple(
            row(layer + 1, layer, source, changes[layer])
            for layer, source in enumerate(matched.sources)
        ),
    )


def _name(model: PreTrainedModel) -> str:
    return model.config.name_or_path or type(model).__name__


def _same_family(a: PreTrainedModel, b: PreTrainedModel, one: Stack, two: Stack) -> None:
    kinds = a.config.model_type, b.config.model_type
    if kinds[0] != kinds[1] or one.facts.path != two.facts.path:
        raise StackError(
            f"{kinds[0]} (the stack `{one.path}`) and {kinds[1]} (`{two.path}`) are not of one "
            "family",
            hint="Compare checkpoints of one model type.",
        )
    widths = [getattr(m.config.get_text_config(), "hidden_size", None) for m in (a, b)]
    if widths[0] != widths[1]:
        raise _unlike(*widths)


def _match(one: Stack, two: Stack, plan: Plan | str | None) -> Plan:
    """Which layer of the first stack belongs to each of the second."""
    if plan is None:
        if one.depth != two.depth:
            more = two.depth - one.depth
            example = f"duplicate:first={more}" if more > 0 else f"drop:top={-more}"
            raise PlanError(
                f"the stacks have {one.depth} and {two.depth} layers, and nothing says which "
                "belong together",
                hint=f"Give the plan by which the second was made of the first, as `{example}`.",
            )
        return Plan.identity(one.depth)
    plan = Plan.parse(plan, one.depth) if isinstance(plan, str) else plan
    if (plan.depth, len(plan)) != (one.depth, two.depth):
        raise PlanError(
            f"the plan makes {len(plan)} layers of {plan.depth}; the models have {one.depth} and "
            f"{two.depth}",
            hint="Give the plan by which the second model was made of the first.",
        )
    return plan


def _embeddings(model: PreTrainedModel) -> Tensor | None:
    try:
        weight = getattr(model.get_input_embeddings(), "weight", None)
    except NotImplementedError:  # CLIP and others with several towers
        return None
    return weight.detach() if isinstance(weight, Tensor) else None


def _same_sizes(a: PreTrainedModel, b: PreTrainedModel) -> None:
    rows = [None if (w := _embeddings(model)) is None else len(w) for model in (a, b)]
    if rows[0] != rows[1]:
        raise DataError(
            f"the models have {rows[0]} and {rows[1]} embeddings: a token id may not mean the same "
            "in both",
            hint="Give both tokenizers, and every token that occurs is compared.",
        )


def same_tokens(batch: Batch, first: Any, second: Any) -> None:
    """Refuse ids that two tokenizers know as different tokens."""
    ids = batch["input_ids"].unique().tolist() if "input_ids" in batch else []
    read = [tokenizer.convert_ids_to_tokens(ids) for tokenizer in (first, second)]
    for i, mine, yours in zip(ids, *read, strict=True):
        if mine != yours:
            raise DataError(
                f"token {i} is {mine!r} to the first tokenizer and {yours!r} to the second",
                hint="Only models that share a vocabulary can read the same tokens.",
            )


def _same_shape(a: Tensor, b: Tensor) -> None:
    if a.shape[-1] != b.shape[-1]:
        raise _unlike(a.shape[-1], b.shape[-1])
    if a.shape != b.shape:
        raise StackError(f"of one batch the models make states of {[*a.shape]} and {[*b.shape]}")


def _unlike(mine: int | None, yours: int | None) -> StackError:
    return StackError(
        f"states of {mine} and of {yours} numbers have no cosine",
        hint="Compare checkpoints of one size.",
    )


def _layer_change(
    a: PreTrainedModel, b: PreTrainedModel, mine: tuple[Stack, int], yours: tuple[Stack, int]
) -> float | None:
    weights = [_layer_weights(model, *at) for model, at in ((a, mine), (b, yours))]
    names = [{name: tuple(t.shape) for name, t in layer.items()} for layer in weights]
    if names[0] != names[1]:
        name = sorted(set(names[0].items()) ^ set(names[1].items()))[0][0]
        have = [layer.get(name, "nothing") for layer in names]
        raise StackError(
            f"layer {mine[1]} of the first model has {have[0]} as `{name}`, layer {yours[1]} of "
            f"the second has {have[1]}",
            hint="Layers can be compared that hold the same tensors; merge adapters first.",
        )
    return _change(*weights)


def _layer_weights(model: PreTrainedModel, stack: Stack, layer: int) -> Mapping[str, Tensor]:
    """The weights of a layer, without those of the whole stack that only the first one stores."""
    layers = layers_of(model, stack)
    # ALBERT applies few sets of weights to many layers, evenly
    at = layer * len(layers) // stack.depth if stack.facts.shared else layer
    return {
        name: weight.detach()
        for name, weight in layers[at].named_parameters()
        if name not in stack.facts.bound
    }


def _embedding_change(a: PreTrainedModel, b: PreTrainedModel) -> float | None:
    """None where the embeddings are not of one size."""
    mine, yours = _embeddings(a), _embeddings(b)
    if mine is None or yours is None or mine.shape != yours.shape:
        return None
    return _change({"": mine}, {"": yours})


def _change(mine: Mapping[str, Tensor], yours: Mapping[str, Tensor]) -> float | None:
    """How far two sets of weights are apart, as a part of the length of the first."""
    apart = length = 0.0
    for name, weight in mine.items():
        ours = weight.cpu().double()
        apart += float((ours - yours[name].cpu().double()).square().sum())
        length += float(ours.square().sum())
    return math.sqrt(apart / length) if length else None
