"""The anatomy of a checkpoint, by the atlas where the model type is known."""

from __future__ import annotations

import copy
from dataclasses import replace

from restack.anatomy import guess
from restack.anatomy.anatomy import Anatomy, Shape, dissect, with_stacks
from restack.anatomy.checkpoint import Checkpoint
from restack.anatomy.config import Config, get, missing_lists, put, walk
from restack.anatomy.facts import Facts
from restack.errors import RestackError, StackError
from restack.plan import MAX_SLOTS


def anatomy(checkpoint: Checkpoint, which: str | None = None) -> Anatomy:
    """The stacks of a checkpoint. torch is imported only where the atlas does not suffice.

    Of a model type that nothing is known of, `which` may name a stack by its path.
    """
    _check_depths(checkpoint)
    tensors = {t.name: Shape(t.dtype, t.shape, t.nbytes) for t in checkpoint.tensors.values()}
    found = dissect(checkpoint.location, checkpoint.config, tensors)
    if not found.stacks:
        found = with_stacks(found, _learned(checkpoint.config))
    if not found.stacks and which:
        stack = guess.stack_at(which, found.config, tensors, checkpoint.location)
        found = replace(found, stacks=(stack,))
    missing = {name for stack in found.stacks for name in missing_lists(found.config, stack.facts)}
    return replace(found, config=_completed(found.config, missing)) if missing else found


def _check_depths(checkpoint: Checkpoint) -> None:
    """Refuse a config that speaks of a billion layers, before a class tries to build them."""
    for name, value in walk(checkpoint.config):
        if name.endswith(("layers", "layer", "depth")) and type(value) is int and value > MAX_SLOTS:
            raise StackError(
                f"{checkpoint.location}: config field `{name}` is {value}; stacks have at most "
                f"{MAX_SLOTS} layers",
                hint="the config is damaged: download it or save it again",
            )


def _learned(config: Config) -> tuple[Facts, ...]:
    """Facts of a type that the atlas does not know, by building it without weights."""
    from restack.anatomy import live
    from restack.anatomy.learn import learn

    try:
        with live.quiet():
            return tuple(f for f in learn(live.config_from(config)).values() if f.counts)
    except RestackError:
        raise
    except Exception:  # no class of this name, or one that cannot be built: nothing is known
        return ()


def _completed(config: Config, names: set[str]) -> Config:
    """A config that spells out the per-layer lists which its class derives by layer number."""
    from restack.anatomy import live

    try:
        with live.quiet():
            full = live.config_json(live.config_from(config))
    except Exception as error:
        raise StackError(
            f"the config omits {', '.join(f'`{name}`' for name in sorted(names))}, and its class "
            f"cannot be built to derive them ({type(error).__name__}: {error})",
            hint="add the lists to config.json, one entry a layer",
        ) from error
    config = copy.deepcopy(config)
    for name in names:
        if get(full, name) is not None:
            put(config, name, get(full, name))
    return config
