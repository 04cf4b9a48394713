"""Plans: for each position of a new stack, which source layer stands there and how."""

from restack.plan.calls import VERBS
from restack.plan.chain import chain
from restack.plan.draw import draw
from restack.plan.mergekit import LLAMA_PROJECTIONS, from_mergekit, to_mergekit
from restack.plan.plan import MAX_SLOTS, Mark, Plan, Slot
from restack.plan.verbs import (
    drop,
    drop_by_score,
    duplicate,
    expand,
    keep,
    noop,
    permute,
    reinit,
    repeat,
    reverse,
    swap,
    upscale,
)
from restack.plan.words import describe

__all__ = [
    "LLAMA_PROJECTIONS",
    "MAX_SLOTS",
    "VERBS",
    "Mark",
    "Plan",
    "Slot",
    "chain",
    "describe",
    "draw",
    "drop",
    "drop_by_score",
    "duplicate",
    "expand",
    "from_mergekit",
    "keep",
    "noop",
    "permute",
    "reinit",
    "repeat",
    "reverse",
    "swap",
    "to_mergekit",
    "upscale",
]
