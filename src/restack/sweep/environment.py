"""What a trial ran with: versions, machine, device, and the state of the code if it is in git."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

_LIBRARIES = ("torch", "transformers", "numpy", "scikit-learn", "tokenizers", "datasets")


@cache
def environment(device: str = "cpu") -> dict[str, Any]:
    """Plain data; the same for all trials of one installation on one machine and device."""
    from restack import __version__

    found: dict[str, Any] = {
        "restack": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.node(),
        "device": _device(device),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "git": _git(),
    }
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _device(device: str) -> str:
    if device.startswith("cuda"):
        import torch

        return f"{device}: {torch.cuda.get_device_name(device)}"
    return f"{device}: {platform.processor() or platform.machine()}"


def _git() -> dict[str, Any] | None:
    """Commit and whether something was changed since, of the code that runs."""
    here = Path(__file__).parent
    try:
        # an installed package may lie inside somebody else's repository: only tracked code counts
        known = _said("ls-files", "--error-unmatch", __file__, cwd=here)
        if known is None:
            return None
        changed = _said("status", "--porcelain", "--untracked-files=no", cwd=here)
        return {"commit": _said("rev-parse", "HEAD", cwd=here), "changed": bool(changed)}
    except (OSError, subprocess.TimeoutExpired):
        return None


def _said(*arguments: str, cwd: Path) -> str | None:
    done = subprocess.run(
        ["git", *arguments], cwd=cwd, capture_output=True, text=True, timeout=10, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None
