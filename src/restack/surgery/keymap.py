"""From a plan to names: which tensor of the old model becomes which tensor of the new one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from restack.plan import Mark, Plan, Slot


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the new model."""

    name: str
    source: str  # its name in the old model
    slot: Slot | None = None  # where it stands in the plan; None outside the stack
    rest: str = ""  # its name within the layer


def key_map(
    names: Iterable[str],
    prefix: str,
    plan: Plan,
    *,
    bound: tuple[str, ...] = (),
    past_end: str | None = None,
) -> Iterator[Entry]:
    """Entries for all tensors of the new model, in the order of the old one's.

    `bound` names tensors of the whole stack that its first layer stores: they stay there.
    `past_end` says what becomes of layers numbered beyond the depth: 'keep' or 'drop'.

    >>> for e in key_map(["emb", "h.0.w", "h.1.w"], "h.", Plan.of(2, [1, 1])):
    ...     print(e.name, "<-", e.source)
    emb <- emb
    h.0.w <- h.1.w
    h.1.w <- h.1.w
    """
    layers: dict[int, list[tuple[str, str]]] = {}
    order: list[str | None] = []
    for name in names:
        number, _, rest = name[len(prefix) :].partition(".")
        if not name.startswith(prefix) or not number.isdecimal():
            order.append(name)
        elif int(number) < plan.depth:
            if not layers:
                order.append(None)  # the whole stack stands where its first tensor stood
            layers.setdefault(int(number), []).append((rest, name))
        elif past_end == "keep":
            order.append(name)

    for outside in order:
        if outside is not None:
            yield Entry(_shifted(outside, prefix, plan), outside)
            continue
        for position, slot in enumerate(plan):
            for rest, source in layers.get(slot.source, ()):
                if rest not in bound:
                    yield Entry(f"{prefix}{position}.{rest}", source, slot, rest)
            if position == 0:
                for rest, source in layers.get(0, ()):
                    if rest in bound:
                        yield Entry(f"{prefix}0.{rest}", source, Slot(0, Mark.COPY), rest)


def _shifted(name: str, prefix: str, plan: Plan) -> str:
    """Layers beyond the depth (multi-token prediction) follow the last layer of the new stack."""
    number, dot, rest = name[len(prefix) :].partition(".")
    if not name.startswith(prefix) or not number.isdecimal():
        return name
    return f"{prefix}{int(number) - plan.depth + len(plan)}{dot}{rest}"
