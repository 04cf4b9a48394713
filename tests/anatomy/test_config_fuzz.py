"""A quick round of tests/fuzz_config.py, the same configs each time."""

from __future__ import annotations

from tests import fuzz_config


def test_mutated_configs_are_refused_or_carried_out_right() -> None:
    tally = fuzz_config.fuzz(400)
    assert tally.refused > 100
    assert tally.made > 80
    assert {"StackError", "PlanError"} & set(tally.kinds)
