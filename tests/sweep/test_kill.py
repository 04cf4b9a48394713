"""A little of the long proof in tests/kill_sweep.py."""

from __future__ import annotations

import pytest

from tests.kill_sweep import kill


@pytest.mark.slow
def test_killed_at_random_each_trial_is_finished_once_and_the_same() -> None:
    assert sum(kill(6, 16, seed=1).values()) == 6
