"""Make the atlas: `python -m restack.anatomy.generate [TYPE...]`.

Builds every model type of the installed transformers on the meta device, in its default size, and
writes down what `learn` finds. Takes a few minutes on two cores.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ATLAS = Path(__file__).with_name("atlas.json")
PARTIAL = ATLAS.with_name("atlas.partial.json")

# Default configs that no model can be built from, and the least that mends them.
MENDED: dict[str, dict[str, Any]] = {
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "informer": {"prediction_length": 8},
    "ministral": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention"] * 8, "num_hidden_layers": 24},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "time_series_transformer": {"prediction_length": 8},
}

_HEADS = (
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
)


def model_types() -> list[str]:
    """Every model type that has a base model in the installed transformers."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


def entry(model_type: str) -> dict[str, Any]:
    """One entry of the atlas: the stacks of a model type, or why none is known."""
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from restack.anatomy.learn import learn
    from restack.anatomy.live import quiet

    torch.set_num_threads(1)
    flat = head_classes(model_type)
    try:
        with quiet():
            heads = tuple(getattr(transformers, name) for name in sorted(flat))
            config = CONFIG_MAPPING[model_type](**MENDED.get(model_type, {}))
            stacks = learn(config, heads)
    except Exception as error:  # a type that cannot be built here is listed with the reason
        reason = " ".join(str(error).split())
        return {"unknown": f"{type(error).__name__}: {reason[:100]}"}
    if not stacks:
        return {"unknown": "no list of transformer layers"}
    return {"stacks": [facts.to_json() for facts in stacks.values()]} | tied(model_type, flat)


def head_classes(model_type: str) -> set[str]:
    """The classes that put a head on this model type, by name."""
    from transformers.models.auto import modeling_auto

    names = {getattr(modeling_auto, mapping, {}).get(model_type) for mapping in _HEADS}
    return {n for name in names if name for n in (name if isinstance(name, tuple) else (name,))}


def tied(model_type: str, heads: Iterable[str]) -> dict[str, Any]:
    """What the classes of a model type tie where the config asks for it, and whether it does."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    bases = MODEL_MAPPING_NAMES[model_type]
    names = {*heads, *((bases,) if isinstance(bases, str) else bases)}
    found = {}
    for name in sorted(names):
        pairs = getattr(getattr(transformers, name, None), "_tied_weights_keys", None)
        if isinstance(pairs, dict) and pairs:
            found[name] = pairs
    if not found:
        return {}
    config = CONFIG_MAPPING[model_type](**MENDED.get(model_type, {}))
    return {"tied": found, "ties": bool(getattr(config, "tie_word_embeddings", False))}


def generate(types: Sequence[str], workers: int | None = None) -> Iterator[tuple[str, Any]]:
    """Entries for these model types, as they are ready."""
    with ProcessPoolExecutor(workers) as pool:
        waiting = {pool.submit(entry, name): name for name in types}
        for count, done in enumerate(as_completed(waiting), 1):
            print(f"{count}/{len(types)} {waiting[done]}", file=sys.stderr, flush=True)
            yield waiting[done], done.result()


def dump(version: str, types: dict[str, Any]) -> str:
    """The atlas as text, one model type a line, so that differences can be read."""
    rows = ",\n".join(
        f"{json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in sorted(types.items())
    )
    return f'{{"transformers": {json.dumps(version)}, "types": {{\n{rows}\n}}}}\n'


def main(names: Sequence[str]) -> None:
    """Regenerate all types, or the named ones within the present atlas."""
    import transformers

    found = json.loads(ATLAS.read_text())["types"] if names and ATLAS.exists() else {}
    for name, row in generate(names or model_types()):
        found[name] = row
        if len(found) % 20 == 0:  # what an interrupted run has found so far
            PARTIAL.write_text(dump(transformers.__version__, found))
    ATLAS.write_text(dump(transformers.__version__, found))
    PARTIAL.unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1:])
