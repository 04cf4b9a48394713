"""Whether plans may be evaluated on a model without rebuilding it, and what they apply."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from restack.anatomy import live
from restack.anatomy.anatomy import Stack
from restack.errors import StackError
from restack.observe import trie
from restack.observe.leaf import body_of
from restack.observe.recording import Form, Recording, learn, record
from restack.observe.running import Batch, model_inputs, observing
from restack.observe.splitting import out_of_memory, rows_of, take_rows
from restack.observe.stack_run import layers_of
from restack.plan import Mark, Plan, Slot
from restack.surgery import restack

# How far outputs may be from those of a rebuilt model, relative to the largest, where kernels are
# not the same from run to run. On a CPU in float32 they are equal.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def refuse(
    model: PreTrainedModel, stack: Stack, plans: Collection[Plan], seed: int, init: str
) -> None:
    """Refuse what surgery refuses, by carrying the plans out on a model without storage."""
    twin = live.build_meta(copy.deepcopy(model.config), type(model))
    for plan in dict.fromkeys(plans):
        restack(twin, plan, stack=stack.path, seed=seed, init=init)


def key_of(stack: Stack, slot: Slot) -> Slot | None:
    """What is applied for a slot: equal keys are the same layer, None leaves the state as it is."""
    if slot.mark is Mark.NOOP:
        return None
    if slot.mark is Mark.FRESH:
        return slot
    if stack.facts.shared:  # the depth is laid out evenly over the groups
        of_each = stack.depth / len(stack.layers)
        group = int(slot.source / of_each)
        return Slot(next(i for i in range(stack.depth) if int(i / of_each) == group))
    return Slot(slot.source)


def fresh_layers(
    model: PreTrainedModel, stack: Stack, plans: Sequence[Plan], seed: int, init: str
) -> dict[Slot, nn.Module]:
    """The fresh layers of all plans, as surgery makes them."""
    wanted = {slot for plan in plans for slot in plan if slot.mark is Mark.FRESH}
    made: dict[Slot, nn.Module] = {}
    for draw in sorted({slot.draw for slot in wanted}):
        slots = tuple(
            slot if (slot := Slot(i, Mark.FRESH, draw)) in wanted else Slot(i)
            for i in range(stack.depth)
        )
        rebuilt = restack(
            model, Plan(stack.depth, slots), stack=stack.path, seed=seed, init=init
        ).eval()
        for slot, layer in zip(slots, layers_of(rebuilt, stack), strict=True):
            if slot in wanted:
                made[slot] = layer
    return made


def examine(
    model: PreTrainedModel, stack: Stack, batch: Batch, plans: Sequence[Plan], *, check: bool
) -> tuple[Form | None, str | None]:
    """How the layers are called, or why plans cannot be evaluated without rebuilding the model.

    With `check` the layers are applied one by one to two rows of the batch, and the outcome is
    compared with the model's own, then for small plans with that of rebuilt models.
    """
    rows = rows_of(batch)
    probe = batch if rows is None or rows < 3 else take_rows(batch, [0, rows - 1])
    try:
        form, body = learn(model, stack, probe)
        return form, _objection(model, stack, probe, form, body, plans) if check else None
    except StackError as error:
        return None, error.message


def _objection(
    model: PreTrainedModel,
    stack: Stack,
    probe: Batch,
    form: Form,
    body: Any,
    plans: Sequence[Plan],
) -> str | None:
    """What speaks against evaluating plans on this model."""
    recording = record(model, stack, probe, form)
    try:
        same = _same(_virtual(recording, stack, Plan.identity(stack.depth)), body)
    except Exception as error:  # the model does more between its layers than hand on the state
        if out_of_memory(error):
            raise
        return f"the layers of `{stack.path}` cannot be applied one by one ({_brief(error)})"
    if not same:
        return f"applying the layers of `{stack.path}` one by one gives other outputs"
    found = (_compare(recording, stack, group, probe) for group in _samples(stack, plans))
    return next(filter(None, found), None)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def _samples(stack: Stack, plans: Sequence[Plan]) -> Iterator[list[Plan]]:
    """Groups of plans; of each group the first that surgery allows is tried on a rebuilt model.

    They reorder and repeat layers where their kinds allow that, in few layers or in tied ones, so
    that little is built. Their depths are others than the model's: RWKV halves what leaves the
    sixth layer, whichever that is.
    """
    depth, last = stack.depth, stack.depth - 1
    one = min(1, last)
    orders = [[last, 0, 0], [last, 0], [0, last, one], [0, last], [0, 0, last, last], range(last)]
    yield [Plan.of(depth, order) for order in orders if 0 < len(order) != depth]
    longest = max(map(len, plans))
    if longest > depth:
        tied = [Slot(source, Mark.TIED) for source in (0, one, last)]
        tails = [tied[0]] * (longest - 1), [tied[1]] * (longest - 1)
        yield [
            Plan(depth, (Slot(0), *tail[:-1], end)) for tail in tails for end in (tail[0], tied[2])
        ]
    if any(Mark.NOOP in plan.marks for plan in plans):
        yield [Plan(depth, tuple(Slot(i, Mark.NOOP) for i in range(depth)))]


def _compare(recording: Recording, stack: Stack, plans: list[Plan], probe: Batch) -> str | None:
    for plan in plans:
        try:
            rebuilt = restack(recording.model, plan, stack=stack.path)
        except Exception:  # refused by surgery, or by the family's own checks of its config
            continue
        with observing(rebuilt):
            inputs = model_inputs(rebuilt, probe)
            expected = body_of(rebuilt, lambda: rebuilt(**inputs))  # noqa: B023
        if _same(_virtual(recording, stack, plan), expected):
            return None
        return f"the plan {plan} gives other outputs than the model rebuilt along it"
    return None


def _virtual(recording: Recording, stack: Stack, plan: Plan) -> Any:
    """What the base model returns along a plan."""
    steps = trie.build([plan], lambda slot: key_of(stack, slot))
    apply = lambda slot, state: recording.apply(slot.source, state)  # noqa: E731
    [(_, state)] = trie.walk(steps, recording.start, apply)
    return body_of(recording.model, lambda: recording.finish(state))


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, Tensor):
        return isinstance(ours, Tensor) and ours.shape == theirs.shape and _close(ours, theirs)
    if isinstance(theirs, dict):
        return set(ours) == set(theirs) and all(_same(ours[name], theirs[name]) for name in theirs)
    if isinstance(theirs, tuple | list):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return True  # a number or an object that says nothing of the states


def _close(ours: Tensor, theirs: Tensor) -> bool:
    if torch.equal(ours.nan_to_num(), theirs.nan_to_num()):
        return True
    exact = theirs.device.type == "cpu" and theirs.dtype is torch.float32
    if exact or not theirs.is_floating_point():
        return False
    far = (ours - theirs).float().abs().max()
    return bool(far <= _TOLERANCE.get(theirs.dtype, 0) * theirs.float().abs().max())
