"""Re-stack the layers of pretrained transformers, and see what it does."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from restack.errors import CheckpointError, DataError, PlanError, RestackError, StackError
from restack.plan import Mark, Plan, Slot

if TYPE_CHECKING:
    from restack.surgery.disk import Edit, Options, edit
    from restack.surgery.memory import restack
    from restack.surgery.verify import verify

__version__ = "0.1.0"

# Imported when first asked for, so that `import restack` stays fast: torch only where it is needed.
_LAZY = {
    "Edit": "restack.surgery.disk",
    "Options": "restack.surgery.disk",
    "edit": "restack.surgery.disk",
    "restack": "restack.surgery.memory",
    "verify": "restack.surgery.verify",
}

__all__ = [
    "CheckpointError",
    "DataError",
    "Edit",
    "Mark",
    "Options",
    "Plan",
    "PlanError",
    "RestackError",
    "Slot",
    "StackError",
    "edit",
    "restack",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
