"""The known tasks: GLUE, SST-2 by sentences, SNLI, SQuAD, and those of the demo language.

Sizes and label codes are those of the Hub's copies. GLUE's test labels are hidden (-1).
"""

from __future__ import annotations

import difflib

from restack.data import language
from restack.data.tasks import Task
from restack.errors import DataError

_GLUE = "nyu-mll/glue"
_SENTENCES = ("sentence1", "sentence2")
_NLI = ("entailment", "neutral", "contradiction")
_ACCURACY_F1 = ("accuracy", "f1", "combined")


def _sizes(train: int, validation: int, test: int | None = None) -> dict[str, int]:
    sizes = {"train": train, "validation": validation}
    return sizes if test is None else sizes | {"test": test}


def _glue(
    name: str,
    columns: tuple[str, ...],
    labels: tuple[str, ...],
    sizes: dict[str, int],
    metrics: tuple[str, ...] = ("accuracy",),
) -> Task:
    return Task(
        name,
        "classification" if labels else "regression",
        columns,
        "label",
        labels,
        metrics,
        _GLUE,
        name,
        sizes=sizes,
    )


_MNLI = Task(
    "mnli",
    "classification",
    ("premise", "hypothesis"),
    "label",
    _NLI,
    hub=_GLUE,
    config="mnli",
    validation=("validation_matched", "validation_mismatched"),
    test=("test_matched", "test_mismatched"),
    sizes={
        "train": 392702,
        "validation_matched": 9815,
        "validation_mismatched": 9832,
        "test_matched": 9796,
        "test_mismatched": 9847,
    },
)

_OTHERS = (
    Task(
        "sst2_sentence",
        "classification",
        ("sentence",),
        "label",
        ("negative", "positive"),
        hub="SetFit/sst2",
        hub_columns=("text",),
        sizes=_sizes(6920, 872, 1821),
    ),
    Task(
        "snli",
        "classification",
        ("premise", "hypothesis"),
        "label",
        _NLI,
        hub="stanfordnlp/snli",
        sizes=_sizes(549367, 9842, 9824),
        skip=-1,
    ),
    Task(
        "squad",
        "span",
        ("question", "context"),
        "answers",
        metrics=("f1", "exact"),
        test=(),
        hub="rajpurkar/squad",
        sizes=_sizes(87599, 10570),
    ),
    Task(
        "squad_v2",
        "span",
        ("question", "context"),
        "answers",
        metrics=("f1", "exact"),
        test=(),
        hub="rajpurkar/squad_v2",
        sizes=_sizes(130319, 11873),
    ),
    Task(
        "squad_answerable",
        "classification",
        ("question", "context"),
        "answers",
        ("unanswerable", "answerable"),
        test=(),
        hub="rajpurkar/squad_v2",
        sizes=_sizes(130319, 11873),
        folder="squad_v2",
    ),
)


def _made(
    name: str,
    columns: tuple[str, ...],
    labels: tuple[str, ...],
    metrics: tuple[str, ...] = ("accuracy",),
) -> Task:
    """A task in the demo language, in the form of one of the others."""
    return Task(
        f"demo/{name}",
        "classification" if labels else "span",
        columns,
        "label" if labels else "answers",
        labels,
        metrics,
        sizes=language.SIZES,
        folder=f"demo-{name}",
        made=name,
    )


_DEMO = (
    _made("sentiment", ("sentence",), ("negative", "positive")),
    _made("acceptability", ("sentence",), ("unacceptable", "acceptable"), ("matthews", "accuracy")),
    _made("entailment", ("premise", "hypothesis"), _NLI),
    _made("questions", ("question", "context"), (), ("f1", "exact")),
)

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _glue("sst2", ("sentence",), ("negative", "positive"), _sizes(67349, 872, 1821)),
        _glue(
            "cola",
            ("sentence",),
            ("unacceptable", "acceptable"),
            _sizes(8551, 1043, 1063),
            ("matthews", "accuracy"),
        ),
        _glue(
            "mrpc",
            _SENTENCES,
            ("not_equivalent", "equivalent"),
            _sizes(3668, 408, 1725),
            _ACCURACY_F1,
        ),
        _glue(
            "stsb",
            _SENTENCES,
            (),
            _sizes(5749, 1500, 1379),
            ("pearson", "spearman", "combined"),
        ),
        _glue(
            "qqp",
            ("question1", "question2"),
            ("not_duplicate", "duplicate"),
            _sizes(363846, 40430, 390965),
            _ACCURACY_F1,
        ),
        _MNLI,
        _glue(
            "qnli",
            ("question", "sentence"),
            ("entailment", "not_entailment"),
            _sizes(104743, 5463, 5463),
        ),
        _glue("rte", _SENTENCES, ("entailment", "not_entailment"), _sizes(2490, 277, 3000)),
        _glue("wnli", _SENTENCES, ("not_entailment", "entailment"), _sizes(635, 71, 146)),
        *_OTHERS,
        *_DEMO,
    )
}


def get_task(name: str) -> Task:
    """A known task by name; case, `-` and `_` do not matter."""
    plain = {_plain(key): task for key, task in TASKS.items()}
    task = plain.get(_plain(name))
    if task is None:
        near = difflib.get_close_matches(_plain(name), plain, n=1)
        meant = f"Did you mean {plain[near[0]].name}? " if near else ""
        raise DataError(
            f"there is no task {name!r}",
            hint=f"{meant}Known tasks: {', '.join(TASKS)}; or give a labelled file.",
        )
    return task


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(".", "")
