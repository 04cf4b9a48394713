"""What no plan may do to a stack, in memory or on disk."""

from __future__ import annotations

import re
from collections.abc import Sequence

from restack.anatomy.anatomy import Stack
from restack.anatomy.config import Config, rules_applying
from restack.anatomy.signature import misplaced
from restack.errors import StackError
from restack.plan import Mark, Plan


def check(stack: Stack, plan: Plan) -> None:
    """Refuse a plan for another depth, and marks that the layers of this stack cannot carry."""
    if plan.depth != stack.depth:
        raise StackError(
            f"the plan is for {plan.depth} layers; `{stack.path}` has {stack.depth}",
            hint=f"write the plan for layers 0..{stack.depth - 1}",
        )
    if stack.facts.shared and plan.marks & {Mark.FRESH, Mark.NOOP}:
        raise StackError(
            f"all layers of `{stack.path}` share their weights, so none can be fresh or a no-op "
            "by itself",
            hint="plans that drop, repeat or reorder work",
        )
    if Mark.NOOP in plan.marks and not stack.facts.outputs:
        raise StackError(
            f"a layer of `{stack.path}` cannot be made to pass its input on by zeroing its output "
            "projections: it normalises behind the residual sum (post-norm), or it could not be "
            "tried for this model type",
            hint="use plain copies (without @noop)",
        )


def misfit(stack: Stack, plan: Plan, wrong: Sequence[object]) -> StackError:
    """The refusal of a plan that puts layers where the model expects others."""
    shown = "; ".join(str(difference) for difference in wrong[:3])
    more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return StackError(
        f"the plan {plan} puts layers of `{stack.path}` where they cannot stand: {shown}{more}",
        hint="keep layers of that kind in their place; `restack show` lists the kinds",
    )


def check_places(stack: Stack, plan: Plan, config: Config) -> None:
    """Refuse a plan that puts layers where the config expects others; for checkpoints.

    The atlas knows for which families names, per-layer lists and index rules say all. For the
    others the model is built without weights, which needs torch.
    """
    facts = stack.facts
    if facts.shared or plan.is_identity:
        return
    if facts.edges:
        slot = misplaced(stack.kinds, plan)
        if slot is not None:
            raise misfit(stack, plan, [_edge(stack, plan, slot)])
        return
    explained = facts.lists or any(rules_applying(config, facts))
    if facts.live or (len(set(stack.kinds)) > 1 and not explained):
        from restack.anatomy import live
        from restack.anatomy.learn import misfits

        try:
            full = live.config_from(config)
            base = live.build_meta(full)
        except Exception as error:  # a type that transformers does not know, or a config it refuses
            raise StackError(
                f"the layers of `{stack.path}` are of {len(set(stack.kinds))} kinds, and the class "
                f"of model type {config.get('model_type')!r} that would say where each can stand "
                f"cannot be built: {' '.join(str(error).split())[:160]}",
                hint="load the model and call restack(model, plan)",
            ) from error
        wrong = misfits(facts, full, base, live.build_meta, plan)
        if wrong:
            raise misfit(stack, plan, wrong)


# Of these dtypes, bytes that are all zero are zeros.
_ZERO_IS_ZERO = ("F64", "F32", "F16", "BF16", "F8_E5M2", "F8_E4M3")


def check_zeros(stack: Stack, plan: Plan) -> None:
    """Refuse no-op copies of stored layers whose output projections are packed by a quantiser.

    Under other names (GPTQ's `qweight`) they would not be found, and of packed ones zero bytes are
    no zeros (the first value of bitsandbytes' nf4 is -1).
    """
    facts = stack.facts
    for source in sorted({slot.source for slot in plan if slot.mark is Mark.NOOP}):
        layer = stack.layers[source]
        zeroed = [name for name in layer if facts.zeroed(name, on_disk=True)]
        owners = {re.sub(r"\.\d+\.", ".*.", name.rpartition(".")[0]): name for name in layer}
        wanted = facts.stored_outputs if facts.renamed else facts.outputs
        lost = [
            owners[owner]
            for owner, _, leaf in (name.rpartition(".") for name in wanted)
            if leaf == "weight" and owner in owners and f"{owner}.weight" not in _starred(zeroed)
        ]
        packed = [name for name in zeroed if layer[name].dtype not in _ZERO_IS_ZERO]
        for name in (*lost, *packed):
            raise StackError(
                f"layer {source} of `{stack.path}` stores `{name}` as {layer[name].dtype}, packed "
                "by a quantiser, where zero bytes need not be zeros",
                hint="use plain copies (without @noop), or edit the model before it is quantised",
            )


def _starred(names: Sequence[str]) -> set[str]:
    return {re.sub(r"\.\d+\.", ".*.", name) for name in names}


def _edge(stack: Stack, plan: Plan, slot: int) -> str:
    source = plan[slot].source
    place = 0 if slot == 0 else len(stack.layers) - 1 if slot == len(plan) - 1 else 1
    ours, theirs = set(stack.layers[source]), set(stack.layers[place])
    lacks = "".join(f", lacks `{name}`" for name in sorted(theirs - ours)[:2])
    extra = "".join(f", has `{name}` too much" for name in sorted(ours - theirs)[:2])
    return f"slot {slot}: layer {source} is not of the kind of layer {place}{lacks}{extra}"
