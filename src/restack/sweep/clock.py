"""Time that no change of the wall clock can disturb."""

from __future__ import annotations

from pathlib import Path


def boot_id() -> str | None:
    """What tells one start of this machine from another, since monotonic clocks begin there."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
