"""Change the dtype of a checkpoint's floating-point tensors while it is written."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from restack.anatomy.config import Config
from restack.errors import CheckpointError
from restack.surgery.fresh import ENCODE
from restack.surgery.write import Made, Range, Target, Zeros

if TYPE_CHECKING:
    import numpy as np

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}


def config_as(config: Config, dtype: str) -> Config:
    """The config of a checkpoint in this dtype."""
    if dtype not in DTYPES:
        raise CheckpointError(
            f"no dtype is called {dtype!r}", hint=f"choose one of {', '.join(DTYPES)}"
        )
    if config.get("quantization_config"):
        raise CheckpointError(
            "the checkpoint is quantised; its tensors have the dtypes of its method",
            hint="leave --dtype out",
        )
    new = copy.deepcopy(config)
    old_name = "torch_dtype" if "torch_dtype" in new and "dtype" not in new else "dtype"
    new[old_name] = dtype
    for section in new.values():
        if isinstance(section, dict) and section.get(old_name):
            section[old_name] = dtype
    return new


def cast(
    name: str, dtype: str, shape: tuple[int, ...], source: Range | Zeros | Made, wanted: str
) -> Target:
    """The target in the wanted dtype; integers and packed formats stay as they are."""
    new = DTYPES[wanted]
    if dtype not in ENCODE or dtype == new or isinstance(source, Zeros):
        return Target(name, new if isinstance(source, Zeros) else dtype, shape, source)
    count = math.prod(shape)
    return Target(name, new, shape, Made(lambda: _converted(source, dtype, new, count)))


def _converted(source: Range | Made, dtype: str, new: str, count: int) -> Iterator[bytes]:
    width = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}[dtype]
    if isinstance(source, Made):
        blocks: Iterator[bytes] = (bytes(chunk) for chunk in source.chunks())
    else:
        blocks = source.blocks(width)
    for block in blocks:
        yield _encode(_decode(block, dtype), dtype, new)


def _decode(block: bytes, dtype: str) -> np.ndarray:
    import numpy as np

    if dtype == "BF16":
        return (np.frombuffer(block, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(block, {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[dtype])


def _encode(values: np.ndarray, dtype: str, new: str) -> bytes:
    import numpy as np

    if new == "BF16" and values.dtype != np.float32:
        values = values.astype(np.float32)
    with np.errstate(over="ignore"):
        encoded = ENCODE[new](values)
    if new == "F16" and dtype != "F16":
        made = np.frombuffer(encoded, "<f2")
        if np.isinf(made).any() and not np.isinf(values).any():
            raise CheckpointError(
                f"a value of {float(np.abs(values[np.isfinite(values)]).max()):g} does not fit "
                "float16",
                hint="choose bfloat16 or float32",
            )
    return encoded
