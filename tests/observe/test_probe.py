"""Probes of small models on made-up reviews: what is there is found, and what is not is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from restack.data.splits import Split, load_split
from restack.data.tasks import Task
from restack.errors import DataError, StackError
from restack.observe.linear import Settings
from restack.observe.probe import fresh_model, probe
from restack.observe.probe_data import baseline, draw_trials
from restack.surgery import restack
from tests.observe import reviews

QUICK = Settings(rate=0.01, batch_size=16)
TRAIN = reviews.split("train", 300, 0)
VALIDATION = reviews.split("validation", 100, 1)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESTACK_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def bert() -> PreTrainedModel:
    return reviews.model()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return reviews.tokenizer()


@pytest.mark.parametrize("solver", ["adam", "exact"])
def test_a_planted_signal_is_found(bert: PreTrainedModel, tokenizer: Any, solver: str) -> None:
    settings = replace(QUICK, solver=solver, l2=0.01)
    found = probe(bert, tokenizer, TRAIN, VALIDATION, trials=3, settings=settings)
    assert [layer.layer for layer in found.layers] == list(range(6))
    assert found.baseline["accuracy"] < 0.65
    assert all(layer.mean.mean > 0.8 for layer in found.layers[:3])
    for layer in found.layers:
        assert layer.size == 300
        scores = [one["accuracy"] for one in layer.scores]
        assert len(scores) == layer.mean.n == 3
        assert layer.mean.mean == pytest.approx(np.mean(scores))
        assert layer.mean.low <= layer.mean.mean <= layer.mean.high  # type: ignore[operator]


@pytest.mark.parametrize("solver", ["adam", "exact"])
def test_shuffled_labels_are_not(bert: PreTrainedModel, tokenizer: Any, solver: str) -> None:
    train = reviews.split("train", 300, 0, shuffled=True)
    found = probe(bert, tokenizer, train, VALIDATION, settings=replace(QUICK, solver=solver))
    assert all(0.3 < layer.mean.mean < 0.7 for layer in found.layers)


@pytest.mark.parametrize("task", [reviews.GRADES, reviews.MARKS], ids=lambda task: task.kind)
@pytest.mark.parametrize("solver", ["adam", "exact"])
def test_values_and_marks_are_read_too(
    bert: PreTrainedModel, tokenizer: Any, task: Task, solver: str
) -> None:
    sides = [reviews.split("train", 300, 0, task), reviews.split("validation", 100, 1, task)]
    settings = replace(QUICK, solver=solver, l2=0.1)
    found = probe(bert, tokenizer, *sides, trials=3, settings=settings, layers=[0, 2])
    assert found.metric == task.metrics[0]
    for layer in found.layers:
        assert layer.mean.mean > found.baseline[found.metric] + 0.1
        assert list(layer.scores[0]) == list(task.metrics)
    if task.kind == "regression":
        assert found.baseline["pearson"] == 0
        assert found.layers[0].mean.mean > 0.7


def test_a_decoder_by_its_last_token() -> None:
    model, words = reviews.model("gpt2"), reviews.tokenizer(special=False)
    found = probe(model, words, TRAIN, VALIDATION, trials=3, settings=QUICK, pooling="last")
    # the last token's embedding says less than what attention brought there
    assert found.layers[3].mean.mean > found.layers[0].mean.mean


def test_sizes_are_curves_and_smaller_draws_lie_within_larger_ones(
    bert: PreTrainedModel, tokenizer: Any
) -> None:
    found = probe(
        bert, tokenizer, TRAIN, VALIDATION, layers=[1], trials=4, sizes=[20, 250], settings=QUICK
    )
    assert [layer.size for layer in found.layers] == [20, 250]
    assert found.layers[0].mean.mean < found.layers[1].mean.mean
    small, large = (draw_trials(TRAIN, 4, size, 0.1, 0) for size in (20, 250))
    for one, other in zip(small, large, strict=True):
        assert (len(one.train), len(one.held)) == (18, 2)
        rows, more = {*one.train, *one.held}, {*other.train, *other.held}
        assert len(rows) == 20
        assert rows < more
    assert not np.array_equal(small[0].train, small[1].train)
    again = draw_trials(TRAIN, 2, 20, 0.1, 0)
    assert np.array_equal(again[1].held, small[1].held)
    assert not np.array_equal(draw_trials(TRAIN, 1, 20, 0.1, 1)[0].train, small[0].train)


def test_layers_and_trials_do_not_depend_on_each_other(
    bert: PreTrainedModel, tokenizer: Any
) -> None:
    whole = probe(bert, tokenizer, TRAIN, VALIDATION, trials=3, settings=QUICK)
    part = probe(bert, tokenizer, TRAIN, VALIDATION, trials=2, layers=[4, 2], settings=QUICK)
    assert [layer.layer for layer in part.layers] == [2, 4]
    for layer in part.layers:
        assert layer.losses == pytest.approx(whole.layers[layer.layer].losses[:2], rel=1e-4)
        assert layer.scores == whole.layers[layer.layer].scores[:2]


def test_the_layers_are_run_once(bert: PreTrainedModel, tokenizer: Any) -> None:
    first = probe(bert, tokenizer, TRAIN, VALIDATION, trials=2, settings=QUICK)
    assert first.layer_applications == 5 * (len(TRAIN) + len(VALIDATION))
    again = probe(
        bert, tokenizer, TRAIN, VALIDATION, trials=5, sizes=[50, 90], settings=QUICK, metric=None
    )
    assert again.layer_applications == 0


def test_the_control_is_fresh_and_the_model_stays(tokenizer: Any) -> None:
    """Words mean nothing to fresh weights either way, so the embeddings must tell which it is."""
    bert = reviews.model()
    before = {name: tensor.clone() for name, tensor in bert.state_dict().items()}
    random = torch.get_rng_state()
    settings = replace(QUICK, epochs=5)
    found = {
        kind: probe(
            bert, tokenizer, TRAIN, VALIDATION, trials=2, settings=settings, also_random=kind
        )
        for kind in (True, "model", "layers", False)
    }
    assert [result.control for result in found.values()] == ["model", "model", "layers", None]
    assert found[True].control_layers == found["model"].control_layers
    assert found[False].control_layers == ()
    own, fresh, layers = found[True].layers, found[True].control_layers, found["layers"]
    assert fresh[0].losses != own[0].losses
    assert layers.control_layers[0].losses == own[0].losses  # the same embeddings
    assert layers.control_layers[1].losses != own[1].losses
    assert found[True].layer_applications == 2 * 5 * (len(TRAIN) + len(VALIDATION))
    assert all(torch.equal(before[name], tensor) for name, tensor in bert.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


def test_a_fresh_model_is_of_the_same_kind_and_of_its_seed() -> None:
    model = reviews.model("albert").half()
    first, again, other = (fresh_model(model, "model", seed=seed) for seed in (3, 3, 4))
    assert type(first) is type(model)
    assert first.dtype == torch.float16
    name = "albert.encoder.embedding_hidden_mapping_in.weight"
    states = [one.state_dict()[name] for one in (first, again, other, model)]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])
    assert not torch.equal(states[0], states[3])
    with pytest.raises(DataError, match="no control 'all'"):
        fresh_model(model, "all")  # type: ignore[arg-type]
    with pytest.raises(StackError, match="share"):
        fresh_model(model, "layers")


def test_a_plan_is_probed_as_the_model_it_gives(bert: PreTrainedModel, tokenizer: Any) -> None:
    plain = probe(bert, tokenizer, TRAIN, VALIDATION, trials=2, settings=QUICK)
    short = probe(restack(bert, "0-1"), tokenizer, TRAIN, VALIDATION, trials=2, settings=QUICK)
    assert [layer.layer for layer in short.layers] == [0, 1, 2]
    for ours, whole in zip(short.layers, plain.layers, strict=False):
        assert ours.losses == pytest.approx(whole.losses, rel=1e-4)


def test_json_holds_all_of_it(bert: PreTrainedModel, tokenizer: Any) -> None:
    told = []
    found = probe(
        bert,
        tokenizer,
        TRAIN,
        VALIDATION,
        trials=3,
        sizes=[60],
        settings=QUICK,
        also_random=True,
        progress=lambda *said: told.append(said),
    )
    read = json.loads(json.dumps(found.to_json()))
    assert read["task"] == "reviews"
    assert read["train"] == "reviews/train"
    assert read["settings"]["solver"] == "adam"
    assert len(read["layers"]) == len(read["control_layers"]) == 6
    row = read["layers"][2]
    assert (row["layer"], row["size"], row["n"], len(row["trials"])) == (2, 60, 3, 3)
    assert row["low"] <= row["mean"] <= row["high"]
    sides = {"training", "validation"}
    labels = {f"features of {side}" for side in sides} | {"epochs of readers of 60 examples"}
    counts: dict[str, list[int]] = {}
    for what, done, *_ in told:
        counts.setdefault(what, []).append(done)
    assert counts.keys() == labels | {f"{label}, control" for label in labels}
    assert all(each == sorted(each) for each in counts.values())


def test_baselines_know_the_training_labels_alone() -> None:
    labels = [1, 1, 0, 1]
    train = replace(VALIDATION, texts=["dull"] * 4, labels=labels, ids=range(4))
    assert baseline(train, replace(train, labels=[0, 0, 0, 1])) == {"accuracy": 0.25}
    marks = replace(train, task=reviews.MARKS, labels=[(0,), (0, 2), (0, 2), (1, 2)])
    assert baseline(marks, marks)["f1_micro"] == pytest.approx(2 * 6 / (8 + 7))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"layers": [6]}, "layers 6 cannot be probed"),
        ({"layers": []}, r"layers \(none\)"),
        ({"trials": 0}, "0 trials"),
        ({"sizes": [301]}, "300 examples; trials of 301"),
        ({"sizes": [2]}, "trials of 2"),
        ({"held_out": 0.0}, "the part 0 is held out"),
        ({"held_out": 0.999}, "the part 0.999 is held out"),
        ({"metric": "f1"}, "'f1' is no metric of reviews"),
        ({"also_random": "head"}, "no control 'head'"),
    ],
)
def test_options_that_cannot_be(
    bert: PreTrainedModel, tokenizer: Any, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        probe(bert, tokenizer, TRAIN, VALIDATION, **changed)


def changed(split: Split, **fields: Any) -> Split:
    return replace(split, fingerprint="another", **fields)


@pytest.mark.parametrize(
    ("train", "validation", "said"),
    [
        (TRAIN, TRAIN, "are the same examples"),
        (changed(TRAIN, labels=[1] * 300), VALIDATION, "have the label 'good'"),
        (changed(TRAIN, labels=[1] * 299 + [0]), VALIDATION, "trial 0 all have one label"),
        (changed(TRAIN, labels=[1] * 299 + [None]), VALIDATION, "without a label"),
        (TRAIN, changed(VALIDATION, labels=[None] * 100), "without a label"),
        (TRAIN, reviews.split("validation", 9, 1, reviews.GRADES), "not of one task"),
        (TRAIN, changed(VALIDATION, texts=[""] * 100), "besides special tokens"),
    ],
)
def test_splits_that_cannot_be_probed(
    bert: PreTrainedModel, tokenizer: Any, train: Split, validation: Split, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        probe(bert, tokenizer, train, validation, sizes=[30], settings=QUICK)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (replace(reviews.TASK, kind="span"), "squad_answerable"),
        (replace(reviews.TASK, kind="lm"), "column with labels"),
        (replace(reviews.TASK, metrics=("accuracy", "bleu")), "'bleu' is no metric"),
    ],
)
def test_tasks_that_cannot_be_probed(
    bert: PreTrainedModel, tokenizer: Any, task: Task, said: str
) -> None:
    sides = [replace(split, task=task) for split in (TRAIN, VALIDATION)]
    with pytest.raises(DataError) as caught:
        probe(bert, tokenizer, *sides)
    assert said in str(caught.value)


def test_a_layer_of_no_numbers_is_named(tokenizer: Any) -> None:
    bert = reviews.model()
    with torch.no_grad():
        bert.bert.encoder.layer[3].output.dense.bias[0] = float("nan")
    with pytest.raises(DataError, match="leaves layer 3"):
        probe(bert, tokenizer, TRAIN, VALIDATION)


@pytest.mark.real
def test_later_layers_of_a_real_model_tell_more(shared: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    where = shared / "models" / "bge-small-en-12L-384"
    model = AutoModel.from_pretrained(where, dtype=torch.float32)
    task = Task.from_file(shared / "data" / "sst2", columns="sentence", label="label")
    train = load_split(task, "train", shared / "data" / "sst2", limit=250, seed=0)
    validation = load_split(task, "validation", shared / "data" / "sst2", limit=150, seed=0)
    found = probe(
        model,
        AutoTokenizer.from_pretrained(where),
        train,
        validation,
        trials=3,
        settings=Settings(rate=3e-3),
    )
    by_layer = [layer.mean.mean for layer in found.layers]
    assert by_layer[12] > by_layer[0] + 0.08
    assert by_layer[12] > 0.78
