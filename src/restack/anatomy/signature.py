"""Which layers can stand for one another, by the names and shapes of their tensors."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from restack.plan import Plan


def edges_fit(kinds: Sequence[Hashable], plan: Plan) -> bool:
    """Whether a plan keeps the first and the last kind of layer where they stood.

    For stacks whose first or last layer differs by its position (ModernBERT's layer 0 has no
    `attn_norm`) and whose other layers are of one kind.
    """
    return misplaced(kinds, plan) is None


def misplaced(kinds: Sequence[Hashable], plan: Plan) -> int | None:
    """The first slot whose layer is not of the kind that its place asks for."""
    inner = kinds[1] if len(kinds) > 2 else kinds[0]
    for i, source in enumerate(plan.sources):
        if i == 0:
            wanted = kinds[0]
        elif i == len(plan) - 1:
            wanted = kinds[-1]
        else:
            wanted = inner
        if kinds[source] != wanted:
            return i
    return None
