"""Check a checkpoint: its structure, where it comes from, and every byte against its source."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from restack.anatomy.anatomy import Anatomy, Stack
from restack.anatomy.checkpoint import Checkpoint, fetch_checkpoint, open_checkpoint
from restack.anatomy.checkpoints import anatomy
from restack.anatomy.config import get, lists_of, walk
from restack.anatomy.fingerprint import (
    file_hashes,
    fingerprint,
    sampled_digest,
    tensor_digest,
    value_digest,
)
from restack.errors import CheckpointError, RestackError, StackError
from restack.surgery.disk import EXTRA_LAYERS, Options, prepare
from restack.surgery.fresh import DEFAULT
from restack.surgery.record import RECORD, digest_of, layout_digest, of_torch, read_record
from restack.surgery.write import Made, Range, Target

_BLOCK = 1 << 20


@dataclass
class Report:
    """What was checked, and what was found to differ."""

    location: str
    checked: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "location": self.location,
            "ok": self.ok,
            "checked": self.checked,
            "differences": self.differences,
        }


def verify(
    location: str | os.PathLike[str],
    against: str | os.PathLike[str] | None = None,
    *,
    load: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Check a checkpoint.

    Without more: its headers, the layers against the config, and what its record says of it.
    With `against`, every tensor byte for byte against what the recorded plan makes of that source,
    fresh ones included. With `load`, names and shapes against the class that loads it; that
    needs torch.
    """
    report = Report(os.fspath(location))
    if not os.path.isdir(location) and os.path.sep in report.location.rstrip("/").lstrip("/"):
        open_checkpoint(location)  # not there at all: that is an error, not a difference
    try:
        checkpoint = open_checkpoint(location)
        record = read_record(checkpoint)
        found = anatomy(checkpoint, record["stack"] if record else None)
    except (CheckpointError, StackError) as error:
        if not os.path.isdir(location):
            raise
        report.differences.append(error.message)
        return report
    report.checked.append(f"{len(checkpoint.tensors)} tensors lie sound in their files")
    _structure(found, record, report)
    if record:
        _provenance(checkpoint, record, report, progress)
    if against is not None:
        _bytes(checkpoint, record, fetch_checkpoint(against), report, progress)
    if load:
        _loads(checkpoint, report)
    return report


def _structure(found: Anatomy, record: dict[str, Any] | None, report: Report) -> None:
    if not found.stacks:
        report.differences.append(
            f"no stack of layers is known for model type {found.model_type!r}: nothing to compare"
        )
    for stack in found.stacks:
        before = len(report.differences)
        for name in lists_of(found.config, stack.facts, stack.depth):
            length = len(get(found.config, name))
            if length != stack.depth:
                report.differences.append(
                    f"config field `{name}` has {length} entries for {stack.depth} layers"
                )
        if not found.config.get("quantization_config"):  # which may leave single layers as they are
            report.differences += _uneven(stack)
        report.differences += _past_end(stack, found, record)
        sizes = {value for name, value in walk(found.config) if name.endswith("hidden_size")}
        report.differences += _unsized(stack, sizes)
        if len(report.differences) == before:
            report.checked.append(f"`{stack.path}` has its {stack.depth} layers, each complete")


def _past_end(stack: Stack, found: Anatomy, record: dict[str, Any] | None) -> Iterator[str]:
    """Layers beyond the depth, where neither the config nor an edit accounts for them."""
    fields = {name.rpartition(".")[2] for name, value in walk(found.config) if value}
    kept = record is not None and record.get("past_end") == "keep"
    if stack.past_end and not kept and not fields.intersection(EXTRA_LAYERS):
        yield (
            f"`{stack.past_end[0]}` is numbered beyond the {stack.depth} layers of the config "
            f"({len(stack.past_end)} such tensors)"
        )


def _uneven(stack: Stack) -> Iterator[str]:
    """Layers that are alone in lacking a tensor or in its shape."""
    if stack.facts.lists or stack.facts.live or stack.facts.edges or len(stack.layers) < 3:
        return  # families whose layers differ by kind
    rules = {name for name, _ in stack.facts.defaults} - {
        name.rpartition(".")[2] for name in stack.facts.counts
    }
    if rules - {"scale_attn_by_inverse_layer_idx"} and len(set(stack.kinds)) > 1:
        return
    usual = Counter(stack.kinds).most_common(1)[0][0]
    model = stack.layers[stack.kinds.index(usual)]
    for i, layer in enumerate(stack.layers):
        for name in sorted(model.keys() | layer.keys()):
            if name in stack.facts.bound:
                continue
            full = f"{stack.prefix}{i}.{name}"
            if name not in layer:
                yield f"`{full}` is missing"
            elif name not in model:
                yield f"`{full}` is not in the other layers"
            elif layer[name].shape != model[name].shape:
                shapes = f"{list(layer[name].shape)}, in the other layers {list(model[name].shape)}"
                yield f"`{full}` has the shape {shapes}"


def _unsized(stack: Stack, sizes: set[int]) -> Iterator[str]:
    """Norm vectors that have none of the widths in the config."""
    widths = {
        tensor.shape[0]
        for name, tensor in stack.layers[0].items()
        if len(tensor.shape) == 1 and name.endswith(("layernorm.weight", "LayerNorm.weight"))
    }
    if sizes and widths and not widths & sizes:
        yield (
            f"`{stack.path}` has layers of width {sorted(widths)[0]}; the config says "
            f"hidden_size {', '.join(map(str, sorted(sizes)))}"
        )


def _provenance(
    checkpoint: Checkpoint,
    record: dict[str, Any],
    report: Report,
    progress: Callable[[int], None] | None,
) -> None:
    """Whether the checkpoint is still what its record was written beside."""
    output = record["output"]
    before = len(report.differences)
    if output.get("config") != digest_of(checkpoint.config):
        report.differences.append(f"config.json was changed since {RECORD} was written")
    tensors = checkpoint.tensors.values()
    same_layout = output.get("tensors") == layout_digest(
        (t.name, t.dtype, t.shape) for t in tensors
    )
    if not same_layout:
        report.differences.append(
            f"the names, dtypes or shapes of the tensors are not those that {RECORD} tells of"
        )
    how = "samples of its bytes are unchanged"
    if "tensor_hashes" in output:
        how = "every byte is unchanged"
        report.differences += _unhashed(checkpoint, output["tensor_hashes"], "", progress)
    elif same_layout and output.get("values") != value_digest(tensors, checkpoint.path):
        report.differences.append(f"the weights were changed since {RECORD} was written")
    if len(report.differences) == before:
        plan = f"plan {record['plan']} of {record.get('source_depth')} layers"
        report.checked.append(f"{RECORD}: {plan} from {record['source']}; {how}")


def _unhashed(
    checkpoint: Checkpoint, hashes: Any, whose: str, progress: Callable[[int], None] | None
) -> Iterator[str]:
    """Tensors whose bytes are not those that were hashed when the record was written."""
    hashes = hashes if isinstance(hashes, dict) else {}
    for name in sorted(hashes.keys() - checkpoint.tensors.keys()):
        yield f"`{name}`{whose} is missing"
    for name, tensor in sorted(checkpoint.tensors.items()):
        path = checkpoint.path(tensor.shard)
        if hashes.get(name) != tensor_digest(path, tensor.start, tensor.end):
            yield f"the values of `{name}`{whose} are not those that were hashed"
        if progress:
            progress(tensor.nbytes)


def _origin(
    source: Checkpoint, record: dict[str, Any], progress: Callable[[int], None] | None
) -> Iterator[str]:
    """How a source differs from what the record tells of the source it was made from."""
    if record["fingerprint"] != fingerprint(source):
        yield (
            f"{source.location} is not the source that {RECORD} tells of (other config, headers "
            "or file sizes)"
        )
        return
    if record.get("sampled_digest") not in (None, sampled_digest(source)):
        yield f"the weights of {source.location} changed since the edit"
    told, known = record.get("file_sha256"), file_hashes(source)
    if isinstance(told, dict):
        for name in sorted(known.keys() & told.keys()):
            if known[name] != told[name]:
                yield f"{name} of {source.location} is another file than at the edit"
    if "tensor_hashes" in record:
        whose = f" of {source.location}"
        yield from _unhashed(source, record["tensor_hashes"], whose, progress)


def _bytes(
    checkpoint: Checkpoint,
    record: Any,
    source: Checkpoint,
    report: Report,
    progress: Callable[[int], None] | None,
) -> None:
    if not record:
        raise CheckpointError(
            f"{checkpoint.location} has no {RECORD}, so its plan is not known",
            hint="only the outputs of `restack edit` can be compared with their source",
        )
    report.differences += _origin(source, record, progress)
    options = Options(
        stack=record["stack"],
        seed=record.get("seed", 0),
        init=record.get("init", DEFAULT),
        past_end=record.get("past_end"),
        dtype=record.get("dtype"),
    )
    try:
        expected = prepare(source, record["plan"], options)
    except RestackError as error:
        report.differences.append(
            f"the plan that {RECORD} tells of cannot be carried out on {source.location}: "
            f"{error.message}"
        )
        return
    names = {target.name for target in expected.targets}
    report.differences += [f"`{n}` is missing" for n in sorted(names - checkpoint.tensors.keys())]
    report.differences += [
        f"`{n}` is not in the plan" for n in sorted(checkpoint.tensors.keys() - names)
    ]
    if expected.config != checkpoint.config:
        changed = {k for k, v in walk(expected.config) if get(checkpoint.config, k) != v}
        shown = ", ".join(sorted(changed)[:4]) or "fields that the source lacks"
        report.differences.append(f"config.json differs from what the plan makes of it: {shown}")
    same, before = 0, len(report.differences)
    for target in expected.targets:
        if target.name in checkpoint.tensors:
            same += _same(checkpoint, target, report)
        if progress:
            progress(target.nbytes)
    if "torch" in record and len(report.differences) > before and record["torch"] != _torch():
        report.differences.append(
            f"the fresh weights were drawn with torch {record['torch']}; this is {_torch()}, which "
            "may draw otherwise"
        )
    report.checked.append(f"{same} of {len(names)} tensors equal what the plan makes, bit for bit")


def _torch() -> str:
    return of_torch()["torch"]


def _same(checkpoint: Checkpoint, target: Target, report: Report) -> bool:
    tensor = checkpoint.tensors[target.name]
    if (tensor.dtype, tensor.shape) != (target.dtype, target.shape):
        report.differences.append(
            f"`{target.name}` is {tensor.dtype} {list(tensor.shape)}; the plan makes "
            f"{target.dtype} {list(target.shape)}"
        )
        return False
    at = tensor.start
    with open(checkpoint.path(tensor.shard), "rb", buffering=0) as file:
        for chunk in _expected(target):
            if os.pread(file.fileno(), len(chunk), at) != chunk:
                report.differences.append(f"the values of `{target.name}` differ")
                return False
            at += len(chunk)
    return True


def _expected(target: Target) -> Iterator[bytes]:
    """What should stand in the file, in chunks."""
    source = target.source
    if isinstance(source, Range):
        yield from source.blocks()
    elif isinstance(source, Made):
        yield from (bytes(chunk) for chunk in source.chunks())
    else:
        for start in range(0, target.nbytes, _BLOCK):
            yield bytes(min(_BLOCK, target.nbytes - start))


def _loads(checkpoint: Checkpoint, report: Report) -> None:
    """Names and shapes against the class that would load the checkpoint."""
    from restack.anatomy import live
    from restack.anatomy.conversion import unexpected_and_missing

    config = live.config_from(checkpoint.config)
    wrong = unexpected_and_missing(config, {t.name: t.shape for t in checkpoint.tensors.values()})
    report.differences += wrong
    if not wrong:
        report.checked.append(f"{type(config).__name__} builds a model of exactly these tensors")
