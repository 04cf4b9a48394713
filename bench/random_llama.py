"""Llama checkpoints with random bfloat16 weights, written without torch, and compared by bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = 4 << 20
# Exponents of all ones are infinite or not a number: take such bytes out of the random ones.
_FINITE = bytes({0x7F: 0x3F, 0xFF: 0xBF}.get(byte, byte) for byte in range(256))


@dataclass(frozen=True, slots=True)
class Size:
    """The shape of a model, and the size of its weight files."""

    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int
    vocabulary: int
    shard: int
    layers: int = 32

    def config(self) -> dict[str, object]:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_value_heads,
            "vocab_size": self.vocabulary,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "initializer_range": 0.02,
            "rms_norm_eps": 1e-05,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        }

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes, in the order in which a model lists them."""
        wide, narrow = self.hidden, self.hidden // self.heads * self.key_value_heads
        yield "model.embed_tokens.weight", (self.vocabulary, wide)
        for layer in range(self.layers):
            for name, shape in (
                ("self_attn.q_proj", (wide, wide)),
                ("self_attn.k_proj", (narrow, wide)),
                ("self_attn.v_proj", (narrow, wide)),
                ("self_attn.o_proj", (wide, wide)),
                ("mlp.gate_proj", (self.intermediate, wide)),
                ("mlp.up_proj", (self.intermediate, wide)),
                ("mlp.down_proj", (wide, self.intermediate)),
                ("input_layernorm", (wide,)),
                ("post_attention_layernorm", (wide,)),
            ):
                yield f"model.layers.{layer}.{name}.weight", shape
        yield "model.norm.weight", (wide,)
        yield "lm_head.weight", (self.vocabulary, wide)


SIZES = {
    "tiny": Size(64, 192, 4, 2, 512, shard=1_000_000),
    "0.9b": Size(1536, 4096, 12, 4, 32000, shard=500_000_000),
    "7b": Size(4096, 11008, 32, 32, 32000, shard=10_000_000_000),  # as Llama 2 on the Hub
}


def make(directory: Path, size: Size, *, seed: int = 0) -> int:
    """Write a checkpoint as transformers would shard it; the bytes of its tensors."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(size.config(), indent=2))
    shards = list(_split(size))
    draw = random.Random(seed)
    places: dict[str, str] = {}
    total = 0
    for number, members in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        total += _write(directory / name, members, draw)
        places |= dict.fromkeys(members, name)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return total


def _split(size: Size) -> Iterator[dict[str, tuple[int, ...]]]:
    shard: dict[str, tuple[int, ...]] = {}
    total = 0
    for name, shape in size.tensors():
        if shard and total + _nbytes(shape) > size.shard:
            yield shard
            shard, total = {}, 0
        shard[name] = shape
        total += _nbytes(shape)
    yield shard


def _nbytes(shape: tuple[int, ...]) -> int:
    count = 2
    for length in shape:
        count *= length
    return count


def _write(path: Path, members: dict[str, tuple[int, ...]], draw: random.Random) -> int:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in sorted(members):  # safetensors' own writer sorts by name, layer 10 before layer 2
        end = at + _nbytes(members[name])
        header[name] = {"dtype": "BF16", "shape": members[name], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, at, _BLOCK):
            file.write(draw.randbytes(min(_BLOCK, at - start)).translate(_FINITE))
    return at


@dataclass(frozen=True, slots=True)
class _Place:
    path: Path
    start: int
    end: int
    kind: str


def differences(one: Path, other: Path) -> list[str]:
    """Names of tensors that are not in both checkpoints with the same type, shape and bytes."""
    mine, theirs = _places(one), _places(other)
    return sorted(
        name
        for name in mine.keys() | theirs.keys()
        if name not in mine or name not in theirs or not _same(mine[name], theirs[name])
    )


def _places(directory: Path) -> dict[str, _Place]:
    found = {}
    for path in sorted(directory.glob("*.safetensors")):
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            found[name] = _Place(path, start, end, f"{entry['dtype']} {entry['shape']}")
    return found


def _same(one: _Place, other: _Place) -> bool:
    if (one.kind, one.end - one.start) != (other.kind, other.end - other.start):
        return False
    with open(one.path, "rb") as mine, open(other.path, "rb") as theirs:
        mine.seek(one.start)
        theirs.seek(other.start)
        for at in range(one.start, one.end, _BLOCK):
            count = min(_BLOCK, one.end - at)
            if mine.read(count) != theirs.read(count):
                return False
    return True
