"""The trie of plans: each distinct beginning of a plan once.

Plans that begin alike share the path, so that walking the trie applies no layer twice to the same
state. The walk is in the order that holds the fewest states at once.
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
