"""The card and the files that travel with a re-stacked checkpoint."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from restack import Plan, edit
from restack.anatomy.checkpoint import Checkpoint, open_checkpoint
from restack.surgery import card
from tests.families import FAMILIES
from tests.observe import reviews

RECORD = {"restack": "1.0", "stack": "encoder.layer", "seed": 3, "init": "standard"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("cards") / "tiny-bert"
    FAMILIES["bert"].build().save_pretrained(where)
    return where


def written(source: Path, text: str | None, commit: str | None = None) -> str:
    path = source / "README.md"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_bytes(text.encode())
    found: Checkpoint = open_checkpoint(source)
    if commit:
        found = replace(found, location="owner/name", commit=commit)
    return card.of(found, Plan.parse("0-2,4@fresh", 5), RECORD)


def front_matter(text: str) -> dict[str, Any]:
    return ModelCard(text, ignore_metadata_errors=False).data.to_dict()


def test_a_card_where_there_was_none(source: Path) -> None:
    text = written(source, None)
    assert front_matter(text) == {"library_name": "transformers", "tags": ["restack"]}
    for piece in ("tiny-bert", "0-2,4@fresh", "`encoder.layer`", "seed 3", "fresh weights"):
        assert piece in text
    assert str(source.parent) not in text  # where it lay is nobody's business


def test_the_base_model_is_named(source: Path) -> None:
    text = written(source, "---\nbase_model: older/one\nlicense: mit\n---\n# Old\n", "abc123")
    told = front_matter(text)
    assert told == {
        "license": "mit",
        "library_name": "transformers",
        "base_model": "owner/name",
        "tags": ["restack"],
    }
    assert "at commit `abc123`" in text
    assert text.endswith("# Old\n")


FRONT = """---
# a comment
language: no
license: apache-2.0
tags:
- text
- "quoted: tag"
inference: false
base_model:
- bert-base-uncased
model-index:
- name: x
  results:
  - task: {type: t}
    metrics:
    - {type: accuracy, value: 0.9}
pipeline_tag: fill-mask
---

# Model

---
a rule, and no front matter
"""


def test_what_was_said_stays_and_results_go(source: Path) -> None:
    text = written(source, FRONT)
    told = front_matter(text)
    assert told["tags"] == ["text", "quoted: tag", "restack"]
    assert told["base_model"] == ["bert-base-uncased"]
    assert told["pipeline_tag"] == "fill-mask"
    assert "model-index" not in text
    assert "accuracy" not in text
    assert "# a comment\nlanguage: no\n" in text  # YAML read and written anew would make it false
    assert "its results are not of this model" in text
    assert text.endswith("# Model\n\n---\na rule, and no front matter\n")


@pytest.mark.parametrize(
    "front",
    [
        "{license: mit, model-index: [{name: x}]}",
        "license: mit\r\ntags: one\r",
        '"license": mit\n"tags": [a, b]',
        "license: mit\ntags: [a,\n  b]\nbase_model_relation: merge",
    ],
)
def test_layouts_of_front_matter(source: Path, front: str) -> None:
    text = written(source, f"---\n{front}\n---\nbody\n", "abc123")
    told = front_matter(text)
    assert told["license"] == "mit"
    assert told["base_model"] == "owner/name"
    assert told["tags"][-1] == "restack"
    assert not {"model-index", "base_model_relation"} & told.keys()


@pytest.mark.parametrize("front", ["a: [", "- list", "just words", "a: b: c", "\tx: 1"])
def test_front_matter_that_is_none(source: Path, front: str) -> None:
    told = front_matter(written(source, f"---\n{front}\n---\nbody\n", "abc123"))
    assert told["base_model"] == "owner/name"


def test_a_chain_keeps_every_step(source: Path, tmp_path: Path) -> None:
    written(source, "# First\n")
    edit(source, "0-3", tmp_path / "one")
    edit(tmp_path / "one", "3-0", tmp_path / "two")
    text = (tmp_path / "two" / "README.md").read_text()
    assert text.count("re-stacked") == 2
    assert front_matter(text)["tags"] == ["restack"]
    record = json.loads((tmp_path / "two" / "restack.json").read_text())
    assert (record["plan"], record["source_record"]["plan"]) == ("3-0", "0-3")


def test_what_belongs_to_the_model_comes_along(tmp_path: Path) -> None:
    """Tokenizer, chat template, generation config, processor, modules of sentence-transformers."""
    from transformers import AutoTokenizer, GenerationConfig

    source, out = tmp_path / "in", tmp_path / "out"
    FAMILIES["llama"].build().save_pretrained(source)
    tokenizer = reviews.tokenizer()
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained(source)
    GenerationConfig(temperature=0.5, do_sample=True).save_pretrained(source)
    modules = [{"idx": 0, "path": ""}, {"idx": 1, "path": "1_Pooling"}, {"path": "2_Dense"}]
    texts = {
        "modules.json": json.dumps(modules),
        "config_sentence_transformers.json": "{}",
        "1_Pooling/config.json": '{"pooling_mode_cls_token": true}',
        "2_Dense/config.json": "{}",
        "2_Dense/model.safetensors": "weights of its own",
        "preprocessor_config.json": "{}",
        "modeling_own.py": "x = 1",
        "LICENSE": "of the source",
    }
    for name, text in texts.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text)
    (source / "optimizer.pt").touch()
    edit(source, "0-2", out)
    for name, text in texts.items():
        assert (out / name).read_text() == text
    assert not (out / "optimizer.pt").exists()
    assert AutoTokenizer.from_pretrained(out).chat_template == "{{ messages }}"
    assert GenerationConfig.from_pretrained(out).temperature == 0.5
    assert front_matter((out / "README.md").read_text())["library_name"] == "sentence-transformers"
