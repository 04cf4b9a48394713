"""Carry out plans: on a model in memory, or on a checkpoint on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from restack.surgery.memory import restack

__all__ = ["restack"]


def __getattr__(name: str) -> Any:
    # torch is imported only by who asks for surgery in memory: `edit` and `verify` do without
    if name == "restack":
        from restack.surgery.memory import restack

        return restack
    raise AttributeError(name)
