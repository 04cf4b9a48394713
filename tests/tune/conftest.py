"""The tiny tokenizer of the tests of data, and a cache of each test's own."""

from __future__ import annotations

from tests.data.conftest import bare_tokenizer, cache, tokenizer

__all__ = ["bare_tokenizer", "cache", "tokenizer"]
