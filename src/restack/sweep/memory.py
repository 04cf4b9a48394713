"""How much memory there is, and how much a trial takes: so many run at once as fit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from restack.sweep.trial import Trial

_STATUS = Path("/proc/self/status")
_GROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
IMPORTS = 400_000_000
"""What a worker takes that has imported torch and transformers and done nothing."""
_COPIES = 5
"""Weights, gradients, two moments of Adam, and the best weights."""


def available() -> int | None:
    """Bytes that can still be used here, of the machine or of the container."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except OSError:
        return None
    for limit, used in _GROUPS:
        try:
            found.append(int(limit.read_text()) - int(used.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(found, default=None)


def fresh_peak() -> None:
    """Let `peak` begin anew, where the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak() -> int | None:
    """The most bytes that this process had in memory since `fresh_peak`."""
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def guess(trial: Trial) -> int:
    """About what a trial will take, before one like it has run: mostly copies of the weights."""

    return IMPORTS + (_COPIES if trial.kind == "tune" else 2) * weights_of(trial)


def weights_of(trial: Trial) -> int:
    """Bytes of a trial's model in float32; 0 where it is not there yet."""
    from restack.anatomy.checkpoint import open_checkpoint
    from restack.errors import RestackError

    model = trial.model
    if model is None or model.trial is not None:
        return 0
    try:
        tensors = open_checkpoint(model.location, revision=model.revision).tensors.values()
    except (RestackError, OSError):  # the trial itself will say what is wrong
        return 0
    return 4 * sum(_count(t.shape) for t in tensors)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
