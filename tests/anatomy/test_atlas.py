"""The shipped atlas says what the installed transformers says."""

from __future__ import annotations

import json
import os

import pytest
import transformers

from restack.anatomy import atlas
from restack.anatomy.facts import Facts
from restack.anatomy.generate import ATLAS, dump, entry, model_types

FAMILIES = (
    "bert roberta albert distilbert xlnet electra deberta-v2 modernbert mpnet gpt2 gpt_neo "
    "gpt_neox opt llama mistral qwen2 qwen3 gemma3_text gemma3 phi3 mixtral qwen3_moe "
    "deepseek_v3 falcon bloom t5 bart whisper vit dinov2 clip"
)
SAMPLE = "albert bart bert esm gpt2 mixtral modernbert qwen2 t5 vit"
TRIED = model_types() if os.environ.get("RESTACK_PROOF") else SAMPLE.split()
SAME_VERSION = atlas.transformers_version() == transformers.__version__


def test_enough_is_known() -> None:
    states = list(atlas.model_types().values())
    assert states.count("verified") >= 400
    known = atlas.model_types()
    assert {name: known[name] for name in FAMILIES.split() if known[name] != "verified"} == {}


@pytest.mark.skipif(not SAME_VERSION, reason="the atlas was made with another transformers")
def test_every_type_has_an_entry() -> None:
    assert sorted(atlas.model_types()) == model_types()


@pytest.mark.skipif(not SAME_VERSION, reason="the atlas was made with another transformers")
@pytest.mark.parametrize("model_type", TRIED)
def test_regenerated_entries_are_the_shipped_ones(model_type: str) -> None:
    made = entry(model_type)
    if "unknown" in made:
        pytest.skip(f"cannot be built here: {made['unknown']}")
    assert json.loads(json.dumps(made)) == json.loads(ATLAS.read_text())["types"][model_type]


def test_file_is_as_the_generator_writes_it() -> None:
    shipped = json.loads(ATLAS.read_text())
    assert ATLAS.read_text() == dump(shipped["transformers"], shipped["types"])


def test_facts_survive_json() -> None:
    for name in atlas.model_types():
        for facts in atlas.known(name):
            assert Facts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


def test_composed_models_use_the_types_of_their_sections() -> None:
    config = {"model_type": "no-such-type", "text_config": {"model_type": "llama"}}
    (facts,) = atlas.for_config(config)
    assert facts.counts == ("text_config.num_hidden_layers",)
