"""`kill -9` at random moments of writing and publishing: never an output that loads and is wrong.

`python tests/kill_write.py 100` kills that many runs and prints a summary; the test suite kills a
few. Each run replaces a checkpoint of the old version by one of the new version, in shards.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from restack.anatomy.checkpoint import open_checkpoint
from restack.errors import CheckpointError
from restack.surgery.publish import publish
from restack.surgery.write import Made, Range, Target, Zeros, write_weights

SIZE = 1_500_000
SHARD = 2_000_000


def write_version(out: Path, version: int, source: Path) -> None:
    """A checkpoint whose every byte, config and weights, tells its version or is zero."""

    def made() -> list[bytes]:
        return [bytes([version]) * 100_000] * (SIZE // 100_000)

    with publish(out, force=True, inputs=[source]) as work:
        (work / "config.json").write_text(f'{{"version": {version}}}')
        path = source / f"bytes{version}"
        targets = [
            *(Target(f"range{n}", "U8", (SIZE,), Range(path, 0, SIZE)) for n in range(4)),
            Target("made", "U8", (SIZE,), Made(lambda: iter(made()))),
            Target("zeros", "U8", (SIZE,), Zeros()),
        ]
        write_weights(work, targets, shard_size=SHARD)
        (work / "tokenizer.json").write_text("{}")


def version_of(directory: Path) -> int:
    """Which version a directory holds; CheckpointError if it does not load."""
    found = open_checkpoint(directory)
    version: int = found.config["version"]
    assert set(found.tensors) == {"range0", "range1", "range2", "range3", "made", "zeros"}
    for tensor in found.tensors.values():
        data = found.path(tensor.shard).read_bytes()[tensor.start : tensor.end]
        assert data == bytes([version if tensor.name != "zeros" else 0]) * SIZE, tensor
    return version


def kill_once(place: Path, delay: float) -> str:
    """Start a replacement of version 1 by 2 in `place`, kill it, look; returns what was found."""
    out, source = place / "out", place / "in"
    write_version(out, 1, source)
    process = subprocess.Popen(
        [sys.executable, __file__, "write", str(out), str(source)],
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
            version_of(path)
        except CheckpointError:
            continue
    outcome = "left over, " if left else ""
    try:
        outcome += f"version {version_of(out)}"
    except CheckpointError:
        assert not out.exists()
        outcome += "no output"
    write_version(place / "another", 1, source)  # the next run
    assert version_of(out) in (1, 2)  # an output that was set aside is back
    assert sorted(path.name for path in place.iterdir()) == ["another", "in", "out"]
    shutil.rmtree(place / "another")
    return outcome


def kill(times: int, seed: int = 0) -> Counter[str]:
    chance = random.Random(seed)
    place = Path(tempfile.mkdtemp(prefix="restack-kill-"))
    try:
        (place / "in").mkdir()
        for version in (1, 2):
            (place / "in" / f"bytes{version}").write_bytes(bytes([version]) * SIZE)
        begun = time.perf_counter()
        write_version(place / "out", 1, place / "in")
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
