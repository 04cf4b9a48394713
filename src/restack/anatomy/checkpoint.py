"""A checkpoint as data: its config and where the bytes of every tensor lie.

`open_checkpoint` reads headers only, on disk or on the Hub, and accepts nothing that is damaged or
ambiguous. It needs neither torch nor transformers, but for `pytorch_model.bin`.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from restack.anatomy import files, hub
from restack.anatomy.index import parse_index
from restack.anatomy.safetensors_header import Tensor, parse_header
from restack.anatomy.shipped import local
from restack.anatomy.sources import Source, on_disk, on_hub
from restack.anatomy.strict_json import parse, parse_object
from restack.errors import CheckpointError

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
CARD = "README.md"
MODULES = "modules.json"  # of sentence-transformers: folders that belong to the model

_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*", re.ASCII)
# Weights in any form, and what a training run leaves behind: an edit makes them wrong or stale.
_LEFT_BEHIND = (
    *(".safetensors", ".index.json", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx"),
    *(".onnx_data", ".gguf", ".ot", ".npz", ".pkl", ".tflite", ".pte", ".pdparams", ".mlmodel"),
    "trainer_state.json",
)


@dataclass(frozen=True)
class Checkpoint:
    """What a directory or Hub repository holds; `tensors` in the order of their bytes on disk.

    `directory` is None if only headers were fetched from the Hub. `other_files` travel along with
    the weights: tokenizer, generation config, model card, code, sentence-transformers modules.
    `sizes` has the bytes of each weight file, `commit` the Hub's commit where it is known.
    """

    location: str
    directory: Path | None
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    other_files: tuple[str, ...]
    sizes: dict[str, int] = field(default_factory=dict)
    commit: str | None = None
    _places: dict[str, Path] = field(default_factory=dict, init=False, repr=False, compare=False)

    def path(self, name: str) -> Path:
        """Where one of its files is on disk."""
        if self.directory is None:
            raise CheckpointError(
                f"Only the headers of {self.location} were fetched, {name} is not on disk",
                hint="fetch_checkpoint downloads it.",
            )
        if name not in self._places:  # as many tensors lie in each file, it is asked for often
            self._places[name] = files.locate(self.directory, name, named_in=self.location)
        return self._places[name]


def open_checkpoint(location: str | os.PathLike[str], *, revision: str | None = None) -> Checkpoint:
    """The checkpoint in a directory, of a shipped model, or under a Hub id such as `owner/name`.

    As in transformers an existing directory wins. Of a Hub model that is not in the local cache
    only config, index and the headers of the weight files are fetched.
    """
    where = os.fspath(location)
    if os.path.isdir(local(where)):
        return _open_directory(where, revision)
    _check_hub_id(where)
    if snapshot := _cached(where, revision):
        return _open_snapshot(where, snapshot)
    found = hub.listing(where, revision)
    return _assemble(on_hub(found), None, found.commit)


def fetch_checkpoint(
    location: str | os.PathLike[str], *, revision: str | None = None
) -> Checkpoint:
    """As `open_checkpoint`, with the weights on disk: what the cache lacks is downloaded.

    Other formats of the same weights are not. Where the Hub cannot be asked, weights that lie in
    the cache completely are taken as they are.
    """
    where = os.fspath(location)
    if os.path.isdir(local(where)):
        return _open_directory(where, revision)
    _check_hub_id(where)
    try:
        found = hub.listing(where, revision)
    except CheckpointError:
        if snapshot := _cached(where, revision):
            return _open_snapshot(where, snapshot)
        raise
    source = on_hub(found)
    weights = _weights(source, _config(source))
    shards, _ = _shards(source, weights)
    names = [CONFIG, weights, *shards, *_other_files(source)]
    return _open_snapshot(where, hub.download(where, revision, names))


def _open_directory(where: str, revision: str | None) -> Checkpoint:
    if revision is not None:
        raise CheckpointError(
            f"{where} is a directory and has no revision {revision!r}",
            hint="Leave the revision out, or give a Hub id that is not also a directory here.",
        )
    directory = Path(local(where))
    return _assemble(on_disk(where, directory), directory, None)


def _open_snapshot(where: str, snapshot: Path) -> Checkpoint:
    # the Hub's cache names each snapshot after its commit
    return _assemble(on_disk(where, snapshot), snapshot, snapshot.name)


def _cached(where: str, revision: str | None) -> Path | None:
    """The snapshot of a Hub model in the local cache, if all its weights are there."""
    snapshot = hub.cached(where, revision)
    if snapshot is None:
        return None
    source = on_disk(where, snapshot)
    try:
        shards, _ = _shards(source, _weights(source, _config(source)))
    except CheckpointError:  # as after a tool that fetched the config alone
        return None
    return snapshot if all((snapshot / shard).exists() for shard in shards) else None


def _check_hub_id(where: str) -> None:
    if os.path.lexists(where):
        raise CheckpointError(
            f"{where} is a file, not the directory of a checkpoint",
            hint="Give the directory that holds config.json and the weights.",
        )
    if not _HUB_ID.fullmatch(where) or "--" in where or ".." in where:
        raise CheckpointError(
            f"There is no directory {where!r}, and a Hub id has the form owner/name",
            hint="Check the path.",
        )


def _assemble(source: Source, directory: Path | None, commit: str | None) -> Checkpoint:
    config = _config(source)
    weights = _weights(source, config)
    if weights in PICKLED and directory is None:
        raise CheckpointError(
            f"{source.location} has pickled weights only ({weights}), whose headers cannot be "
            "read from afar",
            hint=f"Download it first: hf download {source.location}",
        )
    shards, expected = _shards(source, weights)
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    sizes: dict[str, int] = {}
    spools: dict[str, Path] = {}
    for shard, size, found, notes in _contents(source, weights, shards, directory, spools):
        _check_twice(found, tensors, source)
        tensors.update((tensor.name, tensor) for tensor in found)
        metadata = notes | metadata
        sizes[shard] = size
    if expected is not None:
        _check_index(expected, tensors, source.label(weights))
    others = _other_files(source)
    if directory is not None:
        for name in others:
            files.contained(directory, directory / name)
    made = Checkpoint(source.location, directory, config, tensors, metadata, others, sizes, commit)
    for shard, spool in spools.items():
        made._places[shard] = spool
        weakref.finalize(made, _remove, spool)
    return made


_Content = tuple[str, int, list[Tensor], dict[str, str]]  # shard, its size, tensors, metadata


def _contents(
    source: Source,
    weights: str,
    shards: list[str],
    directory: Path | None,
    spools: dict[str, Path],
) -> Iterator[_Content]:
    """What each weight file holds; `spools` gets the temporary files that stand for some."""
    if weights not in PICKLED or directory is None:
        for shard, (header, size) in zip(shards, source.headers(shards), strict=True):
            where = source.label(shard)
            yield (shard, size, *parse_header(header, shard=shard, file_size=size, where=where))
        return
    from restack.anatomy.pickled import read_pickled

    try:
        for shard in shards:
            found = read_pickled(files.locate(directory, shard, named_in=source.location), shard)
            if found.spooled:
                spools[shard] = found.path
            yield shard, found.size, found.tensors, {}
    except BaseException:  # also where the reader of this stops before the end
        for spool in spools.values():
            _remove(spool)
        raise


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _config(source: Source) -> dict[str, Any]:
    if not source.has(CONFIG):
        adapter = source.has("adapter_config.json")
        raise CheckpointError(
            f"{source.location} has no {CONFIG}",
            hint="It is a PEFT adapter: merge it into its base model first (merge_and_unload)."
            if adapter
            else "Give the directory of a model saved by transformers, or a Hub id.",
        )
    return parse_object(source.read(CONFIG), source.label(CONFIG), constants=True)


def _weights(source: Source, config: dict[str, Any]) -> str:
    """The weight file or index that transformers would load: the single file wins."""
    named = config.get("transformers_weights")
    if named is not None:
        if not isinstance(named, str) or not named.endswith((".safetensors", INDEX[5:])):
            raise CheckpointError(
                f"transformers_weights in {source.label(CONFIG)} is {named!r}, "
                "expected the name of a safetensors file or index"
            )
        return named
    for name in (SINGLE, INDEX, *PICKLED):
        if source.has(name):
            return name
    names = source.names("", False)
    others = [name for name in names if name.endswith(_LEFT_BEHIND)]
    raise CheckpointError(
        f"{source.location} has neither {SINGLE} nor {INDEX}"
        + (f", only {', '.join(others[:5])}" if others else ""),
        hint="Save the model with save_pretrained, or complete the download.",
    )


def _shards(source: Source, weights: str) -> tuple[list[str], dict[str, str] | None]:
    """The weight files, and which of them each tensor lies in if there is an index to say so."""
    if not weights.endswith(".json"):
        return [weights], None
    expected = _index(source, weights)
    return sorted(set(expected.values())), expected


def _index(source: Source, name: str) -> dict[str, str]:
    label = source.label(name)
    places = parse_index(source.read(name), label)
    for shard in sorted(set(places.values())):
        if not source.has(shard):
            raise CheckpointError(
                f"{label} names {shard}, which is not there", hint="Complete the download."
            )
    return places


def _check_twice(found: list[Tensor], before: dict[str, Tensor], source: Source) -> None:
    for tensor in found:
        if twin := before.get(tensor.name):
            raise CheckpointError(
                f"{source.location} holds {tensor.name!r} twice, in {twin.shard} and "
                f"{tensor.shard}",
                hint="Which one counts is not defined: save the model again.",
            )


def _check_index(expected: dict[str, str], tensors: dict[str, Tensor], label: str) -> None:
    # transformers would load tensors that the index forgets, other readers would not
    for name in (*expected, *tensors):
        says = expected.get(name)
        holds = tensors[name].shard if name in tensors else None
        if says != holds:
            raise CheckpointError(
                f"{label} places {name!r} in {says or 'no file'}, it lies in {holds or 'none'}",
                hint="Index and shards are not of one save: download or save the model again.",
            )


def _other_files(source: Source) -> tuple[str, ...]:
    folders = [*_module_folders(source), "additional_chat_templates"]
    names = [
        name
        for name in source.names("", False)
        if name != CONFIG and not name.startswith(".") and not name.endswith(_LEFT_BEHIND)
    ]
    # modules such as 2_Dense have small weights of their own, which an edit does not touch
    names += [name for folder in folders for name in source.names(folder, True)]
    return tuple(dict.fromkeys(names))


def _module_folders(source: Source) -> list[str]:
    if not source.has(MODULES):
        return []
    modules = parse(source.read(MODULES), source.label(MODULES))
    folders = [
        entry.get("path")
        for entry in (modules if isinstance(modules, list) else [])
        if isinstance(entry, dict)
    ]
    return [folder for folder in folders if isinstance(folder, str) and files.is_plain(folder)]
