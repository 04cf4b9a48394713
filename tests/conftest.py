"""What every test shares: where the real weights are, and silence from dependencies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no clock", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("no clock")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The directory with real models and data; tests that need it skip where it is not given."""
    where = os.environ.get("RESTACK_SHARED")
    if not where:
        pytest.skip("RESTACK_SHARED is not set: no real weights and data to test on")
    return Path(where)
