"""Re-stack a checkpoint on disk: new headers, and the old bytes copied in the plan's order."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from restack.anatomy import checkpoint as files
from restack.anatomy.anatomy import Stack
from restack.anatomy.checkpoints import anatomy
from restack.anatomy.config import Config, get, rewrite_config, section_path
from restack.anatomy.facts import canonical
from restack.errors import StackError
from restack.plan import Mark, Plan, Slot
from restack.surgery import card, casting, fresh, record
from restack.surgery.checks import check, check_places, check_zeros
from restack.surgery.keymap import Entry, key_map
from restack.surgery.publish import check_output, publish
from restack.surgery.quantised import rename_modules
from restack.surgery.write import Made, Range, Target, Zeros, write_weights

if TYPE_CHECKING:
    from restack.surgery.family import StoredLayers


@dataclass(frozen=True, slots=True)
class Edit:
    """What an edit will do, or has done."""

    checkpoint: files.Checkpoint
    stack: str
    plan: Plan
    config: Config
    targets: tuple[Target, ...]
    record: dict[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors written."""
        return sum(target.nbytes for target in self.targets)

    @property
    def parameters(self) -> int:
        """Stored elements of all tensors written."""
        return sum(math.prod(target.shape) for target in self.targets)

    def to_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "source": self.checkpoint.location,
            "stack": self.stack,
            "plan": str(self.plan),
            "depth_before": self.plan.depth,
            "depth": len(self.plan),
            "tensors": len(self.targets),
            "parameters": self.parameters,
            "bytes": self.nbytes,
            "record": self.record,
        }


@dataclass(frozen=True, slots=True)
class Options:
    """How an edit is carried out; the plan says what."""

    stack: str | None = None
    seed: int = 0
    init: str = fresh.DEFAULT
    past_end: str | None = None  # 'keep' or 'drop' layers numbered beyond the depth
    dtype: str | None = None
    shard_size: int | None = None
    hash: bool = False  # record a digest of every tensor, before and after
    force: bool = False
    revision: str | None = None


def prepare(checkpoint: files.Checkpoint, plan: Plan | str, options: Options | None = None) -> Edit:
    """Everything about an edit but the writing; raises what is wrong with it."""
    options = options or Options()
    found = anatomy(checkpoint, options.stack)
    stack = found.pick(options.stack)
    plan = Plan.parse(plan, stack.depth) if isinstance(plan, str) else plan
    check(stack, plan)
    check_places(stack, plan, found.config)
    check_zeros(stack, plan)
    _check_past_end(stack, options)
    config = rewrite_config(found.config, stack.facts, plan)
    config = rename_modules(config, stack.facts.prefixes or (stack.prefix,), plan)
    if options.past_end == "drop":
        _without_extra_layers(config, stack)
    if options.dtype:
        config = casting.config_as(config, options.dtype)
    targets = tuple(_targets(checkpoint, found.config, stack, plan, options))
    told = record.of_source(checkpoint, stack, plan)
    told |= {"past_end": options.past_end, "dtype": options.dtype}
    if plan.has_fresh:
        told |= {"seed": options.seed, "init": options.init}
        told |= record.of_torch() if options.init == fresh.FAMILY else {}
    told["output"] = record.of_layout(config, ((t.name, t.dtype, t.shape) for t in targets))
    return Edit(checkpoint, stack.path, plan, config, targets, told)


def edit(
    source: str | os.PathLike[str],
    plan: Plan | str,
    out: str | os.PathLike[str],
    options: Options | None = None,
    *,
    dry_run: bool = False,
    started: Callable[[Edit], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Edit:
    """Write the re-stacked checkpoint; `out` appears when it is complete, or not at all.

    `started` is called with the edit before the first byte is written, `progress` with the number
    of bytes just written.
    """
    options = options or Options()
    opened = files.open_checkpoint if dry_run else files.fetch_checkpoint
    checkpoint = opened(source, revision=options.revision)
    inputs = [checkpoint.directory] if checkpoint.directory else []
    check_output(Path(out), force=options.force, inputs=inputs)
    made = prepare(checkpoint, plan, options)
    if started:
        started(made)
    if not dry_run:
        with publish(Path(out), force=options.force, inputs=inputs) as work:
            _write(made, work, options, progress)
    return made


def _write(
    made: Edit, work: Path, options: Options, progress: Callable[[int], None] | None
) -> None:
    checkpoint = made.checkpoint
    notes = {key: value for key, value in checkpoint.metadata.items() if key != "format"}
    written = write_weights(
        work, made.targets, shard_size=options.shard_size, metadata=notes, progress=progress
    )
    for name in checkpoint.other_files:
        if name not in (record.RECORD, files.CARD):
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkpoint.path(name), work / name)
    made.record["output"] |= record.of_values(work, written)
    if options.hash:
        made.record["tensor_hashes"] = record.hashes(checkpoint.tensors, checkpoint.path)
        made.record["output"]["tensor_hashes"] = record.hashes(written, lambda name: work / name)
    (work / files.CARD).write_bytes(card.of(checkpoint, made.plan, made.record).encode())
    _write_json(work / record.RECORD, made.record)
    _write_json(work / files.CONFIG, made.config)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _check_past_end(stack: Stack, options: Options) -> None:
    if stack.past_end and options.past_end not in ("keep", "drop"):
        raise StackError(
            f"`{stack.path}` has {stack.depth} layers, and the checkpoint holds "
            f"{len(stack.past_end)} tensors numbered beyond them (`{stack.past_end[0]}`): extra "
            "layers, for instance for multi-token prediction",
            hint="say what becomes of them: --past-end keep (behind the new last layer) or drop",
        )


# How many layers for multi-token prediction follow those of the stack.
EXTRA_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")


def _without_extra_layers(config: Config, stack: Stack) -> None:
    where = section_path(stack.facts)
    section = get(config, where) if where else config
    for field in EXTRA_LAYERS:
        if section.get(field):
            section[field] = 0


def _targets(
    checkpoint: files.Checkpoint, config: Config, stack: Stack, plan: Plan, options: Options
) -> Iterator[Target]:
    if stack.facts.shared:
        plan = Plan.identity(len(stack.layers))  # the groups stay, the depth is in the config
    make = _Sources(checkpoint, config, stack, options)
    bound, past_end = stack.facts.bound, options.past_end
    for entry in key_map(checkpoint.tensors, stack.prefix, plan, bound=bound, past_end=past_end):
        tensor = checkpoint.tensors[entry.source]
        shape, source = tensor.shape, make.source(entry, tensor, plan)
        axis = _axis(entry, stack)
        if axis is not None:
            shape = (*shape[:axis], shape[axis] // plan.depth * len(plan), *shape[axis + 1 :])
        if options.dtype:
            yield casting.cast(entry.name, tensor.dtype, shape, source, options.dtype)
        else:
            yield Target(entry.name, tensor.dtype, shape, source)


class _Sources:
    """Where the bytes of each new tensor come from."""

    def __init__(
        self, checkpoint: files.Checkpoint, config: Config, stack: Stack, options: Options
    ) -> None:
        self.checkpoint, self.config, self.stack = checkpoint, config, stack
        self.seed, self.init = options.seed, options.init
        self.rules = (
            None if self.init == fresh.FAMILY else fresh.rules(self.init, config, stack.facts)
        )

    def source(self, entry: Entry, tensor: files.Tensor, plan: Plan) -> Range | Zeros | Made:
        """The bytes of one tensor."""
        copied = Range(self.path(tensor), tensor.start, tensor.end)
        if entry.slot is None:
            axis = _axis(entry, self.stack)
            return copied if axis is None else _gathered(copied, tensor, axis, plan)
        if entry.slot.mark is Mark.NOOP and self.stack.facts.zeroed(entry.rest, on_disk=True):
            return Zeros()
        if entry.slot.mark is not Mark.FRESH:
            return copied
        if self.rules is None or self.stack.facts.renamed:
            return self.by_the_class(entry.slot, entry.rest, tensor, copied)
        return self.by_name(self.rules, entry.slot, entry.rest, tensor) or copied

    def path(self, tensor: files.Tensor) -> Path:
        """The file of a tensor; a name only where no weights were fetched."""
        if self.checkpoint.directory is None:
            return Path(tensor.shard)
        return self.checkpoint.path(tensor.shard)

    def by_name(
        self,
        rules: Callable[[str, int], fresh.Recipe],
        slot: Slot,
        rest: str,
        tensor: files.Tensor,
    ) -> Made | None:
        """Fresh bytes of a named initialiser, or None where it keeps the tensor as it is."""
        fresh.check_dtype(rest, tensor.dtype, slot)
        rest = canonical(rest)  # the name in the model, on which the numbers depend
        what = rules(rest, len(tensor.shape))
        if what == "keep":
            return None
        count = math.prod(tensor.shape)
        return Made(lambda: fresh.encoded(what, tensor.dtype, count, self.seed, slot, rest))

    def by_the_class(
        self, slot: Slot, rest: str, tensor: files.Tensor, copied: Range
    ) -> Made | Range:
        """Fresh bytes that only the model's class can make, or pack as checkpoints have them."""
        layer = self.stack.layers[slot.source]
        self.layers.check(slot, layer)
        if not self.layers.makes(slot, rest):
            return copied
        fresh.check_dtype(rest, tensor.dtype, slot)
        return Made(lambda: self.layers.made(slot, rest, tensor.dtype) or copied.blocks())

    @cached_property
    def layers(self) -> StoredLayers:
        """What needs torch, and is therefore imported where it is needed only."""
        from restack.surgery.family import StoredLayers

        return StoredLayers(self.config, self.stack.facts, self.init, self.seed)


def _axis(entry: Entry, stack: Stack) -> int | None:
    return stack.facts.axis_of(entry.name) if entry.slot is None else None


def _gathered(whole: Range, tensor: files.Tensor, axis: int, plan: Plan) -> Made:
    """The parts of a tensor that has one for each layer, in the order of the plan."""
    row = tensor.nbytes // math.prod(tensor.shape[:axis])
    part = row // plan.depth

    def chunks() -> Iterator[bytes]:
        for block in whole.blocks(row):
            yield b"".join(
                block[start + source * part : start + (source + 1) * part]
                for start in range(0, len(block), row)
                for source in plan.sources
            )

    return Made(chunks)
