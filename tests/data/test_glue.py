from __future__ import annotations

import pytest

from restack.data.glue import TASKS, get_task
from restack.data.metrics import METRICS
from restack.errors import DataError


def test_all_tasks_are_there() -> None:
    glue = {"sst2", "cola", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"}
    others = {"sst2_sentence", "snli", "squad", "squad_v2", "squad_answerable"}
    demo = {f"demo/{name}" for name in ("sentiment", "acceptability", "entailment", "questions")}
    assert set(TASKS) == glue | others | demo
    assert all(name == task.name for name, task in TASKS.items())


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_sound(name: str) -> None:
    task = TASKS[name]
    assert 1 <= len(task.columns) <= 2
    assert task.hub or task.made
    assert {task.train, *task.validation} <= set(task.sizes)
    assert (task.kind == "classification") == (len(task.labels) >= 2)
    if task.kind != "span":
        assert set(task.metrics) <= {*METRICS, "combined"}
        assert task.metrics[0] != "combined"
    assert hash(task) == hash(TASKS[name])


def test_facts() -> None:
    assert TASKS["mnli"].validation == ("validation_matched", "validation_mismatched")
    assert TASKS["rte"].labels[1] == "not_entailment"
    assert TASKS["wnli"].labels[1] == "entailment"
    assert TASKS["qqp"].sizes["train"] == 363846
    assert TASKS["cola"].metrics[0] == "matthews"
    outputs = [TASKS[n].outputs for n in ("sst2", "mnli", "stsb", "squad")]
    assert outputs == [2, 3, 1, 2]


@pytest.mark.parametrize("name", ["SST-2", "sst2", "STS-B", "squad2", "MNLI", "SQuAD_v2"])
def test_names_are_forgiving(name: str) -> None:
    if name == "squad2":
        with pytest.raises(DataError, match="Did you mean squad"):
            get_task(name)
    else:
        assert get_task(name).name in TASKS


def test_an_unknown_task_lists_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"no task 'sts2'\nDid you mean .* Known tasks: sst2, cola"):
        get_task("sts2")
