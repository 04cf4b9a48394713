"""Every kind of task is learned; equal arguments give equal numbers; what is given stays."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

from restack.errors import DataError, PlanError, RestackError, StackError
from restack.surgery import restack
from restack.tune import Lora, Recipe, tune
from restack.tune.loop import TrainingError
from tests.observe import reviews
from tests.tune import tiny
from tests.tune.tiny import LEARNING, QUICK, same


def tuned(
    model: Any = None, recipe: Recipe = QUICK, task: Any = reviews.TASK, **options: Any
) -> Any:
    """The tiny BERT, tuned on reviews."""
    train = tiny.sentiment(task=task)
    others = {"validation": tiny.sentiment(32, 1, "validation", task=task)}
    return tune(
        tiny.bert() if model is None else model,
        options.pop("train", train),
        options.pop("validation", others),
        recipe,
        tokenizer=tiny.tokenizer(),
        device="cpu",
        **options,
    )


def losses(found: Any) -> list[float]:
    return [line["loss"] for line in found.curve if "loss" in line]


KINDS = {
    "classification": (tiny.sentiment, {}, ("accuracy", 0.85)),
    "regression": (
        lambda *a: tiny.sentiment(*a, task=reviews.GRADES),
        {"epochs": 6},
        ("pearson", 0.8),
    ),
    "multilabel": (lambda *a: tiny.sentiment(*a, task=reviews.MARKS), {}, ("f1_micro", 0.7)),
    "pairs": (tiny.entailment, {"epochs": 12}, ("accuracy", 0.6)),
    "squad": (
        lambda *a: tiny.questions(*a, lacking=False),
        {"epochs": 8, "max_length": 32, "stride": 4},
        ("f1", 0.5),
    ),
    "squad_v2": (tiny.questions, {"epochs": 8, "max_length": 32, "stride": 4}, ("f1", 0.6)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_task_is_learned(kind: str) -> None:
    data, settings, (metric, least) = KINDS[kind]
    found = tuned(
        tiny.learner(),
        replace(LEARNING, **settings),
        train=data(96, 0, "train"),
        validation={"validation": data(48, 1, "validation")},
    )
    assert found.metrics["validation"][metric] >= least
    assert losses(found)[-1] < losses(found)[0]
    assert found.predictions["validation"].scores(data(48, 1, "validation")) == {
        name: value for name, value in found.metrics["validation"].items() if name != "loss"
    }


@pytest.mark.parametrize("settings", [{"max_length": 16}, {"blocks": False}], ids=str)
@pytest.mark.parametrize("kind", ["lm", "mlm"])
def test_language_modelling_is_learned(kind: str, settings: dict[str, Any]) -> None:
    causal = kind == "lm"
    task = tiny.LM if causal else tiny.MLM
    model = tiny.llama() if causal else tiny.bert(cls="BertForMaskedLM", dropout=False)
    recipe = replace(QUICK, epochs=16, mask=0.3, **settings)
    found = tuned(
        model,
        recipe,
        train=tiny.stories(task=task),
        validation={"validation": tiny.stories(16, 1, "validation", task)},
    )
    seen = [
        line["metrics"]["validation"]["perplexity"] for line in found.curve if "metrics" in line
    ]
    assert len(seen) == 16
    assert seen[-1] < 0.6 * seen[0]
    assert found.predictions == {}


def test_both_validations_of_mnli_are_scored_and_the_first_one_picks() -> None:
    others = {
        "validation_matched": tiny.entailment(24, 1, "validation_matched"),
        "validation_mismatched": tiny.entailment(24, 2, "validation_mismatched"),
    }
    found = tuned(train=tiny.entailment(48, 0, "train"), validation=others)
    assert list(found.metrics) == list(found.predictions) == list(others)
    evaluations = [line for line in found.curve if "metrics" in line]
    best = max(evaluations, key=lambda line: line["metrics"]["validation_matched"]["accuracy"])
    assert found.best_step == best["step"]


def test_equal_arguments_give_equal_numbers_and_another_seed_does_not() -> None:
    first, second = tuned(), tuned()
    assert losses(first) == losses(second)
    assert same(first.model, second.model)
    assert losses(tuned(recipe=replace(QUICK, seed=1))) != losses(first)


def test_a_given_model_stays_as_it_is() -> None:
    model = tiny.bert()
    before = tiny.state(model)
    found = tuned(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not torch.equal(before["pooler.dense.weight"], found.model.bert.pooler.dense.weight)


def test_a_directory_gives_the_numbers_of_the_model_in_memory(tmp_path: Path) -> None:
    where = tiny.save(tiny.bert(), tmp_path / "bert")
    assert losses(tuned(str(where), plan="drop:top=2")) == losses(tuned(plan="drop:top=2"))


def test_a_plan_is_applied_and_the_head_is_the_same_for_every_plan() -> None:
    short = tuned(plan="drop:top=2", recipe=replace(QUICK, steps=1, rate=1e-12))
    full = tuned(recipe=replace(QUICK, steps=1, rate=1e-12))
    assert (short.depth, full.depth, short.plan) == (3, 5, "0-2")
    assert short.model.config.num_hidden_layers == 3
    torch.testing.assert_close(short.model.classifier.weight, full.model.classifier.weight)


def test_a_tuned_model_that_is_dropped_and_tuned_again_keeps_its_head() -> None:
    first = tuned()
    again = tuned(first.model, plan="drop:top=1", recipe=replace(QUICK, steps=1, rate=1e-12))
    assert again.notes[0] == "the head is that of the checkpoint"
    torch.testing.assert_close(again.model.classifier.weight, first.model.classifier.weight)
    assert "drawn anew: classifier.bias, classifier.weight" in first.notes[0]


def test_accumulated_batches_are_one_large_batch() -> None:
    model = tiny.bert(dropout=False)
    large = tuned(model, replace(QUICK, batch_size=16))
    small = tuned(model, replace(QUICK, batch_size=4, accumulate=4))
    assert losses(small) == pytest.approx(losses(large), rel=1e-4)
    tokens = tuned(model, replace(QUICK, batch_size=None, batch_tokens=64, accumulate=2))
    assert losses(tokens)[-1] < losses(tokens)[0]


def test_frozen_slots_and_embeddings_do_not_move() -> None:
    model = tiny.bert()
    found = tuned(model, replace(QUICK, freeze=(0, 2), freeze_embeddings=True))
    for name, tensor in found.model.bert.named_parameters():
        still = name.startswith(("encoder.layer.0.", "encoder.layer.2.", "embeddings."))
        assert torch.equal(tensor, model.get_parameter(name)) == still, name


def test_tied_slots_train_tied_and_frozen_together(tmp_path: Path) -> None:
    found = tuned(plan="0-4,1@tied", out=tmp_path / "out")
    layers = found.model.bert.encoder.layer
    assert layers[1].output.dense.weight is layers[5].output.dense.weight
    assert not torch.equal(
        layers[1].output.dense.weight, tiny.bert().encoder.layer[1].output.dense.weight
    )
    # and on disk each slot has what it needs
    again = tuned(str(tmp_path / "out"), replace(QUICK, steps=1, rate=1e-12))
    torch.testing.assert_close(
        again.model.bert.encoder.layer[5].output.dense.weight, layers[1].output.dense.weight
    )
    with pytest.raises(PlanError, match="slots 1, 5 are tied, and only some"):
        tuned(plan="0-4,1@tied", recipe=replace(QUICK, freeze=(5,)))


def test_a_model_in_memory_with_tied_slots_stays_tied() -> None:
    model = restack(tiny.bert(), "0-4,1@tied")
    found = tuned(model)
    layers = found.model.bert.encoder.layer
    assert layers[1].output.dense.weight is layers[5].output.dense.weight
    assert losses(found) == losses(tuned(plan="0-4,1@tied"))


def test_layers_have_rates_of_their_own() -> None:
    model = tiny.bert(dropout=False)
    step = replace(QUICK, steps=1, warmup=0, weight_decay=0, clip=None)
    plain = tuned(model, step, plan="0-3,4@fresh", init="paper")
    faster = tuned(model, replace(step, fresh_factor=5), plan="0-3,4@fresh", init="paper")
    decayed = tuned(model, replace(step, layer_decay=0.5), plan="0-3,4@fresh", init="paper")
    start = restack(model, "0-3,4@fresh", init="paper")

    def moved(found: Any, name: str) -> float:
        return float(
            (found.model.bert.get_parameter(name) - start.get_parameter(name)).abs().max().item()
        )

    name = "encoder.layer.{}.output.dense.weight"
    # the first step of Adam moves each weight by the rate
    for slot, factor, power in ((4, 5, 0), (3, 1, 1), (0, 1, 4)):
        base = moved(plain, name.format(slot))
        assert base == pytest.approx(3e-3, rel=1e-2)
        assert moved(faster, name.format(slot)) == pytest.approx(factor * base, rel=1e-2)
        assert moved(decayed, name.format(slot)) == pytest.approx(0.5**power * base, rel=2e-2)
    words = "embeddings.word_embeddings.weight"
    assert moved(decayed, words) == pytest.approx(0.5**5 * moved(plain, words), rel=2e-2)
    with pytest.raises(RestackError, match="makes no slot fresh"):
        tuned(model, replace(step, fresh_factor=5))


def test_packed_texts_train_as_texts_by_themselves() -> None:
    options: dict[str, Any] = {
        "train": tiny.stories(),
        "validation": {"v": tiny.stories(8, 1, "v")},
    }
    apart = tuned(tiny.llama(), replace(QUICK, blocks=False), **options)
    packed = tuned(tiny.llama(), replace(QUICK, blocks=False, packing=True), **options)
    assert losses(packed) == pytest.approx(losses(apart), rel=1e-4)
    assert packed.metrics["v"]["loss"] == pytest.approx(apart.metrics["v"]["loss"], rel=1e-3)


def test_a_model_that_would_mix_packed_texts_is_refused() -> None:
    from tests.families import FAMILIES

    options: dict[str, Any] = {
        "train": tiny.stories(),
        "validation": {"v": tiny.stories(8, 1, "v")},
    }
    with pytest.raises(StackError, match="packed texts"):
        tuned(FAMILIES["opt"].build(), replace(QUICK, blocks=False, packing=True), **options)
    with pytest.raises(DataError, match="reads in both directions"):
        tuned(FAMILIES["xlnet"].build(), QUICK, **options)


def test_lora_trains_little_and_ends_as_an_ordinary_model() -> None:
    model = tiny.learner(dropout=False)
    names = set(tuned(model).model.state_dict())
    recipe = replace(LEARNING, lora=Lora(rank=4), rate=0.01, epochs=10)
    found = tuned(model, recipe)
    assert set(found.model.state_dict()) == names
    assert found.trained < 0.5 * found.parameters
    assert mean(losses(found)[-8:]) < 0.8 * mean(losses(found)[:8])
    moved = {
        name
        for name, tensor in found.model.bert.named_parameters()
        if not torch.equal(tensor, model.get_parameter(name))
    }
    assert "encoder.layer.0.attention.self.query.weight" in moved
    assert not any(name.startswith("embeddings.") for name in moved)
    assert not any(name.endswith("LayerNorm.weight") for name in moved)
    # the model scores as it did with the updates beside it
    again = tuned(found.model, replace(QUICK, steps=1, rate=1e-12))
    assert again.metrics["validation"]["loss"] == pytest.approx(
        found.metrics["validation"]["loss"], rel=1e-4
    )


def test_lora_of_a_causal_model_leaves_its_head_alone() -> None:
    model = tiny.llama()
    recipe = replace(QUICK, lora=Lora(rank=2), blocks=False)
    found = tuned(model, recipe, train=tiny.stories(), validation={"v": tiny.stories(8, 1, "v")})
    assert torch.equal(found.model.lm_head.weight, model.lm_head.weight)
    with pytest.raises(RestackError, match="slots that are tied"):
        tuned(plan="0-4,1@tied", recipe=replace(QUICK, lora=Lora()))


def test_activations_computed_twice_give_the_same_numbers() -> None:
    twice = tuned(recipe=replace(QUICK, checkpointing=True))
    assert losses(twice) == pytest.approx(losses(tuned()), rel=1e-5)
    assert not twice.model.is_gradient_checkpointing


def test_mean_pool_head(tmp_path: Path) -> None:
    recipe = replace(LEARNING, head="mean-pool")
    found = tuned(tiny.learner(), recipe, out=tmp_path / "out", plan="drop:top=1")
    assert found.metrics["validation"]["accuracy"] > 0.9
    again = tuned(str(tmp_path / "out"), replace(recipe, steps=1, rate=1e-12))
    assert again.notes[0] == "the head is that of the checkpoint"
    assert again.metrics["validation"]["accuracy"] == found.metrics["validation"]["accuracy"]


def test_the_best_weights_are_kept_and_patience_ends_a_run() -> None:
    wild = replace(QUICK, epochs=12, rate=0.05, warmup=0, patience=2, schedule="constant")
    found = tuned(recipe=wild)
    evaluations = [line for line in found.curve if "metrics" in line]
    scores = [line["metrics"]["validation"]["accuracy"] for line in evaluations]
    assert len(evaluations) < 12
    assert "no better accuracy of validation in 2 evaluations" in found.notes[-1]
    assert found.metrics["validation"]["accuracy"] == max(scores)
    assert found.best_step == evaluations[scores.index(max(scores))]["step"]
    assert found.best_step < found.steps
    last = tuned(recipe=replace(wild, keep_best=False))
    assert last.metrics["validation"]["accuracy"] == scores[-1]
    assert last.best_step == last.steps


def test_evaluations_by_steps_and_training_without_any() -> None:
    found = tuned(recipe=replace(QUICK, steps=10, evaluate_every=4))
    assert [line["step"] for line in found.curve if "metrics" in line] == [4, 8, 10]
    alone = tuned(validation={})
    assert alone.metrics == {}
    assert alone.steps == 16


def test_label_smoothing_raises_the_least_loss() -> None:
    sharp = tuned(tiny.learner(), replace(LEARNING, epochs=10))
    smooth = tuned(tiny.learner(), replace(LEARNING, epochs=10, label_smoothing=0.2))
    assert mean(losses(sharp)[-8:]) < 0.3 < mean(losses(smooth)[-8:])
    with pytest.raises(RestackError, match="label smoothing is not defined"):
        tuned(
            recipe=replace(QUICK, label_smoothing=0.1),
            task=reviews.GRADES,
        )


def test_a_loss_that_is_no_number_stops_with_step_rate_and_examples() -> None:
    with pytest.raises(TrainingError) as caught:
        tuned(recipe=replace(QUICK, rate=1e30, warmup=0, clip=None))
    assert "step 2: the loss is nan, at the learning rate 9.37e+29" in caught.value.message
    assert "reviews/train, examples of the batch: " in caught.value.message


def test_bf16_is_close_to_fp32() -> None:
    rough = tuned(tiny.learner(), replace(LEARNING, precision="bf16"))
    exact = tuned(tiny.learner(), LEARNING)
    assert losses(rough) != losses(exact)
    assert losses(rough)[:4] == pytest.approx(losses(exact)[:4], rel=0.02)
    assert all(p.dtype is torch.float32 for p in rough.model.parameters())
    with pytest.raises(RestackError, match="fp16 on a CPU"):
        tuned(recipe=replace(QUICK, precision="fp16"))


def test_what_does_not_fit_is_refused() -> None:
    grades = {"validation": tiny.sentiment(8, 1, "validation", task=reviews.GRADES)}
    with pytest.raises(DataError, match="cannot judge a model"):
        tuned(validation=grades)
    with pytest.raises(DataError, match="more than the 64 positions"):
        tuned(recipe=replace(QUICK, max_length=65))
    with pytest.raises(RestackError, match="no CUDA device"):
        tune(tiny.bert(), tiny.sentiment(), {}, QUICK, tokenizer=tiny.tokenizer(), device="cuda")
    with pytest.raises(PlanError):
        tuned(plan="0-9")
    with pytest.raises(DataError, match="reads in both directions"):
        tuned(train=tiny.stories(), validation={})
    with pytest.raises(DataError, match="no mask token"):
        tune(
            tiny.bert(),
            tiny.stories(task=tiny.MLM),
            {},
            QUICK,
            tokenizer=reviews.tokenizer(),
            device="cpu",
        )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_a_compiled_model_gives_the_same_losses() -> None:
    model = tiny.bert(dropout=False, num_hidden_layers=2)
    recipe = replace(QUICK, steps=4)
    plain, compiled = (tuned(model, replace(recipe, compile=way)) for way in (False, True))
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-4)
    assert set(compiled.model.state_dict()) == set(plain.model.state_dict())
