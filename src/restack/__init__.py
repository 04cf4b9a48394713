"""Re-stack the layers of pretrained transformers, and see what it does."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from restack.errors import CheckpointError, DataError, PlanError, RestackError, StackError
from restack.plan import Mark, Plan, Slot

if TYPE_CHECKING:
    from restack.observe.evaluate import evaluate
    from restack.observe.lens import lens
    from restack.observe.probe import probe
    from restack.observe.score import score
    from restack.observe.similarity import compare
    from restack.surgery.disk import Edit, Options, edit
    from restack.surgery.memory import restack
    from restack.surgery.verify import verify

__version__ = "0.1.0"

# Imported when first asked for, so that `import restack` stays fast: torch only where it is needed.
_LAZY = {
    "Edit": "restack.surgery.disk",
    "Options": "restack.surgery.disk",
    "compare": "restack.observe.similarity",
    "edit": "restack.surgery.disk",
    "evaluate": "restack.observe.evaluate",
    "lens": "restack.observe.lens",
    "probe": "restack.observe.probe",
    "restack": "restack.surgery.memory",
    "score": "restack.observe.score",
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
    "compare",
    "edit",
    "evaluate",
    "lens",
    "probe",
    "restack",
    "score",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
