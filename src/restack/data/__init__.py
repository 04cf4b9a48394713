"""Data for observing and tuning: texts, tokens, batches, tasks and their metrics.

Nothing here knows of plans or layers. Heavy libraries are imported where they are needed.
"""

from __future__ import annotations

from restack.data.glue import TASKS, get_task
from restack.data.splits import Split, check_classes, load_split, parted, subsample
from restack.data.tasks import Task
from restack.data.texts import Texts, load_texts

__all__ = [
    "TASKS",
    "Split",
    "Task",
    "Texts",
    "check_classes",
    "get_task",
    "load_split",
    "load_texts",
    "parted",
    "subsample",
]
