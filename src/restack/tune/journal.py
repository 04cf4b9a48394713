"""What is written down while a run goes on: JSON Lines always, trackers where asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from restack.errors import CheckpointError, RestackError

RUNS = "runs"
"""The directory for what trackers write to the disk."""
TRACKERS = ("tensorboard", "wandb", "mlflow")


class Journal:
    """A file with one JSON object a line, and trackers that are told the same."""

    def __init__(self, path: Path | None, trackers: Sequence[Any] = ()) -> None:
        self.path = path
        self.trackers = trackers
        self.file: Any = None

    def begin(self, curve: Sequence[Mapping[str, Any]]) -> None:
        """Start with what an interrupted run had come to by its checkpoint, and nothing beyond."""
        if self.path is None:
            return
        try:
            self.file = open(self.path, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
            self.file.writelines(_line(entry) for entry in curve)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def write(self, entry: Mapping[str, Any]) -> None:
        """Write down one entry."""
        if self.file is not None:
            assert self.path is not None
            try:
                self.file.write(_line(entry))
            except OSError as error:
                raise _unwritable(self.path, error) from error
        for tracker in self.trackers:
            tracker.log(flat(entry), step=entry["step"])

    def end(self) -> None:
        """Close everything."""
        if self.file is not None:
            self.file.close()
        for tracker in self.trackers:
            tracker.finish()


def make_trackers(
    names: Sequence[str], directory: Path, project: str, settings: Mapping[str, Any]
) -> list[Any]:
    """accelerate's trackers by name; each needs its own library."""
    if not names:
        return []
    from accelerate import Accelerator
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS
    from accelerate.utils import is_mlflow_available, is_tensorboard_available, is_wandb_available

    installed = {
        "tensorboard": is_tensorboard_available,
        "wandb": is_wandb_available,
        "mlflow": is_mlflow_available,
    }
    Accelerator()  # the trackers ask it which process is the first
    project = project.replace("/", "-")  # which Weights & Biases takes for a part of its address
    made = []
    for name in names:
        if name not in TRACKERS:
            raise RestackError(
                f"there is no tracker {name!r}", hint=f"Known: {', '.join(TRACKERS)}."
            )
        if not installed[name]():
            raise RestackError(
                f"the tracker {name} needs a library that is not installed",
                hint=f"pip install {name}, or leave the tracker out; metrics.jsonl is written "
                "always.",
            )
        cls = LOGGER_TYPE_TO_CLASS[name]
        tracker = (
            cls(project, logging_dir=str(directory))
            if cls.requires_logging_directory
            else (cls(project))
        )
        tracker.start()
        tracker.store_init_configuration(flat(settings, numbers=False))
        made.append(tracker)
    return made


def flat(entry: Mapping[str, Any], prefix: str = "", *, numbers: bool = True) -> dict[str, Any]:
    """Nested names joined by `/`, as trackers want them; of the values only numbers, or all.

    >>> flat({"step": 3, "loss": 0.5, "metrics": {"validation": {"f1": 0.25}}})
    {'loss': 0.5, 'metrics/validation/f1': 0.25}
    """
    found: dict[str, Any] = {}
    for name, value in entry.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}/", numbers=numbers)
        elif isinstance(value, int | float) and not (name == "step" and not prefix):
            found[prefix + name] = value
        elif not numbers:
            found[prefix + name] = str(value)
    return found


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(finite(entry)) + "\n"


def finite(value: Any) -> Any:
    """Numbers that JSON cannot write become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _unwritable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{path}: {error.strerror or error}",
        hint="Make room, then go on from the last checkpoint with --resume.",
    )
