"""What a run leaves: a directory that other tools load, and the truth about it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from transformers import AutoTokenizer, pipeline

from restack import verify
from restack.data.glue import TASKS
from restack.surgery.disk import edit
from restack.tune import Recipe, tune
from restack.tune.mean_pool import load_mean_pool
from restack.tune.predictions import Predictions
from tests.tune import tiny
from tests.tune.tiny import QUICK, same


def write(where: Path, recipe: Recipe = QUICK, **options: Any) -> Any:
    options.setdefault("train", tiny.sentiment())
    options.setdefault("validation", {"validation": tiny.sentiment(16, 1, "validation")})
    model = options.pop("model", None) or str(tiny.save(tiny.bert(), where / "bert"))
    out = where / "out"
    return out, tune(
        model,
        options.pop("train"),
        options.pop("validation"),
        recipe,
        out=out,
        device="cpu",
        **options,
    )


def test_the_output_is_an_ordinary_model_directory(tmp_path: Path) -> None:
    out, tuned = write(tmp_path, plan="drop:top=2")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    assert same(model, tuned.model)
    assert model.config.num_hidden_layers == 3
    assert model.config.id2label == {0: "bad", 1: "good"}
    assert model.config.problem_type == "single_label_classification"
    said = pipeline("text-classification", model=str(out), device="cpu")("great word1 word2")
    assert said[0]["label"] in ("bad", "good")
    assert sorted(path.name for path in out.iterdir()) == [
        *("README.md", "config.json", "metrics.jsonl", "model.safetensors", "predictions"),
        *("restack.json", "tokenizer.json", "tokenizer_config.json", "tune.json"),
    ]
    assert [path.name for path in tmp_path.iterdir() if path.name != "bert"] == ["out"]
    umask = os.umask(0)
    os.umask(umask)
    assert (out / "model.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask


def test_the_weights_do_what_the_predictions_say(tmp_path: Path) -> None:
    out, tuned = write(tmp_path)
    split = tiny.sentiment(16, 1, "validation")
    kept = Predictions.load(out / "predictions" / "validation.npz")
    assert kept.scores(split)["accuracy"] == tuned.metrics["validation"]["accuracy"]
    tokenizer = AutoTokenizer.from_pretrained(out)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    with torch.no_grad():
        alone = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in split.texts]
    np.testing.assert_allclose(kept.logits, torch.stack(alone).numpy(), atol=1e-5)


def test_numbers_and_record_say_how_it_was_made(tmp_path: Path) -> None:
    out, tuned = write(tmp_path, plan="0-3,4@fresh", init="paper")
    results = json.loads((out / "tune.json").read_text())
    assert results == json.loads(json.dumps(tuned.to_json()))
    assert Recipe.from_json(results["recipe"]) == QUICK
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines == results["curve"]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 17))
    record = json.loads((out / "restack.json").read_text())
    assert (record["plan"], record["seed"], record["init"]) == ("0-3,4@fresh", 0, "paper")
    assert record["tuned"]["metrics"] == results["metrics"]
    report = verify(str(out))
    assert report.ok
    assert any("plan 0-3,4@fresh of 5 layers" in line for line in report.checked)


def test_a_model_that_was_edited_before_keeps_its_history(tmp_path: Path) -> None:
    whole = tiny.save(tiny.bert(), tmp_path / "whole")
    edit(str(whole), "drop:top=1", tmp_path / "short")
    out, tuned = write(tmp_path, model=str(tmp_path / "short"))
    record = json.loads((out / "restack.json").read_text())
    assert (record["plan"], tuned.plan) == ("0-3", None)
    assert record["source_record"]["plan"] == "0-3"
    assert record["source_record"]["source_depth"] == 5


def test_the_card_names_task_data_scores_plan_and_settings(tmp_path: Path) -> None:
    part = replace(
        tiny.sentiment(16, 1, "validation"), partial="16 rows, official 872", task=TASKS["sst2"]
    )
    train = replace(tiny.sentiment(), task=TASKS["sst2"])
    out, tuned = write(
        tmp_path, replace(QUICK, clip=0.5), plan="drop:top=2", train=train, validation={"v": part}
    )
    card = ModelCard.load(out / "README.md")
    assert card.data.library_name == "transformers"
    assert card.data.pipeline_tag == "text-classification"
    assert card.data.datasets == ["nyu-mll/glue"]
    assert card.data.base_model is None  # a directory is no model of the Hub
    (result,) = card.data.eval_results
    assert result.metric_value == tuned.metrics["v"]["accuracy"]
    assert result.dataset_name == "sst2 (16 rows, official 872)"
    for text in (
        "5 -> 3 layers",
        "`0-2`",
        "sst2/validation: 16 examples (16 rows, official 872)",
        "not in the checkpoint, so drawn anew: classifier.bias, classifier.weight",
        "clip 0.5",
        "rate 0.003",
        f"| {tuned.metrics['v']['accuracy']:.4f} |",
    ):
        assert text in card.text, text


def test_a_mean_pool_head_lies_beside_an_ordinary_body(tmp_path: Path) -> None:
    out, tuned = write(tmp_path, replace(QUICK, head="mean-pool"))
    assert same(load_mean_pool(out), tuned.model)
    assert transformers.AutoModel.from_pretrained(out).config.num_hidden_layers == 5
    assert "load_mean_pool" in (out / "README.md").read_text()


@pytest.mark.parametrize("kind", ["lm", "mlm"])
def test_language_models_are_written_too(kind: str, tmp_path: Path) -> None:
    causal = kind == "lm"
    task = tiny.LM if causal else tiny.MLM
    source = tiny.llama(tie_word_embeddings=True) if causal else tiny.bert(cls="BertForMaskedLM")
    out, tuned = write(
        tmp_path,
        replace(QUICK, max_length=16),
        model=str(tiny.save(source, tmp_path / "source")),
        train=tiny.stories(task=task),
        validation={"validation": tiny.stories(16, 1, "validation", task)},
    )
    auto = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForMaskedLM
    assert same(auto.from_pretrained(out), tuned.model)
    assert not (out / "predictions").exists()
    assert json.loads((out / "config.json").read_text()).get("use_cache", True) is True


def test_what_tensorboard_is_told_stays_with_the_output(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out, tuned = write(tmp_path, trackers=("tensorboard",))

    events = EventAccumulator(str(out / "runs" / tuned.task))
    events.Reload()
    told = {event.step: event.value for event in events.Scalars("loss")}
    losses = {line["step"]: line["loss"] for line in tuned.curve if "loss" in line}
    assert told == pytest.approx(losses)
    assert events.Scalars("metrics/validation/accuracy")[-1].value == pytest.approx(
        [line["metrics"] for line in tuned.curve if "metrics" in line][-1]["validation"]["accuracy"]
    )


def test_trackers_that_are_not_installed_or_known_are_named(tmp_path: Path) -> None:
    from accelerate.utils import is_mlflow_available

    with pytest.raises(Exception, match="there is no tracker 'tensorbord'"):
        write(tmp_path, trackers=("tensorbord",))
    if not is_mlflow_available():
        with pytest.raises(Exception, match="needs a library that is not installed"):
            write(tmp_path, trackers=("mlflow",))
    assert [path.name for path in tmp_path.iterdir()] == ["bert"]
