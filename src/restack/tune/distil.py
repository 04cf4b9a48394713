"""Distillation: a re-stacked student learns to answer as the model that it was made from.

From logits, from hidden states slot by slot where the plan says which layer stands there, or from
both. No labels are needed. Over a vocabulary the teacher's logits are made for a few tokens at a
time.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from restack.anatomy import models
from restack.anatomy.anatomy import Stack
from restack.anatomy.checkpoint import open_checkpoint
from restack.data.tasks import Kind
from restack.errors import RestackError, StackError
from restack.observe.heads import Head, own_head
from restack.plan import Mark, Plan
from restack.surgery.record import read_record
from restack.tune.divergence import Goal, divergence
from restack.tune.examples import Batch
from restack.tune.heads import Loaded
from restack.tune.losses import Loss, head_loss, span_logits
from restack.tune.masking import IGNORED
from restack.tune.watching import watched

Source = Literal["logits", "states", "both"]
States = dict[int, Tensor]


@dataclass(frozen=True, slots=True)
class Distil:
    """What the student learns from."""

    source: Source = "logits"
    temperature: float = 1.0
    """Divides logits on both sides; above 1 the teacher's less likely answers count for more."""
    states: float = 1.0
    """The weight of hidden states beside logits."""
    labels: float = 0.0
    """The weight of the task's own loss beside the teacher's."""

    def __post_init__(self) -> None:
        if self.source not in get_args(Source):
            raise RestackError(
                f"distillation from {self.source!r}", hint=f"Known: {', '.join(get_args(Source))}."
            )
        if not self.temperature > 0:
            raise RestackError(f"a temperature of {self.temperature}", hint="Give one above 0.")
        if self.temperature != 1 and self.source == "states":
            raise RestackError(
                "a temperature is for logits, and this is distillation from states alone",
                hint="Leave the temperature out, or distil from both.",
            )
        if self.states != 1 and self.source != "both":
            raise RestackError(
                "a weight of states is for distillation from both logits and states",
                hint="Leave the weight out, or distil from both.",
            )
        for name in ("states", "labels"):
            if not getattr(self, name) >= 0:
                raise RestackError(f"the weight of {name} is {getattr(self, name)}")

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def pairs(plan: Plan) -> dict[int, int]:
    """For each slot the source layer whose state belongs behind it; fresh slots have none.

    >>> pairs(Plan.parse("0-1,3,3@noop,2@fresh", 4))
    {0: 0, 1: 1, 2: 3, 3: 3}
    """
    return {i: slot.source for i, slot in enumerate(plan) if slot.mark is not Mark.FRESH}


def plan_from(student: str | os.PathLike[str], plan: Plan | None, depth: int) -> Plan | None:
    """How the slots came from a teacher of `depth` layers, for a model made by `restack edit`.

    An edit writes down what it did, and what was done to its source before; `plan` comes on top.
    As many of these steps are taken back as lead to such a depth. None if there are none.
    """
    if not os.path.isdir(student):
        return plan
    record = read_record(open_checkpoint(student))
    while record is not None and (plan is None or plan.depth != depth):
        before = Plan.parse(record["plan"], int(record["source_depth"]))
        plan = before if plan is None else before.then(plan)
        record = record.get("source_record")
    return plan


def distillation(
    teacher: Loaded, plan: Plan | None, kind: Kind, settings: Distil, *, smoothing: float = 0.0
) -> Loss:
    """The loss of a student whose slots came from the teacher's layers by `plan`.

    Without a plan the student has the layers of the teacher. The teacher is frozen and put into
    evaluation mode, and follows the batches to their device. A state counts by its squared
    distance from the teacher's, as a part of the squared length of the teacher's, averaged over
    tokens and slots.
    """
    speaks, by_token = settings.source != "states", kind in ("lm", "mlm")
    if speaks:
        _check_head(teacher, kind, settings)
    wanted: dict[int, int] = {}
    if settings.source != "logits":
        wanted = pairs(_checked_plan(teacher, plan))
    teacher.model.eval().requires_grad_(False)
    weight = settings.states if settings.source == "both" else 1.0
    listener = _Listener(teacher, by_token and speaks)
    student = _Finder(len(plan) if plan is not None else teacher.depth, teacher)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        output, states = listener(batch, set(wanted.values()), speaks=speaks)
        if wanted:
            body, stack = student(model)
            with watched(body, stack, wanted) as ours:
                outputs = model(**batch.inputs)
            total = weight * _states_loss(ours, states, wanted, batch)
        else:
            outputs = model(**batch.inputs)
            total = batch.labels.new_zeros((), dtype=torch.float32)
        if by_token and speaks:
            total = total + _token_loss(kind, outputs, listener.goal(states), batch, settings)
        elif speaks:
            total = total + _row_loss(kind, outputs, output, batch, settings)
        if settings.labels:
            total = total + settings.labels * head_loss(kind, outputs, batch, smoothing)
        return total

    return loss


class _Listener:
    """Asks the teacher."""

    def __init__(self, teacher: Loaded, by_token: bool) -> None:
        self.teacher, self.by_token = teacher, by_token
        self.head: Head | None = None
        if by_token and teacher.stack is None:
            raise StackError(
                "the teacher's head reads what leaves a stack, and it has none or several",
                hint="Name the stack.",
            )

    def __call__(self, batch: Batch, layers: set[int], *, speaks: bool) -> tuple[Any, States]:
        """What the teacher's head says, and its states behind layers.

        Of a vocabulary only the last state is given: `goal` reads it.
        """
        model, body, stack = self.teacher.model, self.teacher.body, self.teacher.stack
        if body.device != batch.labels.device:
            model.to(batch.labels.device)
            self.head = None
        with torch.no_grad():
            if stack is None:
                return model(**batch.inputs), {}
            last = stack.depth - 1
            layers = layers | ({last} if self.by_token else set())
            output = None
            with watched(body, stack, layers, end=self.by_token or not speaks) as states:
                output = model(**batch.inputs)
        return output, states

    def goal(self, states: States) -> Goal:
        """The teacher's logits for tokens, counted through the batch."""
        assert self.teacher.stack is not None
        if self.head is None:
            self.head = own_head(self.teacher.body, stack=self.teacher.stack.path)
        head = self.head
        rows = states[self.teacher.stack.depth - 1].flatten(0, 1)
        return lambda some: head.logits(rows[some])


class _Finder:
    """Finds the student's stack in whatever the training loop wrapped it in."""

    def __init__(self, depth: int | None, teacher: Loaded) -> None:
        self.depth = depth
        self.path = None if teacher.stack is None else teacher.stack.path
        self.found: tuple[nn.Module, PreTrainedModel, Stack] | None = None

    def __call__(self, model: nn.Module) -> tuple[PreTrainedModel, Stack]:
        if self.found is None or self.found[0] is not model:
            if any(type(m).__name__ == "OptimizedModule" for m in model.modules()):
                raise RestackError(
                    "states cannot be seen in a compiled model",
                    hint="Leave compiling out, or distil from logits.",
                )
            body = next(m for m in model.modules() if isinstance(m, PreTrainedModel))
            stack = models.pick(body, self.path)
            if stack.depth != self.depth:
                raise StackError(
                    f"the student has {stack.depth} layers, and the plan makes {self.depth}",
                    hint="Give the plan that the student was made by.",
                )
            self.found = (model, body, stack)
        return self.found[1:]


def _states_loss(ours: States, theirs: States, wanted: dict[int, int], batch: Batch) -> Tensor:
    mask = batch.inputs.get("attention_mask")
    apart = []
    for slot, layer in wanted.items():
        own, goal = ours[slot].float(), theirs[layer].float()
        if own.shape != goal.shape:
            raise StackError(
                f"the student's states are {list(own.shape)}, the teacher's {list(goal.shape)}",
                hint="Distil from logits alone.",
            )
        if mask is not None:  # padding may hold anything, and 0 x NaN is NaN
            own, goal = own[mask != 0], goal[mask != 0]
        # some tokens have states a thousand times as long as others: each counts by its own length
        length = goal.square().sum(-1).clamp(min=torch.finfo(torch.float32).tiny)
        apart.append(((own - goal).square().sum(-1) / length).mean())
    return torch.stack(apart).mean() * batch.count


def _token_loss(kind: Kind, outputs: Any, goal: Goal, batch: Batch, settings: Distil) -> Tensor:
    asked = batch.labels != IGNORED
    if kind == "lm":  # the place before the token that is asked for
        asked = torch.cat([asked[:, 1:], torch.zeros_like(asked[:, :1])], 1)
    rows = asked.flatten().nonzero().squeeze(1)
    return divergence(outputs.logits.flatten(0, 1), rows, goal, settings.temperature)


def _row_loss(kind: Kind, ours: Any, theirs: Any, batch: Batch, settings: Distil) -> Tensor:
    if kind == "span":
        both = zip(span_logits(ours, batch), span_logits(theirs, batch), strict=True)
        return 0.5 * torch.stack([_between(a, b, settings.temperature) for a, b in both]).sum()
    own, goal = ours.logits.float(), theirs.logits.float()
    if own.shape != goal.shape:
        raise RestackError(
            f"the student gives {own.shape[-1]} outputs, the teacher {goal.shape[-1]}",
            hint="Give a teacher that was tuned on the same task.",
        )
    if kind == "regression":
        return (own - goal).square().sum()
    if kind == "multilabel":  # each label for itself, as a choice between it and none
        own, goal = (torch.stack([x, torch.zeros_like(x)], -1) for x in (own, goal))
        return _between(own.flatten(0, 1), goal.flatten(0, 1), settings.temperature) / own.shape[1]
    return _between(own, goal, settings.temperature)


def _between(own: Tensor, goal: Tensor, temperature: float) -> Tensor:
    rows = torch.arange(len(own), device=own.device)
    return divergence(own, rows, lambda some: goal[some], temperature)


def _check_head(teacher: Loaded, kind: Kind, settings: Distil) -> None:
    if teacher.fresh:
        raise RestackError(
            f"the teacher was not tuned on this task: {', '.join(teacher.fresh)} are not in it",
            hint="Give a teacher with a head for the task, or distil from states.",
        )
    if kind == "regression" and settings.temperature != 1:
        raise RestackError("a regression has no temperature", hint="Leave the temperature out.")


def _checked_plan(teacher: Loaded, plan: Plan | None) -> Plan:
    if teacher.stack is None:
        raise StackError(
            "states are learnt from layer by layer, and the teacher has no stack or several",
            hint="Name the stack, or distil from logits.",
        )
    depth = teacher.stack.depth
    plan = Plan.identity(depth) if plan is None else plan
    if plan.depth != depth:
        raise StackError(
            f"the plan is for a stack of {plan.depth} layers, and the teacher has {depth}",
            hint="Give the model that the plan was applied to as the teacher.",
        )
    if not pairs(plan):
        raise StackError(
            "all slots are fresh, so no state has a layer to learn from",
            hint="Distil from logits.",
        )
    return plan
