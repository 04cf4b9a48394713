from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from restack.data.tasks import Task
from restack.errors import DataError


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def labelled(path: Path, labels: list[Any]) -> Path:
    return jsonl(path, [{"text": f"text {i}", "y": label} for i, label in enumerate(labels)])


@pytest.mark.parametrize(
    ("values", "kind", "labels"),
    [
        (["b", "a", "b"], "classification", ("a", "b")),
        ([10, 9, 10], "classification", ("9", "10")),
        ([1.0, 0.0], "classification", ("0", "1")),
        ([True, False], "classification", ("0", "1")),
        ([0.5, 1.0], "regression", ()),
        ([["x"], [], ["y", "x"]], "multilabel", ("x", "y")),
    ],
)
def test_kind_and_labels_from_the_values(
    tmp_path: Path, values: list[Any], kind: str, labels: tuple[str, ...]
) -> None:
    task = Task.from_file(labelled(tmp_path / "own.jsonl", values), label="y")
    assert (task.kind, task.labels, task.columns) == (kind, labels, ("text",))
    assert (task.name, task.data) == ("own", str(tmp_path / "own.jsonl"))


def test_whole_numbers_are_a_regression_only_if_told(tmp_path: Path) -> None:
    path = labelled(tmp_path / "own.jsonl", [1, 2, 3])
    assert Task.from_file(path, label="y").labels == ("1", "2", "3")
    task = Task.from_file(path, label="y", kind="regression")
    assert (task.labels, task.outputs, task.metrics[0]) == ((), 1, "pearson")


def test_multilabel_in_csv(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("text,tags\nx,a;b\ny,b\nz,\n")
    task = Task.from_file(tmp_path / "own.csv", label="tags", kind="multilabel", columns="text")
    assert task.labels == ("a", "b")


def test_a_directory_is_described_by_its_train_split(tmp_path: Path) -> None:
    labelled(tmp_path / "train.jsonl", ["a", "b"])
    labelled(tmp_path / "validation.jsonl", ["a"])
    task = Task.from_file(tmp_path, label="y", labels=("b", "a"))
    assert task.labels == ("b", "a")
    assert Task.from_file(tmp_path, label="y").labels == ("a", "b")


def test_two_columns_and_a_label_of_text(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "x.jsonl", [{"q": "a", "s": "b", "y": "n"}, {"q": "", "s": "", "y": "m"}]
    )
    assert Task.from_file(path, columns=("q", "s"), label="y").columns == ("q", "s")
    with pytest.raises(DataError, match="which column holds the texts"):
        Task.from_file(path, label="y")


def test_language_modelling_has_no_label(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("x\n")
    task = Task.from_file(tmp_path, kind="lm")
    assert (task.label, task.columns, task.metrics) == (None, ("text",), ("perplexity",))


def test_bad_labels(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"which column holds the labels\? Columns: text, y"):
        Task.from_file(labelled(tmp_path / "a.jsonl", [0, 1]))
    with pytest.raises(DataError, match="no column 'z'"):
        Task.from_file(tmp_path / "a.jsonl", label="z")
    with pytest.raises(DataError, match="all rows have the label '1'"):
        Task.from_file(labelled(tmp_path / "a.jsonl", [1, 1]), label="y")
    with pytest.raises(DataError, match="labels of different types"):
        Task.from_file(labelled(tmp_path / "a.jsonl", [1, "x"]), label="y")
    with pytest.raises(DataError, match="there is no label"):
        Task.from_file(labelled(tmp_path / "a.jsonl", [None, None]), label="y")
    with pytest.raises(DataError, match="no such file"):
        Task.from_file(tmp_path / "nosuch.csv", label="y")
