"""The trie of plans: each distinct beginning of a plan once.

Plans that begin alike share the path, so that walking the trie applies no layer twice to the same
state. `walk` goes in the order that holds the fewest states at once; `walk_joined` goes layer by
layer and holds more, so that one call of a layer serves all the states that wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from restack.plan import Plan, Slot

State = TypeVar("State")
Key = Callable[[Slot], Slot | None]


@dataclass(slots=True, eq=False)
class Node:
    """A beginning of plans: which of them end here, and how the others go on."""

    ends: list[int] = field(default_factory=list)
    children: dict[Slot, Node] = field(default_factory=dict)
    states: int = 1
    """How many states are held at once to walk from here, at the least."""


@dataclass(frozen=True, slots=True)
class Trie:
    """All plans, from the empty beginning."""

    root: Node
    edges: int
    """Applications of layers that one batch takes."""

    @property
    def states(self) -> int:
        """How many states the walk holds at once."""
        return self.root.states


def build(plans: Iterable[Plan], key: Key = lambda slot: slot) -> Trie:
    """The trie of these plans.

    `key` gives what is applied for a slot; equal keys are the same layer, and None changes nothing.

    >>> build([Plan.parse(text, 4) for text in ("0-3", "0-2", "0,1,3")]).edges
    5
    """
    root = Node()
    made = [root]
    for number, plan in enumerate(plans):
        node = root
        for slot in plan:
            step = key(slot)
            if step is None:
                continue
            if step not in node.children:
                node.children[step] = Node()
                made.append(node.children[step])
            node = node.children[step]
        node.ends.append(number)
    for node in reversed(made):  # children were made after their parents
        _order(node)
    return Trie(root, len(made) - 1)


def _order(node: Node) -> None:
    """Put the child that needs most last: the state of its parent is then no longer held."""
    steps = sorted(node.children.items(), key=lambda item: item[1].states)
    node.children = dict(steps)
    if steps:
        held = [1 + child.states for _, child in steps[:-1]]
        node.states = max([*held, steps[-1][1].states, 1])


def walk(
    trie: Trie, start: State, apply: Callable[[Slot, State], State]
) -> Iterator[tuple[list[int], State]]:
    """Go through the trie depth first: yields the plans that end in a state, with that state."""
    waiting: list[tuple[Node, Slot | None, State]] = [(trie.root, None, start)]
    del start
    while waiting:
        node, step, state = waiting.pop()
        if step is not None:
            state = apply(step, state)
        if node.ends:
            yield node.ends, state
        waiting += [(child, slot, state) for slot, child in reversed(node.children.items())]
        del state


Edge = tuple[Node, Node]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The edges of a trie, together those that apply the same layer at the same time."""

    steps: tuple[tuple[Slot, tuple[Edge, ...]], ...]
    width: int
    """The most states that a layer is applied to at once."""
    states: int
    """How many states the walk holds at once, copies that join them among them."""


def schedule(trie: Trie) -> Schedule:
    """Of all the layers that are waited for the lowest comes first: others still lead up to it.

    >>> plans = [Plan.parse(text, 4) for text in ("0-3", "1-3", "0,2-3")]
    >>> [(slot.source, len(edges)) for slot, edges in schedule(build(plans)).steps]
    [(0, 1), (1, 2), (2, 3), (3, 3)]
    """
    waiting: dict[Slot, list[Edge]] = {}

    def wait(node: Node) -> None:
        for slot, child in node.children.items():
            waiting.setdefault(slot, []).append((node, child))

    wait(trie.root)
    steps, width, most = [], 1, 1
    while waiting:
        held = {parent for edges in waiting.values() for parent, _ in edges}
        edges = tuple(waiting.pop(slot := min(waiting)))
        steps.append((slot, edges))
        width = max(width, len(edges))
        most = max(most, len(held) + (2 * len(edges) if len(edges) > 1 else 0))
        for _, child in edges:
            wait(child)
    return Schedule(tuple(steps), width, most)


def walk_joined(
    trie: Trie,
    steps: Schedule,
    start: State,
    apply: Callable[[Slot, list[State]], list[State]],
) -> Iterator[tuple[list[int], State]]:
    """Go through the trie as scheduled: yields the plans that end in a state, with that state."""
    if trie.root.ends:
        yield trie.root.ends, start
    held, left = {trie.root: start}, {trie.root: len(trie.root.children)}
    del start
    for slot, edges in steps.steps:
        made = apply(slot, [held[parent] for parent, _ in edges])
        for parent, _ in edges:
            left[parent] -= 1
            if not left[parent]:
                del held[parent]
        for _, child in reversed(edges):
            state = made.pop()
            if child.ends:
                yield child.ends, state
            if child.children:
                held[child], left[child] = state, len(child.children)
            del state
