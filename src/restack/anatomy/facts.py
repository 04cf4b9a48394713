"""What is known of one stack of one model type: the row of the atlas."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from typing import Any

_MAPPINGS = {"aliases", "by_depth", "defaults", "fills"}  # stored as JSON objects


@dataclass(frozen=True, slots=True)
class Facts:
    """Where a stack lives in a model, in its checkpoints and in its config.

    All config fields are dotted paths (`text_config.num_hidden_layers`), all tensor names are
    suffixes behind the layer number (`attention.output.dense.weight`).
    """

    path: str  # module path in the base model: "encoder.layer"
    prefixes: tuple[str, ...]  # what stands before the layer number on disk: "encoder.layer."
    counts: tuple[str, ...]  # config fields that hold the depth
    lists: tuple[str, ...] = ()  # config lists with one entry a layer
    defaults: tuple[tuple[str, Any], ...] = ()  # of fields that rules read and configs may omit
    aliases: tuple[tuple[str, str], ...] = ()  # other names of these fields, which win over them
    follows: str | None = None  # the field that gives the depth where the config omits it (T5)
    derived: tuple[str, ...] = ()  # of `defaults`, lists that the class makes for the depth at hand
    shared: str | None = None  # ALBERT: the field that counts the groups of shared weights
    edges: bool = False  # the first and last layer differ from the rest by position
    live: bool = False  # only building the model tells whether a plan fits
    bound: tuple[str, ...] = ()  # tensors of the whole stack that are stored in its first layer
    by_depth: tuple[tuple[str, int], ...] = ()  # tensors outside with a part a layer, on an axis
    fills: tuple[tuple[str, str], ...] = ()  # how a fresh tensor starts where names do not tell
    outputs: tuple[str, ...] = ()  # zeroing these makes a layer the identity; empty: none do
    renamed: bool = False  # checkpoints name or pack the tensors of a layer otherwise than models
    stored_outputs: tuple[str, ...] = ()  # `outputs` as checkpoints name them, where renamed
    verified: bool = False  # rebuilt along every trial plan when the atlas was made

    def zeroed(self, name: str, *, on_disk: bool) -> bool:
        """Whether a no-op copy has zeros in this tensor of a layer."""
        if on_disk and self.renamed:
            return re.sub(r"\.\d+\.", ".*.", name) in self.stored_outputs
        return name in self.outputs

    def axis_of(self, name: str) -> int | None:
        """The axis on which a tensor outside the stack has one part for each layer."""
        for known, axis in self.by_depth:
            if name == known or name.endswith(f".{known}"):
                return axis
        return None

    def to_json(self) -> dict[str, Any]:
        """Only what differs from the defaults, so that the atlas stays readable."""
        default = {f.name: f.default for f in fields(self)}
        row = {k: v for k, v in asdict(self).items() if v != default[k]}
        return {k: dict(v) if k in _MAPPINGS else v for k, v in row.items()}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Facts:
        """The inverse of `to_json`."""
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
        for name in _MAPPINGS & values.keys():
            values[name] = tuple(sorted(row[name].items()))
        return cls(**values)


def canonical(name: str) -> str:
    """The name without the TensorFlow spelling of norms that old checkpoints keep.

    >>> canonical("attention.output.LayerNorm.gamma")
    'attention.output.LayerNorm.weight'
    """
    owner, _, leaf = name.rpartition(".")
    return f"{owner}.{_TENSORFLOW[leaf]}" if leaf in _TENSORFLOW else name


_TENSORFLOW = {"gamma": "weight", "beta": "bias"}


def default_fill(name: str, dims: int) -> str:
    """How a fresh tensor starts, by its name: scales at one, biases at zero, matrices at random."""
    if name.rpartition(".")[2].endswith("bias"):
        return "zeros"
    return "random" if dims > 1 else "ones"
