from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from restack.data.tables import read_hub, read_table, split_files
from restack.errors import DataError


def test_all_formats_give_the_same_columns(tmp_path: Path) -> None:
    rows = [{"text": 'say "hi",\nnow', "label": 1}, {"text": "NA", "label": 0}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "c.json").write_text(json.dumps(rows))
    (tmp_path / "d.csv").write_text('text,label\n"say ""hi"",\nnow",1\nNA,0\n')
    for path in sorted(tmp_path.iterdir()):
        table = read_table(path)
        assert table.strings("text") == ['say "hi",\nnow', "NA"], path
        assert table.values("label") == [1, 0], path
        assert table.text_columns() == ["text"], path


def test_a_text_file_has_a_text_a_line_without_blank_ones(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffone\n\n two \u2028 still two\n".encode())
    assert read_table(tmp_path / "a.txt").strings("text") == ["one", " two \u2028 still two"]


def test_strings_that_look_like_dates_stay_strings_in_json(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "2020-01-01"}\n{"text": "2020-01-02", "n": 1}\n')
    table = read_table(tmp_path / "a.jsonl")
    assert table.strings("text") == ["2020-01-01", "2020-01-02"]
    assert table.values("n") == [None, 1]


def test_csv_types_hold_for_the_whole_file(tmp_path: Path) -> None:
    # a text column that begins with a megabyte of numbers
    (tmp_path / "a.csv").write_text("text\n" + "1234567\n" * 200_000 + "word\n")
    assert read_table(tmp_path / "a.csv").strings("text")[-2:] == ["1234567", "word"]


def test_float32_is_read_as_the_decimal_that_was_meant(tmp_path: Path) -> None:
    table = pa.table({"label": pa.array([3.8, None], pa.float32())})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet").values("label") == [3.8, None]


def test_unknown_column_lists_the_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("sentence,label\nx,1\n")
    with pytest.raises(DataError, match=r"no column 'text'\n.*sentence, label"):
        read_table(tmp_path / "a.csv").values("text")


def test_a_value_that_is_no_text_is_named_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n{"text": 17}\n')
    with pytest.raises(DataError, match=r"a\.jsonl, column 'text', row 1 .* found 17"):
        read_table(tmp_path / "a.jsonl").strings("text")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "cannot be read as csv"),
        ("a.csv", "text,label\n", "no row"),
        ("a.csv", "text,text\nx,y\n", "stand there twice"),
        ("a.csv", "text,label\nx\n", "cannot be read as csv"),
        ("a.txt", "\n\n", "no row"),
        ("a.jsonl", "", "no row"),
        ("a.jsonl", "{broken", "cannot be read as jsonl"),
        ("a.jsonl", '"text"\n', "row 0 is 'text'"),
        ("a.parquet", "PAR0", "cannot be read as parquet"),
        ("a.xlsx", "", "cannot tell the format"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message) as error:
        read_table(tmp_path / name)
    assert name in str(error.value)


def test_a_text_in_another_encoding_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match="cannot be read as txt"):
        read_table(tmp_path / "a.txt")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_table(tmp_path / "a.csv")


def test_splits_are_file_names_and_notes_are_none(tmp_path: Path) -> None:
    for name in ("train.parquet", "validation_matched.jsonl", "LICENSE.txt", "README.md"):
        (tmp_path / name).touch()
    assert sorted(split_files(tmp_path)) == ["train", "validation_matched"]


def test_a_directory_of_texts_has_splits_too(tmp_path: Path) -> None:
    (tmp_path / "train.txt").touch()
    assert list(split_files(tmp_path)) == ["train"]


def test_two_files_for_one_split_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.csv").touch()
    (tmp_path / "train.parquet").touch()
    with pytest.raises(DataError, match=r"train\.csv and train\.parquet"):
        split_files(tmp_path)


def test_a_directory_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data files"):
        split_files(tmp_path)


def test_hub_offline_is_a_named_error() -> None:
    with pytest.raises(DataError, match="nosuch/thing:en, split 'train', cannot be loaded"):
        read_hub("nosuch/thing", "en", "train")


def test_the_route_of_the_hub_on_a_local_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    pq.write_table(pa.table({"text": ["x", "y"]}), tmp_path / "set" / "train.parquet")
    assert read_hub(str(tmp_path / "set"), None, "train").strings("text") == ["x", "y"]
    with pytest.raises(DataError, match="cannot be loaded"):
        read_hub(str(tmp_path / "set"), None, "test")
