from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from restack.data.glue import TASKS
from restack.data.splits import Split, check_classes, load_split, parted, subsample
from restack.data.tasks import Task
from restack.errors import DataError

SST2 = TASKS["sst2"]


def sentences(path: Path, labels: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"sentence": f"s {i}", "label": label} for i, label in enumerate(labels)]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        path.write_text("sentence,label\n" + "".join(f"s {i},{y}\n" for i, y in enumerate(labels)))
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("name", ["sst2/train.parquet", "train.jsonl", "sst2/train.csv"])
def test_layouts_and_formats_give_the_same_split(tmp_path: Path, name: str) -> None:
    sentences(tmp_path / name, [0, 1, 1])
    split = load_split(SST2, "train", tmp_path)
    assert list(split.texts) == ["s 0", "s 1", "s 2"]
    assert list(split.labels) == [0, 1, 1]
    assert list(split.ids) == [0, 1, 2]
    assert str(split) == "sst2/train (3 rows, official 67,349)"
    other = sentences(tmp_path / "other" / "train.jsonl", [0, 1, 1])
    assert load_split(SST2, "train", other).fingerprint == split.fingerprint


def test_the_fingerprint_covers_the_labels(tmp_path: Path) -> None:
    one = load_split(SST2, "train", sentences(tmp_path / "a" / "train.csv", [0, 1]))
    two = load_split(SST2, "train", sentences(tmp_path / "b" / "train.csv", [1, 0]))
    assert one.fingerprint != two.fingerprint


def test_labels_by_name_and_by_code(tmp_path: Path) -> None:
    sentences(tmp_path / "train.jsonl", ["negative", 1, True, 0.0])
    assert list(load_split(SST2, "train", tmp_path).labels) == [0, 1, 1, 0]


@pytest.mark.parametrize("bad", [2, -1, None, "bad", 0.5, [1]])
def test_a_label_outside_the_set_is_named_with_its_row(tmp_path: Path, bad: Any) -> None:
    sentences(tmp_path / "train.jsonl", [0, 1, bad])
    with pytest.raises(DataError, match=r"train\.jsonl, column 'label', row 2 ") as error:
        load_split(SST2, "train", tmp_path)
    assert f"found {str(bad)!r}, expected one of negative, positive" in str(error.value)


def test_a_number_among_numeric_names_is_a_name(tmp_path: Path) -> None:
    task = Task("stars", "classification", ("sentence",), "label", ("1", "2", "3"))
    sentences(tmp_path / "train.csv", [1, 3])
    assert list(load_split(task, "train", tmp_path).labels) == [0, 2]
    sentences(tmp_path / "train.csv", [0, 3])
    with pytest.raises(DataError, match="found '0'"):
        load_split(task, "train", tmp_path)


def test_hidden_labels_are_said(tmp_path: Path) -> None:
    sentences(tmp_path / "test.csv", [-1, -1])
    with pytest.raises(DataError, match="hidden or missing"):
        load_split(SST2, "test", tmp_path)


def test_snli_leaves_out_rows_without_agreement(tmp_path: Path) -> None:
    (tmp_path / "validation.csv").write_text("premise,hypothesis,label\na,b,-1\nc,d,2\n")
    split = load_split(TASKS["snli"], "validation", tmp_path)
    assert (list(split.texts), list(split.labels), list(split.ids)) == ([("c", "d")], [2], [1])


def test_a_split_of_nothing_but_such_rows_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("premise,hypothesis,label\na,b,-1\n")
    with pytest.raises(DataError, match="no labelled row"):
        load_split(TASKS["snli"], "test", tmp_path)


def test_validation_of_mnli_is_the_matched_one(tmp_path: Path) -> None:
    for name in ("matched", "mismatched"):
        (tmp_path / f"validation_{name}.csv").write_text(f"premise,hypothesis,label\n{name},b,0\n")
    assert load_split(TASKS["mnli"], "validation", tmp_path).name == "validation_matched"
    split = load_split(TASKS["mnli"], "validation_mismatched", tmp_path)
    assert split.texts[0] == ("mismatched", "b")


def test_regression(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("sentence1,sentence2,label\na,b,3.8\nc,d,5\n")
    split = load_split(TASKS["stsb"], "train", tmp_path)
    assert list(split.labels) == [3.8, 5.0]
    (tmp_path / "train.csv").write_text("sentence1,sentence2,label\na,b,3.8\nc,d,nan\n")
    with pytest.raises(DataError, match=r"row 1 .*expected a finite number"):
        load_split(TASKS["stsb"], "train", tmp_path)


def test_multilabel(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("sentence,tags\nx,b;a\ny,\nz,b\n")
    task = Task.from_file(tmp_path, columns="sentence", label="tags", kind="multilabel")
    assert list(load_split(task, "train").labels) == [(0, 1), (), (1,)]
    (tmp_path / "validation.csv").write_text("sentence,tags\nx,b;c\n")
    with pytest.raises(DataError, match=r"row 0 .*expected any of a, b"):
        load_split(task, "validation")


def test_language_modelling(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("x\ny\n")
    split = load_split(Task.from_file(tmp_path, kind="mlm"), "train")
    assert (list(split.texts), list(split.labels)) == (["x", "y"], [None, None])
    assert split.partial is None


CAT: dict[str, Any] = {"text": ["cat"], "answer_start": [4]}
NONE: dict[str, Any] = {"text": [], "answer_start": []}
SQUAD: list[dict[str, Any]] = [
    {"id": "q1", "question": "who", "context": "the cat", "answers": CAT},
    {"id": "q2", "question": "when", "context": "the dog", "answers": NONE},
]


def test_squad(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(SQUAD), tmp_path / "validation.parquet")
    split = load_split(TASKS["squad_v2"], "validation", tmp_path)
    assert list(split.ids) == ["q1", "q2"]
    assert split.texts[0] == ("who", "the cat")
    assert split.labels[0] == {"text": ["cat"], "answer_start": [4]}


def test_squad_as_a_question_of_yes_and_no(tmp_path: Path) -> None:
    (tmp_path / "squad_v2").mkdir()
    pq.write_table(pa.Table.from_pylist(SQUAD), tmp_path / "squad_v2" / "validation.parquet")
    split = load_split(TASKS["squad_answerable"], "validation", tmp_path)
    assert list(split.labels) == [1, 0]


def test_broken_answers_are_named(tmp_path: Path) -> None:
    broken = [SQUAD[0], SQUAD[1] | {"answers": {"text": ["x"], "answer_start": []}}]
    (tmp_path / "validation.jsonl").write_text("\n".join(map(json.dumps, broken)))
    with pytest.raises(DataError, match=r"row 1 .*of equal length"):
        load_split(TASKS["squad_v2"], "validation", tmp_path)


def test_the_folder_of_another_task_is_refused(tmp_path: Path) -> None:
    # CoLA has the same columns as SST-2
    sentences(tmp_path / "cola" / "train.csv", [0, 1])
    with pytest.raises(DataError, match="holds the task cola, not sst2"):
        load_split(SST2, "train", tmp_path / "cola")
    assert len(load_split(TASKS["cola"], "train", tmp_path / "cola")) == 2


def test_missing_things_are_named(tmp_path: Path) -> None:
    sentences(tmp_path / "train.csv", [0, 1])
    with pytest.raises(DataError, match=r"no split 'validation'\n.*train"):
        load_split(SST2, "validation", tmp_path)
    with pytest.raises(DataError, match=r"'validation' was asked for\n.*'train'"):
        load_split(SST2, "validation", tmp_path / "train.csv")
    with pytest.raises(DataError, match="no such file or directory"):
        load_split(SST2, "train", tmp_path / "nosuch")
    with pytest.raises(DataError, match=r"no column 'question'\n.*sentence, label"):
        load_split(TASKS["qnli"], "train", tmp_path)
    with pytest.raises(DataError, match="nyu-mll/glue:sst2, split 'train', cannot be loaded"):
        load_split(SST2, "train")


def test_a_split_that_is_not_official_is_named(tmp_path: Path) -> None:
    sentences(tmp_path / "train_rebuilt.csv", [0, 1])
    assert load_split(SST2, "train_rebuilt", tmp_path).partial == "2 rows, no official split"


def test_limits_and_draws(tmp_path: Path) -> None:
    sentences(tmp_path / "train.csv", [i % 2 for i in range(100)])
    whole = load_split(SST2, "train", tmp_path)
    first = load_split(SST2, "train", tmp_path, limit=10)
    assert list(first.ids) == list(range(10))
    assert first.partial == "100 rows, official 67,349, the first 10 of 100 rows"
    drawn = load_split(SST2, "train", tmp_path, limit=10, seed=3)
    assert drawn == subsample(whole, 10, 3)
    assert str(drawn).endswith("10 of 100 rows drawn with seed 3)")
    assert list(drawn.texts) == [f"s {i}" for i in drawn.ids]
    assert list(drawn.labels) == [i % 2 for i in drawn.ids]  # type: ignore[operator]
    assert len(set(drawn.ids)) == 10
    assert drawn.ids != subsample(whole, 10, 4).ids
    assert drawn.fingerprint not in (whole.fingerprint, subsample(whole, 10, 4).fingerprint)
    assert load_split(SST2, "train", tmp_path, limit=500) == whole
    with pytest.raises(DataError, match="cannot draw 101 of 100"):
        subsample(whole, 101, 0)
    with pytest.raises(DataError, match="leaves no example"):
        load_split(SST2, "train", tmp_path, limit=0)


def test_training_on_one_class_is_refused(tmp_path: Path) -> None:
    sentences(tmp_path / "train.csv", [0, 0, 1])
    split = load_split(SST2, "train", tmp_path)
    check_classes(split)
    with pytest.raises(DataError, match="all 2 examples have the label 'negative'"):
        check_classes(load_split(SST2, "train", tmp_path, limit=2))


PARTIAL = {"mnli/train", "qnli/train", "qqp/train", "qqp/validation", "snli/train"}


@pytest.mark.real
@pytest.mark.parametrize(
    "name", [name for name in TASKS if name != "wnli" and not name.startswith("demo/")]
)
def test_every_real_split_loads_and_says_what_it_is(shared: Path, name: str) -> None:
    task = TASKS[name]
    files = sorted((shared / "data" / (task.folder or name)).glob("*.parquet"))
    assert files
    for path in files:
        split = load_split(task, path.stem, shared / "data", limit=50, seed=0)
        assert len(split) == 50
        assert split.partial is not None
        unofficial = path.stem not in task.sizes
        assert unofficial == ("no official split" in split.partial)
        partial = f"{name}/{path.stem}" in PARTIAL
        assert partial == ("official " in split.partial and not unofficial), split.partial
        if task.kind == "classification":
            assert set(split.labels) <= set(range(len(task.labels)))


@pytest.mark.real
def test_real_labels_of_sts_b_are_the_written_decimals(shared: Path) -> None:
    split = load_split(TASKS["stsb"], "validation", shared / "data")
    assert split.partial is None
    assert all(len(f"{label}") <= len("2.333333") for label in split.labels)
    assert 0 <= min(split.labels) < max(split.labels) <= 5


def test_a_split_is_parted_into_two_that_share_nothing() -> None:
    texts = [f"text {n}" for n in range(20)]
    whole = Split(TASKS["sst2"], "all", texts, [n % 2 for n in range(20)], range(20), "x")
    kept, held = parted(whole, 0.25, seed=3)
    assert (len(kept), len(held)) == (15, 5)
    assert {*kept.texts} | {*held.texts} == {*texts}
    assert list(held.labels) == [int(text.split()[1]) % 2 for text in held.texts]
    again, other = (parted(whole, 0.25, seed=seed)[1] for seed in (3, 4))
    assert again.texts == held.texts != other.texts
    with pytest.raises(DataError, match="cannot be held out") as refused:
        parted(whole, 0.01, seed=0)
    assert "Give more examples" in (refused.value.hint or "")
