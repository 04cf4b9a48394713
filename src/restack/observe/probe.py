"""Linear probes: how much of a task a linear reader finds in each frozen layer.

All layers, trials and sizes are read from the features of one forward pass over the texts.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from transformers import PreTrainedModel

from restack.anatomy.live import quiet
from restack.anatomy.models import pick
from restack.data.metrics import predict, score
from restack.data.splits import Split
from restack.errors import DataError
from restack.observe import linear
from restack.observe.features import Features, Format, Progress, pooled_features
from restack.observe.linear import Draw, Examples, Fit, Settings
from restack.observe.probe_data import (
    baseline,
    checked_metric,
    chosen_layers,
    draw_trials,
    linear_kind,
    targets,
)
from restack.observe.reading import Pooling
from restack.stats import Mean, mean_interval
from restack.surgery import restack

if TYPE_CHECKING:
    from rich.console import RenderableType

Fresh = Literal["model", "layers"]


@dataclass(frozen=True, slots=True)
class LayerProbe:
    """The trials of one layer with one number of examples."""

    layer: int
    """0 is the embeddings, i what leaves layer i - 1."""
    size: int
    """The examples of each trial, those held out among them."""
    mean: Mean
    """Of the metric of the result."""
    scores: tuple[Mapping[str, float], ...]
    """All metrics of the task, of each trial."""
    losses: tuple[float, ...]
    """On the held-out examples."""
    rounds: tuple[int, ...]
    """The epoch that each reader was at its best, or its iterations."""

    def to_json(self) -> dict[str, Any]:
        """As `--json` has it."""
        return {
            "layer": self.layer,
            "size": self.size,
            **asdict(self.mean),
            "trials": [dict(scores) for scores in self.scores],
            "losses": list(self.losses),
            "rounds": list(self.rounds),
        }


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What linear readers find in each layer, and what they would score without reading."""

    model: str
    stack: str
    task: str
    train: str
    validation: str
    metric: str
    pooling: str
    held_out: float
    settings: Settings
    cut: int
    """Texts that were longer than the limit and lost their end."""
    baseline: Mapping[str, float]
    """The metrics of giving the most frequent label, or the mean value, to all."""
    layers: tuple[LayerProbe, ...]
    control: Fresh | None
    """What is fresh in the control model: all of it, or its layers alone."""
    control_layers: tuple[LayerProbe, ...]
    """The same probes of the control model, of which there is one draw."""
    layer_applications: int
    """How often a layer was applied to a text, in the control too; 0 if all was in the cache."""
    seconds: Mapping[str, float]

    def __rich__(self) -> RenderableType:
        from restack.observe.showing import probe_tables

        return probe_tables(self)

    def to_json(self) -> dict[str, Any]:
        """As `--json` has it."""
        return {
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
            "settings": asdict(self.settings),
            "baseline": dict(self.baseline),
            "layers": [layer.to_json() for layer in self.layers],
            "control_layers": [layer.to_json() for layer in self.control_layers],
            "seconds": dict(self.seconds),
        }


def probe(
    model: PreTrainedModel,
    tokenizer: Any,
    train: Split,
    validation: Split,
    *,
    layers: Sequence[int] | None = None,
    trials: int = 8,
    sizes: Sequence[int] | None = None,
    held_out: float = 0.1,
    metric: str | None = None,
    settings: Settings | None = None,
    also_random: bool | Fresh = False,
    pooling: Pooling = "mean",
    stack: str | None = None,
    max_length: int | None = None,
    batch_tokens: int = 8192,
    dtype: Format = "float32",
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> ProbeResult:
    """Train linear readers of a task on the features of each layer; score them on `validation`.

    Each trial draws examples of its own from `train`: as many as each of `sizes` says (all by
    default), a smaller draw being part of a larger one. The part `held_out` of a draw tells when to
    stop. All layers see the same examples in the same order. `metric` is the one of the task's
    that is summed up, the first by default.

    `also_random` probes a control too: `model` (or True) is the same architecture with all weights
    fresh by its own initialiser, `layers` the same model with fresh layers and its own embeddings.
    To probe a plan, give the re-stacked model.

    The model runs where it is; `device` says where the readers are trained, by default there too.
    """
    settings = settings or Settings()
    metric = checked_metric(train, validation, metric)
    path = pick(model, stack).path
    chosen = chosen_layers(layers, pick(model, stack).depth)
    draws = [draw_trials(train, trials, n, held_out, settings.seed) for n in sizes or [len(train)]]
    place = model.device if device is None else device
    seconds = {"features": 0.0, "readers": 0.0}
    applied = cut = 0

    pooled = partial(
        pooled_features,
        tokenizer=tokenizer,
        pooling=pooling,
        stack=path,
        max_length=max_length,
        batch_tokens=batch_tokens,
        dtype=dtype,
    )
    fit = partial(linear.fit, layers=chosen, settings=settings, device=place)

    def read(body: PreTrainedModel, whose: str = "") -> tuple[LayerProbe, ...]:
        nonlocal applied, cut
        sides = [
            _Side(split, pooled(body, texts=split.texts, progress=_of(progress, what + whose)))
            for what, split in (("training", train), ("validation", validation))
        ]
        cut = sum(side.features.cut for side in sides)
        applied += sum(side.features.layer_applications for side in sides)
        seconds["features"] += sum(side.features.seconds for side in sides)
        begun = time.perf_counter()
        found = []
        for draw in draws:
            what = f"readers of {len(draw[0].train) + len(draw[0].held):,} examples{whose}"
            paced = partial(fit, progress=_paced(_of(progress, what)))
            found.append(_readers(sides[0], sides[1], draw, metric, paced))
        seconds["readers"] += time.perf_counter() - begun
        return tuple(chain.from_iterable(found))

    kind: Fresh | None = "model" if also_random is True else also_random or None
    control = fresh_model(model, kind, stack=path, seed=settings.seed) if kind else None
    return ProbeResult(
        model=model.config.name_or_path or type(model).__name__,
        stack=path,
        task=train.task.name,
        train=str(train),
        validation=str(validation),
        metric=metric,
        pooling=pooling,
        held_out=held_out,
        settings=settings,
        baseline=baseline(train, validation),
        layers=read(model),
        control=kind,
        control_layers=read(control, ", control") if control is not None else (),
        cut=cut,
        layer_applications=applied,
        seconds=seconds,
    )


def fresh_model(
    model: PreTrainedModel, what: Fresh, *, stack: str | None = None, seed: int = 0
) -> PreTrainedModel:
    """A control that has learnt nothing: all weights fresh, or those of the layers of its stack."""
    if what not in get_args(Fresh):
        raise DataError(
            f"there is no control {what!r}", hint=f"Known: {', '.join(get_args(Fresh))}."
        )
    if what == "layers":
        return restack(model, f"0-{pick(model, stack).depth - 1}@fresh", stack=stack, seed=seed)
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(seed)
        made: Any = type(model)(copy.deepcopy(model.config))
    return made.to(device=model.device, dtype=model.dtype).eval()


@dataclass(frozen=True, slots=True)
class _Side:
    """A split and its features, whose rows are the texts in another order."""

    split: Split
    features: Features


def _readers(
    train: _Side, validation: _Side, draws: Sequence[Draw], metric: str, fit: Callable[..., Fit]
) -> list[LayerProbe]:
    """Train the readers of all layers and trials on the one side, score them on the other."""
    task, rows, order = train.split.task, train.features.rows, train.features.order
    examples = Examples(
        torch.from_numpy(train.features.values),
        targets(task, train.split.labels)[torch.from_numpy(order)],
        linear_kind(task),
    )
    fitted = fit(examples, [Draw(d.number, rows[d.train], rows[d.held]) for d in draws])
    outputs = linear.predict(fitted, torch.from_numpy(validation.features.values))
    labels = [validation.split.labels[text] for text in validation.features.order]
    found = []
    for place, layer in enumerate(fitted.layers):
        scores = tuple(score(task, predict(task.kind, one), labels) for one in outputs[place])
        found.append(
            LayerProbe(
                layer,
                len(draws[0].train) + len(draws[0].held),
                mean_interval([one[metric] for one in scores]),
                scores,
                tuple(fitted.loss[place].tolist()),
                tuple(fitted.rounds[place].tolist()),
            )
        )
    return found


def _of(progress: Progress | None, what: str) -> Progress | None:
    """Progress that says of what it is: counts under one label would jump back."""
    if progress is None:
        return None
    return lambda label, *numbers: progress(f"{label} of {what}", *numbers)


def _paced(progress: Progress | None) -> Callable[[int, int, int], None] | None:
    """Tells of epochs and their pace."""
    if progress is None:
        return None
    begun = time.perf_counter()

    def tell(epoch: int, epochs: int, _: int) -> None:
        nonlocal begun
        if epoch == 1:
            begun, pace = time.perf_counter(), 0.0
        else:
            pace = (epoch - 1) / (time.perf_counter() - begun)
        progress("epochs", epoch, epochs, pace)

    return tell
