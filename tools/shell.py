"""Run `restack` commands as a user types them, and take down what they print."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

# `python -m restack` would call itself that in its help, and `restack` need not be on the PATH.
_START = "import sys; sys.argv[0] = 'restack'; from restack.cli import main; main()"
_SOURCE = str(Path(__file__).parents[1] / "src")


class Ran(NamedTuple):
    """What a command printed, errors behind the rest, and its exit code."""

    output: str
    code: int


def run(command: str, directory: Path) -> Ran:
    """Run one `restack ...` command line in a directory, with the Python that runs this."""
    words = shlex.split(command)
    if words[0] != "restack":
        raise ValueError(f"only restack is run from here, not {command!r}")
    environment = {
        **os.environ,
        # lines as wide, and without colours, wherever it is run
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [_SOURCE, os.environ.get("PYTHONPATH")])),
    }
    done = subprocess.run(
        [sys.executable, "-c", _START, *words[1:]],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if "Traceback" in done.stderr:
        raise RuntimeError(f"{command}\n{done.stderr}")
    lines = f"{done.stdout}{done.stderr.strip()}".splitlines()
    return Ran("\n".join(line.rstrip() for line in lines).strip("\n"), done.returncode)
