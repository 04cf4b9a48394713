from __future__ import annotations

from pathlib import Path

import pytest

from restack.data.texts import load_texts
from restack.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.csv").write_text("sentence,label\nt,1\n")
    (tmp_path / "validation.csv").write_text("sentence,label\nv,1\nw,0\n")
    return tmp_path


def test_given_texts() -> None:
    texts = load_texts(["one", "two"])
    assert list(texts.texts) == ["one", "two"]
    assert (texts.split, texts.partial) == (None, None)


def test_the_fingerprint_is_of_the_texts_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert load_texts(tmp_path / "a.txt").fingerprint == load_texts(["one", "two"]).fingerprint
    assert load_texts(["one"]).fingerprint != load_texts(["two"]).fingerprint


def test_a_directory_gives_validation_or_the_split_that_is_asked_for(folder: Path) -> None:
    assert load_texts(folder).split == "validation"
    assert load_texts(str(folder), split="train").texts == ("t",)
    with pytest.raises(DataError, match=r"no split 'test'\n.*train, validation"):
        load_texts(folder, split="test")


def test_the_only_split_need_not_be_named(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("x\n")
    assert load_texts(tmp_path).split == "corpus"


def test_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("question,answer,n\nq,a,1\n")
    assert load_texts(path, column="answer").texts == ("a",)
    assert load_texts(path, column="question,answer").texts == (("q", "a"),)
    assert load_texts(path, column=("answer", "question")).texts == (("a", "q"),)
    with pytest.raises(DataError, match=r"Columns of text: question, answer; all: .*n"):
        load_texts(path)
    with pytest.raises(DataError, match="no column 'nosuch'"):
        load_texts(path, column="nosuch")
    with pytest.raises(DataError, match="expected text, found 1"):
        load_texts(path, column="n")
    with pytest.raises(DataError, match="one or two columns"):
        load_texts(path, column="question,answer,n")


def test_a_column_named_text_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("title,text\nt,x\n")
    assert load_texts(tmp_path / "a.csv").texts == ("x",)


def test_limit_and_empty_texts_are_said() -> None:
    texts = load_texts(["a", " ", "b", "c"], limit=2)
    assert texts.texts == ("a", "b")
    assert texts.partial == "1 empty texts left out, the first 2 of 3 texts"
    assert load_texts(["a"], limit=5).partial is None


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ([], {}, "no text"),
        (["", "  "], {}, "all 2 texts are empty"),
        (["a"], {"limit": 0}, "leaves no text"),
        (["a"], {"column": "x"}, "no column"),
        ("nosuch.parquet", {}, "no such file"),
        ("./no such place", {}, "no such file or directory"),
        ("/nosuch/nosuch/nosuch", {}, "no such file or directory"),
        ("nosuch/thing:en", {}, "cannot be loaded from the Hub"),
    ],
)
def test_bad_sources(source: str | list[str], options: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_texts(source, **options)  # type: ignore[arg-type]


def test_a_file_has_no_splits(folder: Path) -> None:
    assert load_texts(folder / "train.csv", split="train").texts == ("t",)
    with pytest.raises(DataError, match="no split 'test'"):
        load_texts(folder / "train.csv", split="test")


@pytest.mark.real
def test_every_folder_of_the_real_data_gives_texts(shared: Path) -> None:
    folders = [path for path in (shared / "data").iterdir() if path.is_dir()]
    assert folders
    columns = {
        "mnli": "premise,hypothesis",
        "snli": "premise,hypothesis",
        "qnli": "question,sentence",
        "qqp": "question1,question2",
        "squad": "context",
        "squad_v2": "context",
    }
    for path in folders:
        pairs = "sentence1,sentence2" if path.name in ("mrpc", "rte", "stsb") else None
        split = "validation_matched" if path.name == "mnli" else "validation"
        texts = load_texts(path, column=columns.get(path.name, pairs), split=split, limit=20)
        assert len(texts) == 20
        assert texts.partial is not None
        assert texts.partial.startswith("the first 20 of")
