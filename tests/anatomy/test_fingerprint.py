"""Digests: what changes them and what does not."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from restack.anatomy.checkpoint import Checkpoint, open_checkpoint
from restack.anatomy.fingerprint import fingerprint, sampled_digest, tensor_digest
from restack.errors import CheckpointError


def save(directory: Path, config: dict[str, object], **tensors: np.ndarray) -> Checkpoint:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")
    return open_checkpoint(directory)


def test_a_copy_has_the_same_fingerprint(tmp_path: Path) -> None:
    first = save(tmp_path / "a", {"x": 1, "y": 2}, w=np.zeros(5))
    second = save(tmp_path / "b", {"y": 2, "x": 1}, w=np.zeros(5))
    assert fingerprint(first) == fingerprint(second)
    assert fingerprint(replace(first, directory=None)) == fingerprint(first)


def test_config_names_types_and_shapes_change_it(tmp_path: Path) -> None:
    prints = [
        fingerprint(save(tmp_path / str(number), config, **tensors))
        for number, (config, tensors) in enumerate(
            [
                ({"x": 1}, {"w": np.zeros(4)}),
                ({"x": 2}, {"w": np.zeros(4)}),
                ({"x": 1}, {"v": np.zeros(4)}),
                ({"x": 1}, {"w": np.zeros((2, 2))}),
                ({"x": 1}, {"w": np.zeros(4, np.int64)}),
            ]
        )
    ]
    assert len(set(prints)) == 5


def test_samples_tell_values_apart(tmp_path: Path) -> None:
    first = save(tmp_path / "a", {}, w=np.zeros(100_000))
    second = save(tmp_path / "b", {}, w=np.ones(100_000))
    same = save(tmp_path / "c", {}, w=np.zeros(100_000))
    assert fingerprint(first) == fingerprint(second)
    assert sampled_digest(first) != sampled_digest(second)
    assert sampled_digest(first) == sampled_digest(same)


@pytest.mark.parametrize("size", [0, 1, 500, 600])
def test_enough_samples_see_every_byte(tmp_path: Path, size: int) -> None:
    found = save(tmp_path / "a", {}, w=np.zeros(size, np.uint8))
    before = sampled_digest(found, blocks=1)
    path = found.path("model.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert sampled_digest(found, blocks=1) != before


def test_a_tensor_digest_is_that_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "f"
    data = np.random.default_rng(0).bytes(3_000_000)
    path.write_bytes(data)
    expected = hashlib.blake2b(data[10:2_500_000], digest_size=32).hexdigest()
    assert tensor_digest(path, 10, 2_500_000) == expected
    assert tensor_digest(path, 5, 5) == hashlib.blake2b(digest_size=32).hexdigest()


def test_a_file_that_shrank(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    with pytest.raises(CheckpointError, match="ends at byte 5, expected 9"):
        tensor_digest(tmp_path / "f", 0, 9)
