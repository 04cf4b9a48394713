"""A quick round of tests/fuzz_checkpoint.py, the same checkpoints each time."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings


@pytest.fixture(scope="module")
def fuzzer() -> ModuleType:
    path = Path(__file__).parents[1] / "fuzz_checkpoint.py"
    spec = importlib.util.spec_from_file_location("fuzz_checkpoint", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def test_mutated_checkpoints_are_refused_or_read_right(fuzzer: ModuleType) -> None:
    tally = fuzzer.fuzz(300)
    assert tally.refused > 50
    assert tally.read > 20


def test_sound_checkpoints_are_read(fuzzer: ModuleType) -> None:
    tally = fuzzer.Tally()

    @settings(max_examples=50, derandomize=True, database=None, deadline=None)
    @given(fuzzer.valid())
    def one(files: dict[str, bytes]) -> None:
        fuzzer.check(files, tally)

    one()
    assert tally.read >= 50
    assert not tally.refused
