"""What no plan may do to a stack, in memory or on disk."""

from __future__ import annotations

from collections.abc import Sequence

from restack.anatomy.anatomy import Stack
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
