"""A quick round of tests/kill_write.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def test_killed_runs_leave_nothing_wrong() -> None:
    path = Path(__file__).parents[1] / "kill_write.py"
    spec = importlib.util.spec_from_file_location("kill_write", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    outcomes = module.kill(8)  # it asserts on each
    assert sum(outcomes.values()) == 8
