"""The cards of the demo models: what they are, what for and what not, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from restack.demo.vocabulary import Kind

_WORDS: Mapping[Kind, Mapping[str, str]] = {
    "mlm": {
        "what": "masked language model (BERT)",
        "class": "AutoModelForMaskedLM",
        "task": "fill-mask",
        "asked": "hidden tokens",
    },
    "clm": {
        "what": "causal language model (Llama)",
        "class": "AutoModelForCausalLM",
        "task": "text-generation",
        "asked": "next tokens",
    },
}

_CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: {task}
tags: [synthetic, restack]
---

# restack/demo-{kind}

A {what} of 12 layers, 128 wide, trained from scratch on a
**synthetic language**: texts that a grammar makes from a seed. The words look like English, and the
sentences say nothing about the world.

**For** seeing what restack does without a network, and for tests that need a model which has
learned something. restack takes it as `restack/demo-{kind}` wherever a model is named; it is an
ordinary directory for `{class}.from_pretrained`.

**Not for** any use as a language model. It knows one small grammar and about 600 words. What layers
do in it need not be what layers do in a model of a natural language.

## Training

`python -m restack.demo.pretrain {kind} --seed {seed} -o DIRECTORY`

{steps:,} updates, {tokens:,} tokens of {rows:,} different rows of text, {minutes:.0f} minutes on
{device}. The loss as it went and all settings are in `training.json`. On {asked_tokens:,} {asked}
of texts that it has not seen: loss {loss:.3f}, accuracy {accuracy:.1%}.

## Data, bias, licence

No text by people was used, so nothing of anybody is in it. Names and pronouns are tied by rule
(`Mira` is a she, `Arlo` is a he), all else is drawn by chance. Apache-2.0, as restack itself.
"""


def card(kind: Kind, record: Mapping[str, Any]) -> str:
    """The README.md of a model directory, from the record of its training."""
    how, held_out = record["schooling"], record["validation"]
    return _CARD.format(
        kind=kind,
        **_WORDS[kind],
        seed=how["seed"],
        steps=how["steps"],
        rows=how["rows"],
        tokens=record["tokens"],
        minutes=record["seconds"] / 60,
        device="a GPU" if record["device"] == "cuda" else "one CPU core",
        asked_tokens=round(held_out["tokens"]),
        loss=held_out["loss"],
        accuracy=held_out["accuracy"],
    )
