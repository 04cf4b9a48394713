"""Bring a re-stacked model to a task: training, ensembles, distillation, and what it costs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from restack.tune.distil import Distil
    from restack.tune.healing import Teacher
    from restack.tune.recipe import Lora, Recipe
    from restack.tune.tuned import Tuned
    from restack.tune.tuning import tune

# torch is imported only by who asks for training: settings and results do without
_LAZY = {
    "Distil": "restack.tune.distil",
    "Lora": "restack.tune.recipe",
    "Recipe": "restack.tune.recipe",
    "Teacher": "restack.tune.healing",
    "Tuned": "restack.tune.tuned",
    "tune": "restack.tune.tuning",
}

__all__ = ["Distil", "Lora", "Recipe", "Teacher", "Tuned", "tune"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
