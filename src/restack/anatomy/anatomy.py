"""The anatomy of one model or checkpoint: its stacks, layer by layer."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from restack.anatomy import atlas
from restack.anatomy.config import Config, get, lists_of, rules_applying, spelled_out
from restack.anatomy.facts import Facts
from restack.errors import StackError


class Shape(NamedTuple):
    """What a header says of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def size(self) -> int:
        """Number of elements as stored; packed formats hold several parameters in one."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Stack:
    """A list of layers as it stands in one model or checkpoint."""

    facts: Facts
    prefix: str  # what stands before the layer number in this model's tensor names
    depth: int
    layers: tuple[Mapping[str, Shape], ...]  # per stored layer: name behind the number -> shape
    past_end: tuple[str, ...] = ()  # names numbered beyond the depth (multi-token prediction)

    @property
    def path(self) -> str:
        """The name by which the user picks this stack."""
        return self.prefix.rstrip(".")

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """Layers with equal names and shapes have equal numbers, the first kind being 0."""
        seen: dict[frozenset[Any], int] = {}
        numbers = []
        for layer in self.layers:
            look = frozenset(
                (name, tensor.shape)
                for name, tensor in layer.items()
                if name not in self.facts.bound
            )
            numbers.append(seen.setdefault(look, len(seen)))
        return tuple(numbers)

    def parameters(self, layer: int) -> int:
        """Stored elements of one layer."""
        return sum(tensor.size for tensor in self.layers[layer].values())

    def nbytes(self, layer: int) -> int:
        """Stored bytes of one layer."""
        return sum(tensor.nbytes for tensor in self.layers[layer].values())


@dataclass(frozen=True)
class Anatomy:
    """All stacks of a model, and what lies outside them."""

    location: str
    config: Config
    stacks: tuple[Stack, ...]
    tensors: Mapping[str, Shape]
    tied: Mapping[str, str] = field(default_factory=dict)  # tensors that share storage with others

    @property
    def model_type(self) -> str:
        """The config's `model_type`."""
        return str(self.config.get("model_type"))

    def pick(self, which: str | None = None) -> Stack:
        """The only stack, or the one that `which` names by its path or a part of it."""
        if not self.stacks:
            raise no_stack(self.location, self.config, self.tensors)
        if which is None and len(self.stacks) == 1:
            return self.stacks[0]
        found = [s for s in self.stacks if which in (s.path, s.facts.path)]
        if not found and which:
            found = [s for s in self.stacks if which in s.path]
        if len(found) == 1:
            return found[0]
        choices = ", ".join(f"{s.path} ({s.depth} layers)" for s in self.stacks)
        if which is None:
            problem = f"{self.location} has {len(self.stacks)} stacks: {choices}"
        else:
            several = "several stacks fit" if found else "no stack fits"
            problem = f"{several} `{which}` in {self.location}, which has {choices}"
        raise StackError(problem, hint=f"name one, for example: --stack {self.stacks[0].path}")


def dissect(location: str, config: Config, tensors: Mapping[str, Shape]) -> Anatomy:
    """Find the stacks of a checkpoint by the atlas; unknown types have none."""
    found = Anatomy(location, config, (), tensors, atlas.tied(config))
    return with_stacks(found, atlas.for_config(config))


def with_stacks(found: Anatomy, known: Sequence[Facts]) -> Anatomy:
    """The anatomy with those of the known stacks that are there, and a config that spells out
    their fields."""
    config = spelled_out(found.config, known)
    stacks = (locate(facts, config, found.tensors, found.location) for facts in known)
    return replace(found, config=config, stacks=tuple(stack for stack in stacks if stack))


def locate(
    facts: Facts, config: Config, tensors: Mapping[str, Shape], location: str
) -> Stack | None:
    """Where the stack of these facts lies among the tensors; None if it is not there."""
    depth = get(config, facts.counts[0])
    depth = dict(facts.defaults).get(facts.counts[0].rpartition(".")[2]) if depth is None else depth
    if type(depth) is not int or depth < 1:
        raise StackError(
            f"{location}: config field `{facts.counts[0]}` is {depth!r}, not a number of layers"
        )
    numbered = numbered_prefixes(tensors)
    stored = get(config, facts.shared) if facts.shared else depth
    if type(stored) is not int or stored < 1:
        raise StackError(
            f"{location}: config field `{facts.shared}` is {stored!r}, not a number of groups"
        )
    fitting = [p for p in facts.prefixes if p in numbered]
    if not fitting:  # an older or a composed layout: the end of the name must do
        tail = "." + ".".join(facts.path.split(".")[-2:]) + "."
        fitting = [p for p in numbered if f".{p}".endswith(tail) and len(numbered[p]) >= stored]
        fitting = fitting if len(fitting) == 1 else []
    if not fitting:
        return None
    prefix = max(fitting, key=lambda p: len(numbered[p]))
    # one by one, for a damaged config may speak of any number of layers
    missing = next((i for i in range(stored) if i not in numbered[prefix]), None)
    if missing is not None:
        raise StackError(
            f"{location}: `{facts.counts[0]}` says {depth} layers, but no tensor is named "
            f"`{prefix}{missing}.`",
            hint="the checkpoint is incomplete, or its config belongs to another model",
        )
    layers: list[dict[str, Shape]] = [{} for _ in range(stored)]
    past_end = []
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            number, _, rest = name[len(prefix) :].partition(".")
            if not number.isdecimal():
                continue
            if int(number) < stored:
                layers[int(number)][rest] = tensor
            else:
                past_end.append(name)
    return Stack(facts, prefix, depth, tuple(layers), tuple(past_end))


def numbered_prefixes(names: Iterable[str]) -> dict[str, set[int]]:
    """What stands before a number in tensor names, with the numbers seen there."""
    found: dict[str, set[int]] = {}
    for name in names:
        for match in re.finditer(r"(?<=\.)(\d{1,6})(?=\.)", name):
            found.setdefault(name[: match.start()], set()).add(int(match.group()))
        head = re.match(r"(\d{1,6})\.", name)
        if head:
            found.setdefault("", set()).add(int(head.group(1)))
    return found


def no_stack(location: str, config: Mapping[str, Any], names: Iterable[str]) -> StackError:
    """The error for a model whose layers were not found; names what might be the layers."""
    numbers = numbered_prefixes(names)
    likely = sorted((p for p in numbers if len(numbers[p]) > 1), key=lambda p: (p.count("."), p))
    listed = ", ".join(f"{p.rstrip('.')} ({len(numbers[p])})" for p in likely[:6]) or "none"
    return StackError(
        f"no stack of layers is known for model type {config.get('model_type')!r} ({location}); "
        f"numbered modules in it: {listed}",
        hint="name the stack with --stack PATH if one of these is it",
    )


def summary(stack: Stack, config: Config) -> dict[str, Any]:
    """A stack as plain data, for people and for `--json`."""
    kinds = Counter(stack.kinds)
    return {
        "path": stack.path,
        "depth": stack.depth,
        "key_pattern": f"{stack.prefix}{{layer}}.",
        "count_fields": list(stack.facts.counts),
        "per_layer_lists": lists_of(config, stack.facts, stack.depth),
        "index_rules": rules_applying(config, stack.facts),
        "shared_groups": len(stack.layers) if stack.facts.shared else None,
        "stored_in_first_layer": list(stack.facts.bound),
        "depends_on_depth": [name for name, _ in stack.facts.by_depth],
        "past_the_end": list(stack.past_end),
        "interchangeable": len(kinds) == 1,
        "kinds": list(stack.kinds),
        "parameters": [stack.parameters(i) for i in range(len(stack.layers))],
        "bytes": [stack.nbytes(i) for i in range(len(stack.layers))],
        "verified": stack.facts.verified,
    }
