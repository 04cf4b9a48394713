"""Fresh layers by the code of their family: how it starts and how it stores them. Needs torch."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn
from transformers import PreTrainedModel

from restack.anatomy import live
from restack.anatomy.anatomy import Shape
from restack.anatomy.config import Config
from restack.anatomy.conversion import as_on_disk
from restack.anatomy.facts import Facts, canonical
from restack.errors import StackError
from restack.plan import Slot
from restack.surgery import fresh

State = Mapping[str, torch.Tensor]
_ANOTHER = "choose another initialiser, such as --init standard"


def family_layer(base: PreTrainedModel, path: str, seed: int, slot: Slot) -> State:
    """One fresh layer of the stack at `path`, in float32, by names within the layer.

    `base` is a model without storage. A layer of it is filled by the family's `_init_weights`,
    under a seed that depends on the source layer and the draw alone.
    """
    owners = {name: m for name, m in base.named_modules() if isinstance(m, PreTrainedModel)}
    owner = owners[live.owner_of(path, owners)]
    layers: nn.ModuleList = base.get_submodule(path)  # type: ignore[assignment]
    unbuilt = layers[slot.source]
    layer = copy.deepcopy(unbuilt).to_empty(device="cpu").float()
    text = f"restack/{seed}/{slot.source}/{slot.draw}".encode()
    layers[slot.source] = layer  # where the rules of the model that owns the layers look for it
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), live.quiet():
            key = hashlib.blake2b(text, digest_size=7).digest()
            torch.manual_seed(int.from_bytes(key, "little"))
            for tensor in layer.state_dict().values():
                if tensor.is_floating_point():
                    tensor.fill_(float("nan"))
            # parts before the whole, as transformers does it: ImageGPT scales its output
            # projections last, in the rule for the whole model
            for module in (*reversed(list(layer.modules())), owner):
                owner._init_weights(module)
    finally:
        layers[slot.source] = unbuilt
    state: State = layer.state_dict()
    for rest, tensor in state.items():
        if tensor.is_floating_point() and bool(torch.isnan(tensor).any()):
            raise StackError(
                f"the initialiser of {type(owner).__name__} leaves `{rest}` unset", hint=_ANOTHER
            )
    return state


def drawn_layer(
    layer: nn.Module, rules: Callable[[str, int], fresh.Recipe], seed: int, slot: Slot
) -> State:
    """The same by a named initialiser; what that keeps is not a number."""
    state = {}
    for rest, tensor in layer.state_dict().items():
        what = rules(rest, tensor.dim())
        if what == "keep" or not tensor.is_floating_point():
            state[rest] = torch.full(tensor.shape, float("nan"), device="cpu")
        else:
            state[rest] = drawn(what, tensor.numel(), seed, slot, rest).reshape(tensor.shape)
    return state


def drawn(what: fresh.Recipe, count: int, seed: int, slot: Slot, rest: str) -> torch.Tensor:
    """The numbers of one fresh tensor, in float32."""
    chunks = b"".join(fresh.encoded(what, "F32", count, seed, slot, rest))
    return torch.frombuffer(bytearray(chunks), dtype=torch.float32)


class StoredLayers:
    """The fresh layers of a checkpoint, under the names and in the shapes in which it stores them.

    Layers are built as the model has them and taken back through the conversion that the model's
    checkpoints go through when they are loaded. Only the last one made is held in memory.
    """

    def __init__(self, config: Config, facts: Facts, init: str, seed: int) -> None:
        self.facts, self.seed, self.type = facts, seed, config.get("model_type")
        self.rules = None if init == fresh.FAMILY else fresh.rules(init, config, facts)
        try:
            self.base = live.build_meta(live.config_from(config))
        except Exception as error:  # a type that transformers does not know, a config it refuses
            reason = " ".join(str(error).split())[:160]
            raise StackError(
                f"the class of model type {self.type!r}, which would start its layers anew, cannot "
                f"be built: {reason}",
                hint=_ANOTHER,
            ) from error
        stacks = live.find_stacks(self.base)
        # of a composed model, facts may be those of its inner model
        inner = [path for path in stacks if path.endswith(f".{facts.path}")]
        if facts.path not in stacks and len(inner) != 1:
            raise StackError(
                f"model type {self.type!r} builds no stack at `{facts.path}`", hint=_ANOTHER
            )
        self.path = facts.path if facts.path in stacks else inner[0]
        self._names: dict[int, set[str]] = {}
        self._last: tuple[Slot, dict[str, torch.Tensor]] | None = None

    def check(self, slot: Slot, layer: Mapping[str, Shape]) -> None:
        """Refuse a stored layer that lacks what the model's class stores, or has it otherwise."""
        if slot.source in self._names:
            return
        unbuilt = self._unbuilt(slot).state_dict()
        if self.rules:
            for rest, tensor in unbuilt.items():
                self.rules(rest, tensor.dim())  # refuses what it cannot make
        given = {canonical(rest): shape.shape for rest, shape in layer.items()}
        expected = self._stored(slot, unbuilt)
        for rest, tensor in expected.items():
            if given.get(rest) != tensor.shape and rest not in self.facts.bound:
                for stored, shape in layer.items():  # packed by a quantiser, which says more
                    fresh.check_dtype(stored, shape.dtype, slot)
                found = f"has it as {list(given[rest])}" if rest in given else "lacks it"
                raise StackError(
                    f"models of type {self.type!r} store `{rest}` as {list(tensor.shape)}; layer "
                    f"{slot.source} of this checkpoint {found}, so fresh weights would not fit",
                    hint="load the model, call restack(model, plan) and save_pretrained",
                )
        self._names[slot.source] = set(expected)

    def makes(self, slot: Slot, rest: str) -> bool:
        """Whether this is a tensor of the model; old checkpoints also store masks."""
        return canonical(rest) in self._names[slot.source]

    def made(self, slot: Slot, rest: str, dtype: str) -> Iterator[bytes] | None:
        """The bytes of one tensor; None where the initialiser keeps it as it is."""
        if self._last is None or self._last[0] != slot:
            self._last = None  # two at a time would be one too many
            self._last = slot, self._stored(slot, self._make(slot))
        tensor = self._last[1][canonical(rest)]
        if bool(torch.isnan(tensor).any()):
            return None
        return iter([fresh.ENCODE[dtype](tensor.contiguous().numpy().ravel())])

    def _make(self, slot: Slot) -> State:
        if self.rules is None:
            return family_layer(self.base, self.path, self.seed, slot)
        return drawn_layer(self._unbuilt(slot), self.rules, self.seed, slot)

    def _unbuilt(self, slot: Slot) -> nn.Module:
        return self.base.get_submodule(f"{self.path}.{slot.source}")

    def _stored(self, slot: Slot, layer: State) -> dict[str, torch.Tensor]:
        number = f"{slot.source}."
        state = {f"{self.path}.{number}{rest}": tensor for rest, tensor in layer.items()}
        starts = tuple(prefix + number for prefix in (*self.facts.prefixes, f"{self.path}."))
        found = {}
        for name, tensor in as_on_disk(self.base, state).items():
            known = next((start for start in starts if name.startswith(start)), None)
            rest = name[len(known) :] if known else name.partition(f".{number}")[2]
            found[canonical(rest)] = tensor
        return found
