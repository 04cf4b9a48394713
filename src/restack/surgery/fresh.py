"""Fresh weights, the same in memory and on disk.

A tensor is a function of the seed, the source layer, the draw and its name, never of its position,
so that copying a fresh slot copies its weights. Numbers come from numpy's Philox; torch is needed
only for a family's own initialiser.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from restack.anatomy.config import Config, get, section_path
from restack.anatomy.facts import Facts, default_fill
from restack.errors import PlanError, StackError
from restack.plan import Slot

if TYPE_CHECKING:
    import numpy as np

CHUNK = 1 << 18  # numbers drawn at a time: part of what defines the stream

FAMILY = "family"  # the family's own rule, which is code (restack.surgery.family)
DEFAULT = FAMILY

# What goes into a tensor: `ones`, `zeros`, `keep`, or spread and cut of a truncated normal.
Recipe = str | tuple[float, float]


@dataclass(frozen=True, slots=True)
class Init:
    """How fresh tensors start.

    `spread` and `cut` are the standard deviation and the bounds of a truncated normal; None takes
    the spread from the config (`initializer_range`) and cuts at twice that.
    """

    spread: float | None = None
    cut: float | None = None
    biases: str = "zeros"  # "zeros", "random" or "keep"
    norms: str = "reset"  # "reset" or "keep"


INITS: dict[str, Init] = {
    # matrices as BERT starts them, biases zero, norms neutral
    "standard": Init(),
    # Tamkin et al., appendix B: everything but the norms
    "paper": Init(spread=0.02, cut=0.04, biases="random"),
    # the same with the norms kept (their appendix G)
    "paper-keep-norms": Init(spread=0.02, cut=0.04, biases="random", norms="keep"),
    # their released code: bounds of +-0.04 standard deviations, biases untouched
    "released": Init(spread=0.02, cut=0.02 * 0.04, biases="keep"),
}


def choose(name: str) -> Init:
    """The initialiser of this name."""
    if name not in INITS:
        raise PlanError(
            f"no initialiser is called {name!r}",
            hint=f"choose one of {', '.join((FAMILY, *INITS))}",
        )
    return INITS[name]


def spread_of(section: Mapping[str, Any]) -> float:
    """The standard deviation that a config section gives for its own initialisation."""
    for field in ("initializer_range", "init_std"):
        value = section.get(field)
        if isinstance(value, int | float) and 0 < value < 1:
            return float(value)
    return 0.02


def rules(name: str, config: Config, facts: Facts) -> Callable[[str, int], Recipe]:
    """What the initialiser of this name makes of a tensor, by its name and dimensions."""
    init, fills, where = choose(name), dict(facts.fills), section_path(facts)
    spread = spread_of((get(config, where) if where else config) or {})
    return lambda rest, dims: recipe(rest, dims, init, fills, spread)


def recipe(rest: str, dims: int, init: Init, fills: dict[str, str], spread: float) -> Recipe:
    """What goes into one tensor."""
    fill = fills.get(rest) or default_fill(rest, dims)
    if fill == "special":
        raise StackError(
            f"`{rest}` starts in a way of its own in this family, not at random",
            hint="such layers can be copied, dropped and moved, but not made fresh",
        )
    sigma = init.spread if init.spread is not None else spread
    cut = init.cut if init.cut is not None else 2 * sigma
    is_bias = rest.rpartition(".")[2].endswith("bias") and not _of_norm(rest)
    if is_bias and init.biases != "zeros":
        return "keep" if init.biases == "keep" else (sigma, cut)
    if fill == "random":
        return (sigma, cut)
    if _of_norm(rest) and init.norms == "keep":
        return "keep"
    return fill


def _of_norm(rest: str) -> bool:
    owner = rest.rpartition(".")[0].rpartition(".")[2].lower()
    return "norm" in owner or owner.startswith("ln") or owner.endswith("ln")


def stream(seed: int, slot: Slot, rest: str) -> np.random.Generator:
    """The random numbers of one tensor."""
    import numpy as np

    text = f"restack/{seed}/{slot.source}/{slot.draw}/{rest}".encode()
    key = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))


def normal(
    generator: np.random.Generator, count: int, spread: float, cut: float
) -> Iterator[np.ndarray]:
    """Chunks of a truncated normal in float32."""
    import numpy as np

    bound = cut / spread
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        if bound < 0.5:  # almost flat there: rejecting normals would take for ever
            chunk = _narrow(generator, size, bound)
        else:
            chunk = generator.standard_normal(size, dtype=np.float32)
            while (outside := np.abs(chunk) > bound).any():
                chunk[outside] = generator.standard_normal(int(outside.sum()), dtype=np.float32)
        yield chunk * np.float32(spread)


def _narrow(generator: np.random.Generator, size: int, bound: float) -> np.ndarray:
    """A standard normal within narrow bounds, by accepting uniform points under its curve."""
    import numpy as np

    chunk = generator.uniform(-bound, bound, size)
    height = generator.random(size)
    while (outside := height > np.exp(-(chunk**2) / 2)).any():
        count = int(outside.sum())
        chunk[outside] = generator.uniform(-bound, bound, count)
        height[outside] = generator.random(count)
    return chunk.astype(np.float32)


def _bfloat16(values: np.ndarray) -> bytes:
    """Round to nearest, ties to even, as torch does."""
    import numpy as np

    bits = values.view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return (rounded >> np.uint32(16)).astype("<u2").tobytes()


ENCODE: dict[str, Callable[[np.ndarray], bytes]] = {
    "F64": lambda values: values.astype("<f8").tobytes(),
    "F32": lambda values: values.astype("<f4").tobytes(),
    "F16": lambda values: values.astype("<f2").tobytes(),
    "BF16": _bfloat16,
}


def check_dtype(rest: str, dtype: str, slot: Slot) -> None:
    """Refuse fresh weights in a dtype that is not plain floating point."""
    if dtype not in ENCODE:
        raise StackError(
            f"`{rest}` of layer {slot.source} is stored as {dtype}; fresh weights can be made as "
            f"{', '.join(ENCODE)}",
            hint="quantised checkpoints take plans without fresh slots",
        )


_ONE = {"F64": b"\0\0\0\0\0\0\xf0?", "F32": b"\0\0\x80?", "F16": b"\0<", "BF16": b"\x80?"}


def encoded(
    what: Recipe, dtype: str, count: int, seed: int, slot: Slot, rest: str
) -> Iterator[bytes]:
    """The bytes of a fresh tensor, in chunks."""
    check_dtype(rest, dtype, slot)
    if isinstance(what, tuple):
        for chunk in normal(stream(seed, slot, rest), count, *what):
            yield ENCODE[dtype](chunk)
        return
    one = _ONE[dtype] if what == "ones" else bytes(len(_ONE[dtype]))
    for start in range(0, count, CHUNK):
        yield one * min(CHUNK, count - start)
