"""mergekit in a virtual environment of its own, as something to compare with."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from common import CACHE, ROOT, Child, ChildFailed, note, run_child

_TORCH = "torch==2.13.0"
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "PYTHONPATH": "",  # its packages, not ours
}


@dataclass(frozen=True, slots=True)
class Mergekit:
    """An installed mergekit."""

    directory: Path
    version: str

    def run(self, config: Path, out: Path) -> Child:
        """Carry out a configuration; a random model has no tokenizer that it could copy."""
        command = [self.directory / "bin" / "mergekit-yaml", config, out, "--no-copy-tokenizer"]
        return run_child(command, env=_ENVIRONMENT)


def install() -> Mergekit | None:
    """The mergekit in the cache directory, installed if it is not there; None if that fails."""
    directory = CACHE / "mergekit"
    try:
        if not (directory / "bin" / "mergekit-yaml").exists():
            note(f"installing mergekit into {directory} (once, some minutes)")
            shutil.rmtree(directory, ignore_errors=True)
            run_child([sys.executable, "-m", "venv", directory])
            pip = [directory / "bin" / "python", "-m", "pip", "install", "--quiet"]
            run_child([*pip, _TORCH], env=_ENVIRONMENT)
            run_child([*pip, _TORCH, "mergekit"], env=_ENVIRONMENT)
        return Mergekit(directory, _version(directory))
    except (ChildFailed, OSError) as error:
        note(f"mergekit cannot be installed, so nothing is compared with it: {error}")
        return None


def _version(directory: Path) -> str:
    ask = "import importlib.metadata as m; print(m.version('mergekit'), m.version('torch'))"
    found = run_child([directory / "bin" / "python", "-c", ask], env=_ENVIRONMENT)
    mergekit, torch = found.output.split()[-2:]
    return f"{mergekit} with torch {torch}"


def write_config(path: Path, model: Path, plan: str, depth: int) -> None:
    """The plan as a passthrough configuration over `model`."""
    shown = run_child(
        [sys.executable, "-m", "restack", "plan", str(depth), plan, "--mergekit", model],
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    path.write_text(shown.output + f"dtype: {_dtype(model)}\n")


def _dtype(model: Path) -> str:
    return str(json.loads((model / "config.json").read_text())["torch_dtype"])
