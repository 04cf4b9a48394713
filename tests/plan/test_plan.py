"""Plans as data: what they accept, and the laws of doing one after the other."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restack.errors import PlanError
from restack.plan import MAX_SLOTS, Mark, Plan, Slot


def fitted(plan: Plan, depth: int) -> Plan:
    """The plan over a stack of another depth, so that it can follow any plan."""
    return Plan(depth, tuple(replace(slot, source=slot.source % depth) for slot in plan))


def composed(*plans: Plan) -> Plan | None:
    try:
        result = plans[0]
        for plan in plans[1:]:
            result = result.then(plan)
        return result
    except PlanError:
        return None


@given(plan=st.from_type(Plan))
def test_identity_is_neutral(plan: Plan) -> None:
    assert plan.then(Plan.identity(len(plan))) == plan
    assert Plan.identity(plan.depth).then(plan) == plan


@given(p=st.from_type(Plan), q=st.from_type(Plan), r=st.from_type(Plan))
def test_composition_is_associative(p: Plan, q: Plan, r: Plan) -> None:
    q = fitted(q, len(p))
    r = fitted(r, len(q))
    pq, qr = composed(p, q), composed(q, r)
    left = pq and composed(pq, r)
    right = qr and composed(p, qr)
    if left is not None and right is not None:
        assert left == right


@given(p=st.from_type(Plan), q=st.from_type(Plan))
def test_composition_is_doing_one_after_the_other(p: Plan, q: Plan) -> None:
    """Carried out on a list of weights: the same values stand in the same places."""
    q = fitted(q, len(p))
    both = composed(p, q)
    if both is not None:
        stack = [("layer", i) for i in range(p.depth)]
        assert carried_out(both, stack) == carried_out(q, carried_out(p, stack))


def carried_out(plan: Plan, stack: list[tuple]) -> list[tuple]:
    """A stack of (weights, source layer) with weights as an executor would make them."""
    result = []
    for slot in plan:
        what, source = stack[slot.source]
        if slot.mark is Mark.FRESH:
            what = f"fresh {slot.draw}"
        elif slot.mark is Mark.NOOP:
            what = what if what.endswith("zeroed") else f"{what} zeroed"
        result.append((what, source))
    return result


@given(order=st.permutations(range(9)))
def test_a_reordering_and_its_inverse_cancel(order: list[int]) -> None:
    plan = Plan.of(9, order)
    assert plan.then(plan.inverse()).is_identity
    assert plan.inverse().then(plan).is_identity
    assert plan.inverse().inverse() == plan


@pytest.mark.parametrize("text", ["0-2", "0-3,0", "0-2,3@fresh", "0-2,3@tied", "0,0,1,2"])
def test_only_a_reordering_has_an_inverse(text: str) -> None:
    with pytest.raises(PlanError, match="only a reordering has an inverse"):
        Plan.parse(text, 4).inverse()


@pytest.mark.parametrize(
    ("below", "above", "together"),
    [
        ("2", "0", "2"),
        ("2@noop", "0", "2@noop"),
        ("2@tied", "0", "2@tied"),
        ("2@fresh3", "0", "2@fresh3"),
        ("2", "0@noop", "2@noop"),
        ("2@noop", "0@noop", "2@noop"),
        ("2@tied", "0@noop", "2@noop"),
        ("2", "0@tied", "2@tied"),
        ("2@tied", "0@tied", "2@tied"),
        ("2", "0@fresh2", "2@fresh2"),
        ("2@noop", "0@fresh2", "2@fresh2"),
        ("2@fresh3", "0@fresh2", "2@fresh2"),
    ],
)
def test_marks_compose(below: str, above: str, together: str) -> None:
    assert str(Plan.parse(below, 3).then(Plan.parse(above, 1))) == together


@pytest.mark.parametrize(
    ("below", "above"), [("2@fresh", "0@noop"), ("2@fresh", "0@tied"), ("2@noop", "0@tied")]
)
def test_marks_that_one_slot_cannot_hold_are_refused(below: str, above: str) -> None:
    with pytest.raises(PlanError, match="slot 0 would be @") as caught:
        Plan.parse(below, 3).then(Plan.parse(above, 1))
    assert "two edits" in str(caught.value.hint)


def test_plans_of_unlike_depth_do_not_compose() -> None:
    with pytest.raises(PlanError, match="leaves 3 layers, the second is for 4"):
        Plan.of(6, [0, 1, 2]) >> Plan.identity(4)


def test_what_a_plan_says_about_itself() -> None:
    plan = Plan.parse("0,0,3@fresh,2@noop", 6)
    assert plan.sources == (0, 0, 3, 2)
    assert plan.gone == (1, 4, 5)
    assert plan.marks == {Mark.COPY, Mark.FRESH, Mark.NOOP}
    assert plan.has_fresh
    assert not plan.is_identity
    assert [slot.source for slot in plan] == [plan[i].source for i in range(len(plan))]
    assert not Plan.identity(3).has_fresh
    assert not Plan.of(3, [0, 1]).is_identity


@given(plan=st.from_type(Plan))
def test_plans_are_values(plan: Plan) -> None:
    assert pickle.loads(pickle.dumps(plan)) == copy.deepcopy(plan) == plan
    assert hash(copy.deepcopy(plan)) == hash(plan)
    assert eval(repr(plan), {"Plan": Plan}) == plan


def test_equal_slots_at_another_depth_are_another_plan() -> None:
    assert Plan.of(3, [0]) != Plan.of(4, [0])
    assert len({Plan.of(3, [0]), Plan.of(4, [0]), Plan.of(3, [0])}) == 2


def test_slots_are_sorted_by_source() -> None:
    assert sorted([Slot(2), Slot(0, Mark.NOOP), Slot(1)])[0].source == 0


def test_numpy_integers_become_plain_ones() -> None:
    plan = Plan.of(np.int64(3), np.array([0, 2]))
    assert plan == Plan.of(3, [0, 2])
    assert type(plan.depth) is type(plan[0].source) is int


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Plan(3, ()), "the plan is empty"),
        (lambda: Plan.of(3, [0, 3]), "slot 1 asks for layer 3, but the layers are 0..2"),
        (lambda: Plan.of(3, [-1]), "layers count from 0"),
        (lambda: Plan.of(3, [0.5]), "0.5 is not a layer number"),
        (lambda: Plan.of(3, [True]), "True is not a layer number"),
        (lambda: Plan.of(0, [0]), "a stack of 0 layers"),
        (lambda: Plan.identity(10**12), "a stack of 1000000000000 layers"),
        (lambda: Plan(1, (Slot(0),) * (MAX_SLOTS + 1)), "10001 slots"),
        (lambda: Slot(0, "fesh"), "unknown mark 'fesh'"),
        (lambda: Slot(0, Mark.FRESH, 0), "draw 0"),
        (lambda: Slot(0, Mark.NOOP, 2), "only fresh weights have a draw"),
    ],
)
def test_what_cannot_be_a_plan_is_refused(make, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        make()
    assert message in caught.value.message


def test_marks_may_be_given_by_name() -> None:
    assert Slot(0, "fresh").mark is Mark.FRESH
