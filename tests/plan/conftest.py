"""How hypothesis draws slots and plans."""

from __future__ import annotations

from hypothesis import strategies as st

from restack.plan import Mark, Plan, Slot

MAX_DEPTH = 14


@st.composite
def slots(draw: st.DrawFn, depth: int = MAX_DEPTH) -> Slot:
    # Plain copies prevail, as in life; else nearly no two plans could be composed.
    mark = draw(st.sampled_from([*[Mark.COPY] * 4, *Mark]))
    number = draw(st.integers(1, 3)) if mark is Mark.FRESH else 1
    return Slot(draw(st.integers(0, depth - 1)), mark, number)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    depth = draw(st.integers(1, MAX_DEPTH))
    stretches = draw(st.lists(_stretches(depth), min_size=1, max_size=6))
    return Plan(depth, tuple(slot for stretch in stretches for slot in stretch))


@st.composite
def _stretches(draw: st.DrawFn, depth: int) -> list[Slot]:
    """Runs, repeats and single slots: the shapes that the text form abbreviates."""
    slot = draw(slots(depth))
    length = draw(st.integers(1, 4))
    step = draw(st.sampled_from([-1, 0, 0, 1, 1]))
    times = draw(st.sampled_from([1, 1, 2]))
    layers = (slot.source + step * i for i in range(length))
    return [
        Slot(layer, slot.mark, slot.draw)
        for layer in layers
        if 0 <= layer < depth
        for _ in range(times)
    ]


st.register_type_strategy(Slot, slots())
st.register_type_strategy(Plan, plans())
