"""`kill -9` at random moments of an edit: never an output that loads and is wrong.

`python tests/kill_write.py 100` kills that many edits and prints a summary; the test suite kills a
few. Each edit replaces what was made of one checkpoint by what is made of another, in shards, with
copied, zeroed and fresh layers.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import safetensors.numpy

from restack import Options, edit
from restack.anatomy.checkpoint import open_checkpoint
from restack.errors import CheckpointError

PLAN = "0x2,1,1@noop,0@fresh,1"
SHARD = 500_000
VERSIONS = (1, 2)


def make_source(where: Path, version: int) -> None:
    """A small Llama of two layers, whose every value is its version."""
    where.mkdir()
    config = {"model_type": "llama", "num_hidden_layers": 2, "version": version}
    (where / "config.json").write_text(json.dumps(config))
    (where / "tokenizer.json").write_text("{}")
    parts = ("self_attn.q_proj.weight", "self_attn.o_proj.weight", "mlp.down_proj.weight")
    names = ["model.embed_tokens.weight", "model.norm.weight"]
    names += [f"model.layers.{layer}.{part}" for layer in (0, 1) for part in parts]
    tensors = {name: np.full((200, 250), version, np.float32) for name in names}
    safetensors.numpy.save_file(tensors, where / "model.safetensors", {"format": "pt"})


def write_version(out: Path, version: int, sources: Path) -> None:
    edit(
        sources / f"in{version}", PLAN, out, Options(force=True, shard_size=SHARD, init="standard")
    )


def tree(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def version_of(directory: Path, place: Path) -> int:
    """Which version a directory holds; CheckpointError if it does not load."""
    version: int = open_checkpoint(directory).config["version"]
    assert tree(directory) == tree(place / f"whole{version}")
    return version


def kill_once(place: Path, delay: float) -> str:
    """Start a replacement of version 1 by 2 in `place`, kill it, look; returns what was found."""
    out = place / "out"
    write_version(out, 1, place)
    process = subprocess.Popen(
        [sys.executable, __file__, "write", str(out), str(place)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout
    process.stdout.readline()  # it has imported everything and begins
    time.sleep(delay)
    process.kill()
    process.communicate()
    left = [path for path in place.iterdir() if path.name.startswith(".out.")]
    for path in left:  # what an unfinished directory holds is complete or does not load
        try:
            version_of(path, place)
        except CheckpointError:
            continue
    outcome = "left over, " if left else ""
    try:
        outcome += f"version {version_of(out, place)}"
    except CheckpointError:
        assert not out.exists()
        outcome += "no output"
    write_version(place / "another", 1, place)  # the next run
    assert version_of(out, place) in VERSIONS  # an output that was set aside is back
    shutil.rmtree(place / "another")
    assert not [path for path in place.iterdir() if path.name.startswith(".")]
    return outcome


def kill(times: int, seed: int = 0) -> Counter[str]:
    chance = random.Random(seed)
    place = Path(tempfile.mkdtemp(prefix="restack-kill-"))
    try:
        for version in VERSIONS:
            make_source(place / f"in{version}", version)
            write_version(place / f"whole{version}", version, place)
        begun = time.perf_counter()
        write_version(place / "out", 1, place)
        usual = time.perf_counter() - begun
        return Counter(kill_once(place, chance.random() * usual * 1.6) for _ in range(times))
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        print("begin", flush=True)
        write_version(Path(sys.argv[2]), 2, Path(sys.argv[3]))
    else:
        times = int(sys.argv[1]) if len(sys.argv) > 1 else 100
        for outcome, count in sorted(kill(times, seed=random.randrange(10**6)).items()):
            print(f"{count:4d} x {outcome}")
        print(f"{times} runs killed, every output whole, every leftover removed by the next run")
