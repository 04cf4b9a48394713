"""A recipe: all settings of one training run that decide about its numbers, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from restack.errors import RestackError

Head = Literal["family", "mean-pool"]
Precision = Literal["fp32", "bf16", "fp16"]
Schedule = Literal["linear", "constant"]


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank updates beside the linear layers of the stack, merged into them at the end."""

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is trained. Equal recipes, data and seeds give equal numbers on one device."""

    seed: int = 0
    """Of the head, fresh slots, batches and dropout."""
    epochs: float = 3.0
    """Passes over the training data."""
    steps: int | None = None
    """At most so many updates of the weights, instead of epochs."""
    batch_size: int | None = 32
    """Examples of a batch, over all processes together."""
    batch_tokens: int | None = None
    """Batches by tokens with padding, instead of by examples."""
    accumulate: int = 1
    """Batches of one update, one after the other: as one batch so many times as large."""
    window: int = 4096
    """Examples within which batches are sorted by length; 1 for entirely random batches."""
    multiple: int | None = None
    """Pad to multiples of it; by default 8 on a GPU and 1 elsewhere."""

    rate: float = 2e-5
    """The highest learning rate."""
    schedule: Schedule = "linear"
    """How the rate goes on behind the warm-up: down to 0, or as it is."""
    warmup: float = 0.1
    """The part of the updates in which the rate rises; 1 or more is a number of updates."""
    weight_decay: float = 0.01
    """Of matrices; biases and norms have none."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of AdamW."""
    epsilon: float = 1e-8
    """Of AdamW."""
    clip: float | None = 1.0
    """The largest norm of the gradient."""
    label_smoothing: float = 0.0
    """The part of each label that is spread over all of them."""

    layer_decay: float = 1.0
    """The rate of each layer as a part of the rate of the layer above it."""
    fresh_factor: float = 1.0
    """The rate of slots that the plan makes fresh, as a multiple (Tamkin et al. tried 5)."""
    freeze: tuple[int, ...] = ()
    """Slots that are not trained."""
    freeze_embeddings: bool = False
    """Do not train the embeddings."""
    lora: Lora | None = None
    """Train low-rank updates beside the linear layers of the stack, and merge them at the end."""

    head: Head = "family"
    """The family's own head, or the mean of the last states and a linear layer."""
    precision: Precision = "fp32"
    """The arithmetic of matrices; weights and their updates are in fp32 always."""
    compile: bool = False
    """Compile the model with torch.compile."""
    checkpointing: bool = False
    """Compute activations twice to keep fewer of them."""

    max_length: int | None = None
    """Tokens of an example: what the model allows, 384 for spans, 512 at most for blocks."""
    stride: int = 128
    """Tokens that windows of a long context share; by default a third of windows below 256."""
    blocks: bool = True
    """Language modelling on running text, cut into blocks without padding; else text by text."""
    packing: bool = False
    """Causal language modelling text by text, several in one row without padding."""
    mask: float = 0.15
    """The part of the tokens that masked language modelling predicts."""

    evaluate_every: int | None = None
    """Updates between evaluations; by default one follows each epoch."""
    patience: int | None = None
    """Stop after so many evaluations without a better one."""
    keep_best: bool = True
    """End with the weights of the best evaluation; else with the last ones."""

    def __post_init__(self) -> None:
        if isinstance(self.lora, Mapping):
            object.__setattr__(self, "lora", Lora(**self.lora))
        for name in ("betas", "freeze"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        _check(self)

    @property
    def key(self) -> str:
        """A hash of all settings."""
        from restack.data.cache import fingerprint  # numpy, which the command line starts without

        return fingerprint([self.to_json()])

    def to_json(self) -> dict[str, Any]:
        """Plain data, from which `from_json` makes the recipe again."""
        values = asdict(self)
        return values | {"betas": list(self.betas), "freeze": list(self.freeze)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Recipe:
        """A recipe from some or all of its settings.

        >>> Recipe.from_json(Recipe(steps=10).to_json()) == Recipe(steps=10)
        True
        """
        known = {field.name for field in fields(cls)}
        unknown = [name for name in values if name not in known]
        if unknown:
            raise RestackError(
                f"a recipe has no setting {unknown[0]!r}",
                hint=f"Known: {', '.join(sorted(known))}.",
            )
        return cls(**values)


def _check(recipe: Recipe) -> None:
    """Refuse settings that no run could have."""
    if (recipe.batch_size is None) == (recipe.batch_tokens is None):
        raise RestackError(
            "give either batch_size or batch_tokens",
            hint="With batch_tokens, set batch_size=None.",
        )
    for name, least in (
        *(("batch_size", 1), ("batch_tokens", 1), ("accumulate", 1), ("window", 1)),
        *(("multiple", 1), ("steps", 1), ("evaluate_every", 1), ("patience", 1)),
        *(("max_length", 1), ("stride", 0), ("seed", 0)),
    ):
        value = getattr(recipe, name)
        if value is not None and (isinstance(value, bool) or int(value) != value or value < least):
            raise RestackError(f"{name} is {value}", hint=f"Give a whole number from {least}.")
    for name, low, high in (
        *(("epochs", 0.0, math.inf), ("rate", 0.0, math.inf), ("layer_decay", 0.0, 10.0)),
        *(("fresh_factor", 0.0, math.inf), ("mask", 0.0, 1.0), ("clip", 0.0, math.inf)),
    ):
        value = getattr(recipe, name)
        if value is not None and not low < value <= high:
            raise RestackError(f"{name} is {value}", hint=f"Give a number above {low:g}.")
    for name in ("warmup", "weight_decay", "label_smoothing"):
        value = getattr(recipe, name)
        if not 0 <= value < (1 if name == "label_smoothing" else math.inf):
            raise RestackError(f"{name} is {value}", hint="Give 0 or more.")
    for name, choices in (("head", Head), ("precision", Precision), ("schedule", Schedule)):
        if getattr(recipe, name) not in get_args(choices):
            raise RestackError(
                f"{name} is {getattr(recipe, name)!r}",
                hint=f"Known: {', '.join(get_args(choices))}.",
            )
    if recipe.packing and recipe.blocks:
        raise RestackError(
            "blocks of running text have no padding, so there is nothing to pack",
            hint="Give packing with blocks=False.",
        )
