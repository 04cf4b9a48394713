"""The models that a study is about: what its definition has to know of them, and no more."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from restack.errors import RestackError
from restack.sweep.trial import Model

_HEADED = re.compile(r"(ForMaskedLM|ForPreTraining|ForCausalLM|LMHeadModel|WithLMHead\w*)$")
_CAUSAL = re.compile(r"(ForCausalLM|LMHeadModel)$")


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, and the facts by which its trials are laid out."""

    name: str
    model: Model
    depth: int
    shared: bool = False
    """All layers are one set of weights, as in ALBERT."""
    head: bool = True
    """The checkpoint holds a language-modelling head."""
    causal: bool = False
    published: Mapping[str, str] | None = None
    """What the tables of a study call it, by study, if it is one of the paper's own models."""

    def named(self, study: str) -> str | None:
        """Its name in the published tables of a study."""
        return (self.published or {}).get(study)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Subject:
        """What `to_json` gave."""
        return cls(**{**values, "model": Model(**values["model"])})


def _of(
    location: str, depth: int, *, shared: bool = False, head: bool = True, **published: str
) -> Subject:
    name = location.rpartition("/")[2]
    return Subject(name, Model(location), depth, shared, head, False, published)


PAPERS: dict[str, tuple[Subject, ...]] = {
    # whole-word masking and the second version of ALBERT: duplicate v1, section 4
    "duplicate": (
        _of("google-bert/bert-base-uncased", 12, duplicate="BERT-base", drop="BERT"),
        _of("google-bert/bert-large-uncased-whole-word-masking", 24, duplicate="BERT-large"),
        _of("albert/albert-base-v2", 12, shared=True, duplicate="ALBERT-base"),
        _of("albert/albert-large-v2", 24, shared=True, duplicate="ALBERT-large"),
        _of("albert/albert-xlarge-v2", 24, shared=True, duplicate="ALBERT-xlarge"),
        _of("albert/albert-xxlarge-v2", 12, shared=True, duplicate="ALBERT-xxlarge"),
    ),
    # the paper says "BERT" alone; uncased is what the two others use
    "drop": (
        _of("google-bert/bert-base-uncased", 12, duplicate="BERT-base", drop="BERT"),
        _of("FacebookAI/roberta-base", 12, drop="RoBERTa"),
        _of("xlnet/xlnet-base-cased", 12, drop="XLNet"),
        _of("distilbert/distilbert-base-uncased", 6, drop="DistilBERT"),
        _of("distilbert/distilroberta-base", 6, drop="DistilRoBERTa"),
    ),
    "reinit": (_of("google-bert/bert-base-uncased", 12, duplicate="BERT-base", drop="BERT"),),
}
"""The papers' own models."""


def describe(location: str, *, stack: str | None = None, revision: str | None = None) -> Subject:
    """What has to be known of a model, from its config and headers alone."""
    from restack.anatomy.checkpoint import open_checkpoint
    from restack.anatomy.checkpoints import anatomy

    found = open_checkpoint(location, revision=revision)
    layers = anatomy(found).pick(stack)
    classes = [str(name) for name in found.config.get("architectures") or ()]
    known = next(
        (s for group in PAPERS.values() for s in group if s.model.location == location), None
    )
    return Subject(
        location.rstrip("/").rpartition("/")[2],
        Model(location, revision, stack=stack),
        layers.depth,
        bool(layers.facts.shared),
        any(_HEADED.search(name) for name in classes),
        any(_CAUSAL.search(name) for name in classes),
        None if known is None else known.published,
    )


def distinct(subjects: Sequence[Subject]) -> tuple[Subject, ...]:
    """The subjects with names that tell them apart."""
    names = [subject.name for subject in subjects]
    if len({subject.model.location for subject in subjects}) < len(subjects):
        raise RestackError("a model is named twice", hint="Name each model once.")
    return tuple(
        replace(s, name=s.model.location) if names.count(s.name) > 1 else s for s in subjects
    )
