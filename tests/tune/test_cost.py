"""Costs: sizes and FLOPs by hand, ratios and their intervals, processes that fail and end."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModel

from restack.errors import RestackError
from restack.studies import costing
from restack.sweep.kinds import Context
from restack.sweep.trial import Data, Model, Trial
from restack.tune.cost import CostResult, label_plans, measure, ratio, steps
from restack.tune.cost_worker import Runner, Subject, Workload
from restack.tune.interrupts import Stopped
from tests.families import BERT, FAMILIES

HIDDEN, WIDE, LAYERS = 256, 1024, 5  # large enough to be seen beside what a process needs


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("models") / "bert"
    sizes = {"hidden_size": HIDDEN, "intermediate_size": WIDE, "num_attention_heads": 4}
    AutoModel.from_config(AutoConfig.for_model("bert", **BERT | sizes)).save_pretrained(where)
    return where


@pytest.fixture(scope="module")
def measured(bert: Path) -> CostResult:
    """The model, the model again, and a part of it."""
    told: list[int] = []
    subjects = label_plans([str(bert)], ["0-4", "drop:top=4"], None)
    load = Workload(batch=4, length=12, threads=1)
    found = measure(subjects, load, rounds=15, batches=2, level=0.999, progress=told.append)
    assert sum(told) == steps(3, 15)
    return found


def by_hand(layers: int, length: int) -> int:
    """FLOPs of a token in BERT with a classification head: products, with a plus each."""
    linear = 4 * HIDDEN * HIDDEN + 2 * HIDDEN * WIDE
    attention = 2 * length * HIDDEN
    return 2 * layers * (linear + attention)


def test_sizes_are_those_by_hand(measured: CostResult) -> None:
    whole, same, part = measured.costs
    head = 2 * HIDDEN * (HIDDEN + 2)  # pooler and classifier, once a text
    for cost, layers in ((whole, LAYERS), (part, 1)):
        found = cost.facts.flops_per_token * 12
        assert found == pytest.approx(by_hand(layers, 12) * 12 + head)
    assert whole.facts.parameters == same.facts.parameters
    assert whole.facts.nbytes == 4 * whole.facts.parameters
    layer = 4 * HIDDEN * HIDDEN + 2 * HIDDEN * WIDE + 9 * HIDDEN + WIDE
    assert whole.facts.parameters - part.facts.parameters == 4 * layer
    assert (whole.facts.depth, part.facts.depth) == (5, 1)
    assert part.facts.plan == "0"
    assert whole.facts.tokens == (48,)


def test_a_model_beside_itself_has_a_ratio_of_one(measured: CostResult) -> None:
    same = measured.costs[1]
    found = measured.inference(same)
    assert found.low <= 1 <= found.high
    training = measured.training(same)
    assert training is not None
    assert training.low <= 1 <= training.high
    assert measured.sizes(same)["flops_per_token"] == 1
    first = measured.inference(measured.costs[0])
    assert (first.value, first.low, first.high) == (1, 1, 1)


def test_a_part_of_a_model_is_faster(measured: CostResult) -> None:
    part = measured.costs[2]
    assert measured.inference(part).high < 1
    training = measured.training(part)
    assert training is not None
    assert training.high < 1
    for cost in measured.costs:
        assert cost.inference.p50 <= cost.inference.p95
        assert cost.inference.tokens_per_second == pytest.approx(
            12 * cost.inference.examples_per_second
        )
        assert cost.inference_peak >= cost.facts.nbytes


def test_results_are_plain_data(measured: CostResult) -> None:
    said = json.loads(json.dumps(measured.to_json()))
    assert len(said["costs"]) == 3
    assert said["costs"][0]["ratios"]["inference"] == {"value": 1, "low": 1, "high": 1}


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=3, max_size=12))
def test_intervals_hold_the_median_and_turn_over(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = zip(*pairs, strict=True)
    found, other = ratio(ours, theirs), ratio([1.0] * len(ours), [1.0] * len(ours))
    assert min(o / t for o, t in pairs) <= found.low <= found.value * (1 + 1e-9)
    assert found.value <= found.high * (1 + 1e-9) <= max(o / t for o, t in pairs) * (1 + 1e-8)
    assert (other.low, other.value, other.high) == (1, 1, 1)


def test_noise_that_meets_both_does_not_move_a_ratio() -> None:
    noise = [1, 7, 1.5, 3, 1, 9, 2, 1]
    found = ratio([2 * n for n in noise], noise)
    assert (found.low, found.value, found.high) == (2, 2, 2)


def test_memory_of_training_holds_gradients_and_moments(measured: CostResult) -> None:
    for cost in measured.costs[:2]:
        weights = cost.facts.nbytes
        assert weights <= cost.inference_peak < 2.5 * weights
        assert cost.training_peak is not None
        assert 3.5 * weights < cost.training_peak < 8 * weights


@pytest.mark.parametrize(
    "kind", ["classification", "regression", "multilabel", "span", "lm", "mlm"]
)
def test_every_kind_of_head_can_be_run(kind: Any, tmp_path: Path) -> None:
    FAMILIES["llama" if kind == "lm" else "bert"].build().save_pretrained(tmp_path / "m")
    runner = Runner(Subject(str(tmp_path / "m"), "0-1"), Workload(kind, 2, 6))
    before = {name: p.clone() for name, p in runner.model.named_parameters()}
    assert len(runner.infer(2)) == len(runner.train(2)) == 2
    assert any(not before[name].equal(p) for name, p in runner.model.named_parameters())


def test_real_texts_come_in_batches_of_their_order(tmp_path: Path, tokenizer: Any) -> None:
    config = {**BERT, "vocab_size": len(tokenizer)}
    AutoModel.from_config(AutoConfig.for_model("bert", **config)).save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    rows = "\n".join(f"{'the cat sat ' * (1 + i % 3)},{i % 2}" for i in range(7))
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2" / "validation.csv").write_text(f"sentence,label\n{rows}\n")
    load = Workload(batch=3, length=None, task="sst2", data=str(tmp_path))
    facts = Runner(Subject(str(tmp_path / "m")), load).facts()
    assert facts.batches == 3
    assert facts.examples == (3, 3, 1)
    assert facts.tokens == (5 + 8 + 11, 5 + 8 + 11, 5)
    assert facts.data is not None
    assert "7 rows, official 872" in facts.data


def test_what_goes_wrong_in_a_process_is_said(bert: Path, tmp_path: Path) -> None:
    load = Workload(batch=1, length=4)
    with pytest.raises(RestackError, match="cannot be loaded"):
        measure([Subject(str(tmp_path / "none"))], load, rounds=3)
    with pytest.raises(RestackError, match="64 positions"):
        Runner(Subject(str(bert)), Workload(batch=1, length=100))
    with pytest.raises(RestackError, match="rounds give no interval"):
        measure([Subject(str(bert))], load, rounds=2)


ENDLESS = 10_000_000  # batches of a round


def test_a_stop_ends_what_is_being_measured(bert: Path) -> None:
    told: list[int] = []
    with pytest.raises(Stopped):
        measure(
            [Subject(str(bert))],
            Workload(batch=1, length=4, threads=1),
            rounds=3,
            batches=ENDLESS,
            progress=told.append,
            stop=lambda: len(told) == 2,  # loaded, and its memory known: the first round runs
        )
    assert len(told) == 2
    assert not multiprocessing.active_children()


def test_a_trial_of_costs_hears_of_a_stop(tmp_path: Path) -> None:
    settings = {"plans": [None], "batch_size": 4, "max_length": 16}
    model, data = Model("restack/demo-mlm"), Data(limit=4)
    trial = Trial("cost", model, task="demo/sentiment", data=data, settings=settings)
    with pytest.raises(Stopped):
        costing.cost(Context(trial, tmp_path, stop=lambda: True))
    assert not multiprocessing.active_children()


MEASURING = f"""
import sys
from restack.tune.cost import measure
from restack.tune.cost_worker import Subject, Workload
load = Workload(batch=1, length=4, threads=1)
told = lambda count: print("step", flush=True)
measure([Subject(sys.argv[1])], load, rounds=3, batches={ENDLESS}, progress=told)
"""


def test_measuring_processes_end_when_the_one_that_asks_is_killed(bert: Path) -> None:
    asking = subprocess.Popen(
        [sys.executable, "-c", MEASURING, bert],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert asking.stdout
    for _ in range(2):
        assert asking.stdout.readline() == "step\n"
    asking.kill()
    asking.communicate(timeout=60)  # the pipe ends when all who could write to it are gone


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_memory_that_was_freed_is_used_again() -> None:
    """What a process happened to free before decides otherwise, and with it a tenth of the time."""
    code = """
import ctypes, sys
from restack.tune.cost_worker import _status, _steady_memory
import torch
_steady_memory()
held = torch.ones(20_000_000, dtype=torch.uint8)
full = _status("VmRSS")
del held
print(full - _status("VmRSS"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 10_000_000
