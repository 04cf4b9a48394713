"""The trie of plans: every beginning once, few states held."""

from __future__ import annotations

import math
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from restack.observe import trie
from restack.plan import Mark, Plan, Slot

DEPTH = 4
SLOTS = st.builds(Slot, st.integers(0, DEPTH - 1), st.sampled_from([Mark.COPY, Mark.NOOP]))
PLANS = st.lists(
    st.lists(SLOTS, min_size=1, max_size=7).map(lambda slots: Plan(DEPTH, tuple(slots))),
    min_size=1,
    max_size=12,
)


def skip_noops(slot: Slot) -> Slot | None:
    return None if slot.mark is Mark.NOOP else slot


class Path:
    """A state that remembers what was applied, and how many of its kind are alive."""

    alive = 0
    most = 0

    def __init__(self, slots: tuple[Slot, ...] = ()) -> None:
        self.slots = slots
        Path.alive += 1
        Path.most = max(Path.most, Path.alive)

    def __del__(self) -> None:
        Path.alive -= 1


@given(PLANS)
def test_each_plan_ends_in_the_state_that_it_describes(plans: list[Plan]) -> None:
    steps = trie.build(plans, skip_noops)
    applied: list[tuple[Slot, ...]] = []

    def apply(slot: Slot, path: tuple[Slot, ...]) -> tuple[Slot, ...]:
        applied.append((*path, slot))
        return applied[-1]

    ends = {number: path for found, path in trie.walk(steps, (), apply) for number in found}
    wanted = [tuple(slot for slot in plan if skip_noops(slot)) for plan in plans]
    assert ends == dict(enumerate(wanted))
    beginnings = {path[:n] for path in wanted for n in range(1, len(path) + 1)}
    assert len(applied) == steps.edges == len(beginnings)
    assert set(applied) == beginnings


@given(PLANS)
def test_joined_it_ends_in_the_same_states(plans: list[Plan]) -> None:
    steps = trie.build(plans, skip_noops)
    order = trie.schedule(steps)
    applied: list[tuple[Slot, ...]] = []
    most = 0

    def apply(slot: Slot, paths: list[tuple[Slot, ...]]) -> list[tuple[Slot, ...]]:
        nonlocal most
        most = max(most, len(paths))
        applied.extend(made := [(*path, slot) for path in paths])
        return made

    ends = {n: path for found, path in trie.walk_joined(steps, order, (), apply) for n in found}
    wanted = [tuple(slot for slot in plan if skip_noops(slot)) for plan in plans]
    assert ends == dict(enumerate(wanted))
    assert len(applied) == len(set(applied)) == steps.edges
    assert most == order.width or not applied


@given(PLANS)
def test_joined_it_holds_no_more_states_than_it_says(plans: list[Plan]) -> None:
    steps = trie.build(plans, skip_noops)
    order = trie.schedule(steps)
    Path.alive = Path.most = 0

    def apply(slot: Slot, paths: list[Path]) -> list[Path]:
        copies = [Path(path.slots) for path in paths] if len(paths) > 1 else paths
        return [Path((*path.slots, slot)) for path in copies]

    for _, path in trie.walk_joined(steps, order, Path(), apply):
        del path
    assert Path.most <= order.states + 1


@given(PLANS)
def test_no_more_states_are_held_than_it_says(plans: list[Plan]) -> None:
    steps = trie.build(plans, skip_noops)
    Path.alive = Path.most = 0
    for _, path in trie.walk(steps, Path(), lambda slot, path: Path((*path.slots, slot))):
        del path
    # while a layer is applied, what it makes is one more
    assert Path.most <= steps.states + 1
    assert steps.states <= math.log2(len(plans)) + 1


def test_many_plans_take_few_states() -> None:
    plans = [Plan.of(12, kept) for n in range(1, 13) for kept in combinations(range(12), n)]
    steps = trie.build(plans)
    assert len(plans) == steps.edges == 4095
    assert steps.states <= 12


def test_top_drops_share_one_path() -> None:
    steps = trie.build(Plan.parse(f"0-{last}", 12) for last in range(12))
    assert (steps.edges, steps.states) == (12, 1)


def test_leaving_one_out() -> None:
    plans = [Plan.parse(f"drop:{layer}", 12) for layer in range(12)]
    steps = trie.build([Plan.identity(12), *plans])
    assert steps.edges == 12 + sum(range(12))
    assert steps.states == 2


def test_leaving_one_out_joined_takes_a_call_a_layer() -> None:
    plans = [Plan.identity(12), *(Plan.parse(f"drop:{layer}", 12) for layer in range(12))]
    order = trie.schedule(trie.build(plans))
    assert [slot.source for slot, _ in order.steps] == list(range(12))
    assert [len(edges) for _, edges in order.steps] == list(range(1, 13))
    assert order.width == 12


def test_plans_as_long_as_can_be() -> None:
    steps = trie.build([Plan.of(1, [0] * 10_000)])
    [(ends, count)] = trie.walk(steps, 0, lambda slot, count: count + 1)
    assert (ends, count) == ([0], 10_000)
