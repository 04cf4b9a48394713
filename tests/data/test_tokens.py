from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from restack.data.tokens import blocks, length_limit, tokenize, tokenizer_identity
from restack.errors import DataError

TEXTS = ["the cat sat on the mat", "a dog", "dogs ran , cats ran"]
PAIRS = [("the cat", "sat"), ("who", "the dog ran on")]


@pytest.mark.parametrize("texts", [TEXTS, PAIRS], ids=["texts", "pairs"])
def test_equal_to_the_tokenizer_on_each_text(tokenizer: Any, texts: list[Any]) -> None:
    tokens = tokenize(tokenizer, texts)
    assert len(tokens) == len(texts)
    assert tokens.types is not None
    for i, text in enumerate(texts):
        one = tokenizer(*([text] if isinstance(text, str) else text), return_special_tokens_mask=1)
        where = slice(tokens.offsets[i], tokens.offsets[i + 1])
        assert tokens.row(i).tolist() == one["input_ids"]
        assert tokens.special[where].tolist() == [m == 1 for m in one["special_tokens_mask"]]
        assert tokens.types[where].tolist() == one["token_type_ids"]


def test_chunks_leave_no_seam(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tokenize(tokenizer, TEXTS)
    monkeypatch.setattr("restack.data.tokens._CHUNK", 2)
    again = tokenize(tokenizer, TEXTS, max_length=1000)  # another key of the cache
    assert np.array_equal(whole.ids, again.ids)
    assert np.array_equal(whole.offsets, again.offsets)


def test_cutting_is_counted(tokenizer: Any) -> None:
    tokens = tokenize(tokenizer, TEXTS, max_length=4)
    assert tokens.lengths.tolist() == [4, 4, 4]
    assert tokens.cut == 2  # "a dog" just fits
    assert tokens.max_length == 4


def test_special_tokens_can_be_left_out(tokenizer: Any) -> None:
    tokens = tokenize(tokenizer, TEXTS, add_special_tokens=False)
    assert not tokens.special.any()
    assert tokens.lengths[1] == 2


def test_without_token_types_and_padding(bare_tokenizer: Any) -> None:
    tokens = tokenize(bare_tokenizer, TEXTS)
    assert tokens.types is None
    assert tokens.pad_id is None


def test_the_cache_is_by_content(tokenizer: Any, bare_tokenizer: Any, cache: Path) -> None:
    def entries() -> int:
        return len(list((cache / "tokens").glob("*.npz")))

    first = tokenize(tokenizer, TEXTS)
    again = tokenize(tokenizer, tuple(TEXTS))
    assert entries() == 1
    assert np.array_equal(first.ids, again.ids)
    tokenize(tokenizer, TEXTS[:2])
    tokenize(tokenizer, TEXTS, max_length=5)
    tokenize(tokenizer, TEXTS, add_special_tokens=False)
    tokenize(bare_tokenizer, TEXTS)
    assert entries() == 5


def test_a_damaged_entry_is_made_again(tokenizer: Any, cache: Path) -> None:
    first = tokenize(tokenizer, TEXTS)
    (path,) = (cache / "tokens").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    assert np.array_equal(tokenize(tokenizer, TEXTS).ids, first.ids)


def test_identity_does_not_depend_on_the_last_call(tokenizer: Any) -> None:
    before = tokenizer_identity(tokenizer)
    tokenizer(TEXTS, truncation=True, max_length=3, padding=True)
    assert tokenizer_identity(tokenizer) == before


def test_identity_changes_with_the_words(bare_tokenizer: Any) -> None:
    import copy

    other = copy.deepcopy(bare_tokenizer)
    other.add_tokens(["more"])
    assert tokenizer_identity(other) != tokenizer_identity(bare_tokenizer)


def test_ids_beyond_the_vocabulary_are_named(tokenizer: Any) -> None:
    tokenize(tokenizer, TEXTS, vocab_size=len(tokenizer))
    with pytest.raises(
        DataError, match=r"text 2 has the token id 23 \(','\).* 23 entries.*does not belong"
    ):
        tokenize(tokenizer, TEXTS, vocab_size=23)


def test_no_real_token_is_an_error(tokenizer: Any) -> None:
    for length in (1, 2):  # at 1 the tokenizer would not cut at all
        with pytest.raises(DataError, match=f"max_length={length} is too short"):
            tokenize(tokenizer, TEXTS, max_length=length)
    with pytest.raises(DataError, match="none in these 2 texts"):
        tokenize(tokenizer, ["", " "])
    with pytest.raises(DataError, match="no texts"):
        tokenize(tokenizer, [])


def test_padding_stands_in_front_only_for_a_class_token_at_the_end(tokenizer: Any) -> None:
    import copy

    from tokenizers import processors

    left = copy.deepcopy(tokenizer)
    left.padding_side = "left"
    assert not tokenize(left, TEXTS).pad_left
    left.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [SEP] [CLS]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    assert tokenize(left, TEXTS).pad_left


def config(**fields: Any) -> Any:
    return SimpleNamespace(**({"model_type": "bert"} | fields))


def test_the_length_limit_is_the_smaller_of_model_and_tokenizer() -> None:
    free = SimpleNamespace(model_max_length=int(1e30))
    short = SimpleNamespace(model_max_length=128)
    assert length_limit(config(max_position_embeddings=512), free) == 512
    assert length_limit(config(max_position_embeddings=512), short) == 128
    assert length_limit(config(), free) is None
    assert length_limit(config(max_position_embeddings=-1), free) is None
    roberta = config(model_type="roberta", max_position_embeddings=514, pad_token_id=1)
    assert length_limit(roberta, free) == 512
    assert length_limit(config(max_position_embeddings=512), short, 256) == 256
    with pytest.raises(DataError, match="600 is more than the 512 positions"):
        length_limit(config(max_position_embeddings=512), free, 600)


def test_blocks_are_full_and_in_order(tokenizer: Any) -> None:
    tokens = tokenize(tokenizer, TEXTS)
    cut = blocks(tokens, 5)
    assert set(cut.lengths.tolist()) == {5}
    assert np.array_equal(cut.ids, tokens.ids[: len(cut) * 5])
    assert len(tokens.ids) - len(cut.ids) < 5
    assert len(cut.special) == len(cut.ids)
    with pytest.raises(DataError, match="do not fill one block"):
        blocks(replace(tokens, types=None), 100)


@pytest.mark.real
@pytest.mark.parametrize("name", ["rxnfp-bert-12L-256", "rxnmapper-albert-12L-256"])
def test_reactions_fit_the_chemistry_models_and_english_does_not(shared: Path, name: str) -> None:
    from transformers import AutoConfig, AutoTokenizer

    from restack.data.texts import load_texts

    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / name)
    config = AutoConfig.from_pretrained(shared / "models" / name)
    texts = load_texts(shared / "data" / "reactions", limit=50).texts
    limit = length_limit(config, tokenizer)
    tokens = tokenize(tokenizer, texts, max_length=limit, vocab_size=config.vocab_size)
    assert tokens.special.sum() == 100
    english = AutoTokenizer.from_pretrained(shared / "models" / "bge-small-en-12L-384")
    with pytest.raises(DataError, match="does not belong to the model"):
        tokenize(english, texts, vocab_size=config.vocab_size)
