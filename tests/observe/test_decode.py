"""Decoded text per layer: right tokens, marks without colour, and odd texts."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from restack.errors import DataError
from restack.observe.decode import Decoded, DecodedText, decode, table
from restack.observe.heads import own_head
from restack.observe.tuned import tune_lens
from tests.families import FAMILIES

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "a", "film", "[red]", "x\ny", "the", "best"]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    model = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    model.pre_tokenizer = WhitespaceSplit()
    model.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESTACK_CACHE", str(tmp_path))


def plain(decoded: DecodedText, width: int = 200) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, no_color=True)
    console.print(table(decoded))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_every_layer_says_what_the_head_says(tokenizer: PreTrainedTokenizerFast) -> None:
    model = FAMILIES["bert"].build()
    (found,) = decode(model, tokenizer, ["a film"])
    with torch.no_grad():
        states = model(torch.tensor([[1, 4, 5, 2]]), output_hidden_states=True).hidden_states
        chances = [model.cls(state)[0, 1:3].softmax(-1) for state in states]
    assert found.tokens == ("a", "film")
    assert len(found.layers) == 6
    for row, chance in zip(found.layers, chances, strict=True):
        assert [token.confidence for token in row] == pytest.approx(chance.max(-1).values.tolist())
        assert [token.right for token in row] == (
            chance.argmax(-1) == torch.tensor([4, 5])
        ).tolist()


def test_a_causal_model_names_the_next_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    (found,) = decode(FAMILIES["llama"].build(), tokenizer, ["a film"])
    assert found.tokens == ("a", "film")  # read from [CLS] and from `a`


def test_texts_come_back_in_their_order(tokenizer: PreTrainedTokenizerFast) -> None:
    texts = ["a", "the best film", "film a"]
    found = decode(FAMILIES["bert"].build(), tokenizer, texts)
    assert [text.text for text in found] == texts
    assert [len(text.tokens) for text in found] == [1, 3, 2]


def test_a_tuned_lens_and_another_head(tokenizer: PreTrainedTokenizerFast) -> None:
    model = FAMILIES["bert"].build()
    ids = torch.tensor([[1, 4, 5, 2]])
    batch = {"input_ids": ids, "special_tokens_mask": ids < 3}
    tuned = tune_lens(model, [batch], epochs=5)
    plain_text, tuned_text = (
        decode(model, tokenizer, ["a film"], tuned=lens)[0] for lens in (None, tuned)
    )
    assert tuned_text.layers[-1] == plain_text.layers[-1]
    assert tuned_text.layers[0] != plain_text.layers[0]
    head = own_head(model)
    (same,) = decode(model, tokenizer, ["a film"], head=head)
    assert same == plain_text


def test_a_tokenizer_of_another_model(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.add_tokens([f"more{i}" for i in range(100)])
    with pytest.raises(DataError, match="does not belong to the model"):
        decode(FAMILIES["bert"].build(), tokenizer, ["more99"])


TEXT = DecodedText(
    "a film",
    "own",
    ("a", "[red]"),
    (
        (Decoded("a", True, 0.9), Decoded("[/b]", False, 0.2)),
        (Decoded("a", True, 0.3), Decoded("[red]", True, 1.0)),
    ),
)


def test_a_table_reads_without_colours() -> None:
    lines = plain(TEXT).splitlines()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert rows == [["text", "", "a [red]"], ["0", "50%", "a ‹[/b]›?"], ["1", "100%", "a? [red]"]]
    assert "‹wrong›" in lines[-1]
    assert "unsure?" in lines[-1]


def test_colours_tell_right_from_wrong_and_sure_from_unsure() -> None:
    cells = list(table(TEXT).columns[2].cells)
    styles = [[str(span.style) for span in cell.spans] for cell in cells[1:]]
    assert styles == [["green", "dim red"], ["dim green", "green"]]


def test_tokens_that_would_break_a_line(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = torch.tensor([[1, 7, 2]])
    assert tokenizer.convert_ids_to_tokens(7) == "x\ny"
    from restack.observe.decode import _shown

    assert _shown(tokenizer, 7) == r"x\ny"
    assert all(_shown(tokenizer, int(i)) for i in ids[0])


def test_json_of_a_decoded_text() -> None:
    found = TEXT.to_json()
    assert found["tokens"] == ["a", "[red]"]
    assert found["layers"][0] == {
        "layer": 0,
        "accuracy": 0.5,
        "tokens": [
            {"token": "a", "right": True, "confidence": 0.9},
            {"token": "[/b]", "right": False, "confidence": 0.2},
        ],
    }
