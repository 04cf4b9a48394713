"""A study from its trials to its page of findings, on a tiny model with generated data."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from restack.cli.study import _of_request, _request, _run
from restack.studies.findings import Findings
from restack.studies.known import FINDINGS, definition
from restack.sweep.executor import Ended, Event
from restack.sweep.store import Store
from restack.sweep.work import Job, perform
from tests.observe.reviews import BAD, GOOD, OTHER
from tests.tune import tiny

WORDS = (*GOOD, *BAD, *OTHER[:12])


class Here:
    """An executor without processes: each job is done when its end is asked for."""

    workers, kind = 1, "here"

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def has_room(self, size: int) -> bool:
        return not self.jobs

    def submit(self, job: Job, size: int) -> None:
        self.jobs.append(job)

    def events(self, seconds: float) -> list[Event]:
        return [Ended(perform(self.jobs.pop()))] if self.jobs else []

    def stop(self) -> None:
        self.jobs.clear()

    def close(self) -> None:
        self.jobs.clear()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with models and data: sentences with one of two words are positive."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

    where = tmp_path_factory.mktemp("study")
    torch.manual_seed(0)
    tokenizer = tiny.tokenizer()
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 128,
    }
    BertForMaskedLM(BertConfig(**sizes)).save_pretrained(where / "bert")
    llama = LlamaConfig(**sizes, num_key_value_heads=2, pad_token_id=0)
    LlamaForCausalLM(llama).save_pretrained(where / "llama")
    for name in ("bert", "llama"):
        tokenizer.save_pretrained(where / name)
    draw = random.Random(0)
    for task in ("sst2", "sst2_sentence"):
        for split, count in (("train", 240), ("validation", 48)):
            path = where / "data" / task / f"{split}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["sentence", "label"])
                for _ in range(count):
                    words = [draw.choice(WORDS) for _ in range(draw.randint(3, 9))]
                    writer.writerow([" ".join(words), int(GOOD[0] in words or GOOD[1] in words)])
    return where


@pytest.fixture(scope="module")
def redo(place: Path) -> Callable[[str, str], Findings]:
    """Runs a study at the smoke scale in the one store."""

    def run(name: str, model: str) -> Findings:
        texts = str(place / "data" / "sst2")
        request = _request(
            name,
            [str(place / model)],
            "smoke",
            None,
            str(place / "data"),
            [],
            texts if name in ("shortgpt", "repeat", "upscale", "gromov", "shortened") else None,
            "paper",
            None,
            None,
            None,
        )
        summary, found = _run(request, place / "store", Here, 1, "cpu", 1, False, silent=True)
        assert summary.failed == 0, summary.failures
        assert summary.left == 0
        again, same = _run(request, place / "store", Here, 1, "cpu", 1, False, silent=True)
        assert again.ran == 0
        assert same == found
        with Store.open(place / "store") as store:
            rows = store.rows(study=name)
            every = _of_request(rows, definition(request, rows))
            assert FINDINGS[name](every) == found
        assert Findings.from_json(found.to_json()) == found
        return found

    return run


def keys(found: Findings) -> set[str]:
    return {*(figure.key for figure in found.figures), *(table.key for table in found.tables)}


def test_duplicate(redo: Callable[[str, str], Findings]) -> None:
    found = redo("duplicate", "bert")
    assert keys(found) == {
        *("lens", "untrained", "depths", "rules", "ensembles"),
        *("table-lens", "table-depths"),
    }
    lens = next(figure for figure in found.figures if figure.key == "lens")
    assert {series.name for series in lens.series} == {"pretrained", "fine-tuned"}
    assert [point.x for point in lens.series[0].points] == [0, 1, 2, 3, 4]
    assert len(found.decoded[0].layers) == 5
    by_claim = {verdict.claim: verdict for verdict in found.verdicts}
    assert by_claim["large-is-different"].status == "not applicable"
    assert by_claim["embeddings-decode-less"].figure == "lens"


def test_drop(redo: Callable[[str, str], Findings]) -> None:
    found = redo("drop", "bert")
    assert {
        *("strategies", "classifiers", "moved", "table-loss", "table-tasks"),
        *("table-contribution", "table-cost", "table-again"),
    } <= keys(found)
    cost = next(table for table in found.tables if table.key == "table-cost")
    assert [row[0] for row in cost.rows] == [0, 1, 2]
    millions = [row[1] for row in cost.rows]
    assert millions == sorted(millions, reverse=True)
    assert found.provenance is not None
    assert found.provenance.splits[0].rows in (96, 48)


def test_reinit(redo: Callable[[str, str], Findings]) -> None:
    found = redo("reinit", "bert")
    assert {"incremental", "scatter", "blocks", "orders", "table-incremental"} <= keys(found)
    curve = next(figure for figure in found.figures if figure.key == "incremental")
    by_name = {series.name: series for series in curve.series}
    assert [point.x for point in by_name["100 examples"].points] == [0, 2, 4]
    assert all(point.low is not None for point in by_name["100 examples"].points)  # three trials
    assert len(by_name["probes"].points) == 5


@pytest.mark.parametrize("name", ["shortgpt", "gromov", "shortened", "upscale", "repeat"])
def test_successors(redo: Callable[[str, str], Findings], name: str) -> None:
    found = redo(name, "llama")
    assert found.figures
    assert all(verdict.status != "undecided" or verdict.why for verdict in found.verdicts)
    if name == "upscale":
        by_claim = {verdict.claim: verdict.status for verdict in found.verdicts}
        assert by_claim["noop-changes-nothing"] == "seen"  # exact, whatever the weights
    if name == "repeat":
        (figure,) = found.figures
        assert len(figure.cells) == 4 * 5 / 2
