"""The demo language: texts and labelled examples of any number, made by rule from a seed.

It is no natural language and says nothing about the world. It has what layers are needed for:
agreement over a distance, tense, negation and what it licenses, coreference, numbers that add up,
sentiment that is turned round, classes of things, and rare words.
"""

from __future__ import annotations

from restack.data.language.labelled import MADE, SIZES, columns
from restack.data.language.stories import text

__all__ = ["MADE", "SIZES", "columns", "text"]
