"""A model with the head that a task needs, re-stacked by a plan and ready to be trained.

The task decides about the head, not the checkpoint: a base checkpoint may declare one label, which
transformers would silently train as a regression.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from restack.anatomy.anatomy import Stack
from restack.anatomy.live import base_path, find_stacks
from restack.anatomy.models import pick
from restack.anatomy.shipped import local
from restack.data.tasks import Kind, Task
from restack.errors import CheckpointError, DataError, StackError
from restack.plan import Plan
from restack.surgery import restack
from restack.surgery.fresh import DEFAULT
from restack.tune.mean_pool import MeanPool, has_mean_pool, load_mean_pool
from restack.tune.recipe import Head
from restack.tune.silence import silence

CLASSES: dict[Kind, str] = {
    "classification": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "multilabel": "AutoModelForSequenceClassification",
    "span": "AutoModelForQuestionAnswering",
    "lm": "AutoModelForCausalLM",
    "mlm": "AutoModelForMaskedLM",
}
_PROBLEMS: dict[Kind, Any] = {
    "classification": "single_label_classification",
    "regression": "regression",
    "multilabel": "multi_label_classification",
}
Location = str | os.PathLike[str]


def body_of(model: nn.Module) -> PreTrainedModel:
    """The transformers model itself, or the one within a `MeanPool`."""
    inner = model.body if isinstance(model, MeanPool) else model
    assert isinstance(inner, PreTrainedModel)
    return inner


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model to train, and what of it is new."""

    model: nn.Module
    """A transformers model with its head, or a `MeanPool` around one without."""
    stack: Stack | None
    """The stack as it was before the plan; None if there is not exactly one and no plan."""
    plan: Plan | None
    """None if the stack is as it was."""
    fresh: tuple[str, ...]
    """Tensors outside the stack that the checkpoint did not hold: as a rule, the head."""

    @property
    def body(self) -> PreTrainedModel:
        """The transformers model, which for a `MeanPool` has no head."""
        return body_of(self.model)

    @property
    def layers(self) -> str | None:
        """The path of the stack within `model`."""
        if self.stack is None:
            return None
        return f"body.{self.stack.path}" if isinstance(self.model, MeanPool) else self.stack.path

    @property
    def depth(self) -> int | None:
        """Layers after the plan."""
        if self.plan is not None:
            return len(self.plan)
        return None if self.stack is None else self.stack.depth


def load_for_task(
    source: Location | PreTrainedModel | MeanPool,
    task: Task,
    *,
    plan: Plan | str | None = None,
    head: Head = "family",
    stack: str | None = None,
    seed: int = 0,
    init: str = DEFAULT,
    pad_id: int | None = None,
) -> Loaded:
    """A model for a task in float32, from a directory, a Hub name or another model.

    A head that the checkpoint holds, with outputs as many as the task has, is kept; otherwise a
    fresh one is drawn from `seed`, the same for every plan. `pad_id` is the padding token, for
    configs that name none. A model that is given stays as it is.
    """
    if isinstance(source, str | os.PathLike):
        source = local(os.fspath(source))
    config = _config(source)
    if head == "mean-pool":
        body, fresh = _body(source, config, task)
    else:
        _describe(config, task, pad_id)
        body, fresh = _with_head(source, config, task, seed)
    found = _stack(body, stack, needed=plan is not None)
    if plan is not None:
        assert found is not None
        plan = Plan.parse(plan, found.depth) if isinstance(plan, str) else plan
        body = restack(body, plan, stack=found.path, seed=seed, init=init)
    model: nn.Module = body
    if head == "mean-pool":
        kept = _kept_head(source, task)
        model = MeanPool(body, task.outputs, seed=seed) if kept is None else MeanPool(body, kept)
        if kept is None:
            fresh = (*fresh, "head.weight", "head.bias")
    return Loaded(model, found, plan, fresh)


def _config(source: Location | PreTrainedModel | MeanPool) -> PreTrainedConfig:
    if isinstance(source, PreTrainedModel | MeanPool):
        return copy.deepcopy(source.config)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(source)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"{os.fspath(source)} cannot be loaded: {first}",
            hint="Give the directory of a model saved by transformers, or a Hub name.",
        ) from error
    return config


def _describe(config: PreTrainedConfig, task: Task, pad_id: int | None) -> None:
    """Let the config say what the task is."""
    if task.kind in _PROBLEMS:
        names = task.labels or tuple(f"LABEL_{i}" for i in range(task.outputs))
        config.id2label = dict(enumerate(names))
        config.label2id = {name: code for code, name in enumerate(names)}
        config.problem_type = _PROBLEMS[task.kind]
    elif task.kind == "span":
        config.num_labels = task.outputs
    text = config.get_text_config()
    if text.pad_token_id is None:
        text.pad_token_id = pad_id


def _with_head(
    source: Any, config: PreTrainedConfig, task: Task, seed: int
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """The family's own class for the task, and the names of what was not in the checkpoint."""
    auto = getattr(transformers, CLASSES[task.kind])
    if type(config) not in auto._model_mapping:
        raise DataError(
            f"{config.model_type} has no head for {task.name}: transformers knows no "
            f"{CLASSES[task.kind].replace('AutoModel', '*')} of it",
            hint="Use another model"
            + (", or the mean-pool head." if task.kind in _PROBLEMS else "."),
        )
    return _load(source, config, auto, seed)


def _body(
    source: Any, config: PreTrainedConfig, task: Task
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """The model without a head."""
    if task.kind not in _PROBLEMS:
        raise DataError(
            f"the mean-pool head gives one answer a text, and {task.name} ({task.kind}) asks for "
            "one a token",
            hint="Use the family's own head.",
        )
    if getattr(config, "is_encoder_decoder", False):
        raise DataError(f"the mean-pool head needs one stack; {config.model_type} has two")
    body, missing = _load(source, config, transformers.AutoModel, 0)
    for name, tensor in body.named_parameters():
        if "pooler" in name:  # nothing reads it here, and what gets no gradient cannot be trained
            tensor.requires_grad_(False)
    return body, tuple(name for name in missing if "pooler" not in name)


def _load(
    source: Any, config: PreTrainedConfig, auto: Any, seed: int
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    config.dtype = torch.float32
    options = {"config": config, "dtype": torch.float32, "ignore_mismatched_sizes": True}
    given = source.body if isinstance(source, MeanPool) else source
    given = given if isinstance(given, PreTrainedModel) else None
    if given is not None:
        state = {name: tensor.detach().clone() for name, tensor in given.state_dict().items()}
        source, options = None, options | {"state_dict": state}
        auto = auto._model_mapping[type(config)]
        auto = auto[0] if isinstance(auto, tuple) else auto
    with torch.random.fork_rng(devices=[]), silence():
        torch.default_generator.manual_seed(seed)
        try:
            model, said = auto.from_pretrained(source, output_loading_info=True, **options)
        except (OSError, ValueError) as error:
            first = str(error).strip().splitlines()[0]
            raise CheckpointError(
                f"{source} cannot be loaded: {first}",
                hint="Give the directory of a model saved by transformers, or a Hub name.",
            ) from error
    if given is not None:
        model.config.name_or_path = given.config.name_or_path  # of no source it would be "None"
        _tie_as(given, model)
    missing = {*said["missing_keys"], *(entry[0] for entry in said["mismatched_keys"])}
    _check_body(model, missing, str(source or config.name_or_path or config.model_type))
    return model, tuple(sorted(missing))


def _tie_as(given: PreTrainedModel, model: PreTrainedModel) -> None:
    """Let layers share what they share in the given model; a state dict does not tell."""
    # by their paths behind the prefix that a task's class puts before the base model
    ours = {base_path(model, path): layers for path, layers in find_stacks(model).items()}
    for path, layers in find_stacks(given).items():
        same = ours.get(base_path(given, path))
        if same is None or len(same) != len(layers):
            continue
        owners: dict[int, nn.Parameter] = {}
        for old, new in zip(layers, same, strict=True):
            modules = dict(new.named_modules())
            for place, module in old.named_modules():
                for leaf, parameter in module._parameters.items():
                    if parameter is None:
                        continue
                    target = modules[place]._parameters
                    own = target[leaf]
                    assert own is not None
                    target[leaf] = owners.setdefault(id(parameter), own)


def _check_body(model: PreTrainedModel, missing: set[str], where: str) -> None:
    """Refuse a checkpoint that lacks more than a head."""
    inside = [f"{path}." for path in find_stacks(model)]
    embedded = {id(p) for p in model.get_input_embeddings().parameters()}
    inside += [name for name, p in model.named_parameters() if id(p) in embedded]
    lost = sorted(name for name in missing if name.startswith(tuple(inside)))
    if lost:
        raise CheckpointError(
            f"{where}: `{lost[0]}` and {len(lost) - 1} more tensors of the body are missing or of "
            "another shape",
            hint="The weights do not belong to this config.",
        )


def _stack(model: PreTrainedModel, which: str | None, *, needed: bool) -> Stack | None:
    try:
        return pick(model, which)
    except StackError:
        if needed or which is not None:
            raise
        return None


def _kept_head(source: Any, task: Task) -> nn.Linear | None:
    """The linear layer of a model that was tuned with a mean-pool head, if it fits the task."""
    if isinstance(source, MeanPool):
        kept = copy.deepcopy(source.head)
    elif not isinstance(source, PreTrainedModel) and has_mean_pool(Path(source)):
        kept = load_mean_pool(Path(source)).head
    else:
        return None
    return kept if kept.out_features == task.outputs else None


def fresh_note(fresh: Sequence[str]) -> str | None:
    """What to say about tensors that were not in the checkpoint."""
    if not fresh:
        return None
    return f"not in the checkpoint, so drawn anew: {', '.join(fresh)}"
