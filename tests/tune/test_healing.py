"""Healing: what a teacher tells comes back, the curve says how much, and it survives stops."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from restack.errors import CheckpointError, RestackError
from restack.surgery.disk import edit
from restack.tune import Distil, Lora, Recipe, Teacher, Tuned, tune
from restack.tune.healing import Point, recovery, told
from restack.tune.interrupts import Stopped
from tests.observe import reviews
from tests.tune import tiny

RECIPE = Recipe(
    steps=24, batch_size=8, rate=3e-3, warmup=2, evaluate_every=8, blocks=False, max_length=16
)
BOTH = Distil("both")


def healed(student: Any, teacher: Any, recipe: Recipe = RECIPE, **options: Any) -> Tuned:
    return tune(
        student,
        tiny.stories(),
        {"validation": tiny.stories(16, 1, "validation")},
        recipe,
        tokenizer=tiny.tokenizer(),
        teacher=teacher if teacher is None else Teacher(teacher, options.pop("distil", Distil())),
        **{"device": "cpu", **options},
    )


@pytest.fixture(scope="module")
def teacher() -> Any:
    """A language model that knows the stories."""
    model = tiny.llama(num_hidden_layers=3)
    return healed(model, None, replace(RECIPE, steps=60, evaluate_every=60, rate=1e-2)).model


@pytest.mark.parametrize("source", ["logits", "states", "both"])
def test_what_was_dropped_comes_back(source: Any, teacher: Any) -> None:
    before = tiny.state(teacher)
    tuned = healed(teacher, teacher, plan="0,2", distil=Distil(source))
    points = recovery(tuned, "perplexity")
    assert [point.step for point in points] == [0, 8, 16, 24]
    assert points[0].regained == 0
    assert points[-1].regained is not None
    assert points[-1].regained > 0.2
    goal = tuned.teacher["metrics"]["validation"]["perplexity"]  # type: ignore[index]
    assert goal < points[-1].score < points[0].score
    assert tuned.notes[-1].startswith("learnt from LlamaForCausalLM: its ")
    assert all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())


def test_the_curve_is_of_the_way_to_the_teacher(teacher: Any) -> None:
    tuned = healed(teacher, teacher, plan="0,2", recipe=replace(RECIPE, steps=1))
    goal = {"validation": {"accuracy": 0.9}}
    curve = [
        {"step": step, "metrics": {"validation": {"accuracy": score}}}
        for step, score in ((0, 0.5), (4, 0.7), (8, 0.9))
    ]
    made = replace(
        tuned, curve=(*curve, {"step": 8, "loss": 1.0}), metrics=goal, teacher={"metrics": goal}
    )
    assert recovery(made, "accuracy") == (
        Point(0, 0.5, 0.0),
        Point(4, 0.7, pytest.approx(0.5)),
        Point(8, 0.9, pytest.approx(1.0)),
    )
    headless = replace(made, teacher={"metrics": {}})
    assert [point.regained for point in recovery(headless, "accuracy")] == [None] * 3


def test_a_student_made_on_disk_knows_where_its_layers_came_from(
    teacher: Any, tmp_path: Path
) -> None:
    whole = tiny.save(teacher, tmp_path / "whole")
    edit(whole, "0,2", tmp_path / "student")
    tuned = healed(tmp_path / "student", whole, distil=BOTH, out=tmp_path / "out")
    assert tuned.teacher is not None
    assert tuned.teacher["plan"] == "0,2"
    assert tuned.plan is None  # nothing more was done to the student here
    same = healed(teacher, teacher, plan="0,2", distil=BOTH)
    assert tiny.same(tuned.model, same.model)
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"learnt from {whole}: its logits and states" in card
    assert "| step | perplexity | regained |" in card
    said = json.loads((tmp_path / "out" / "tune.json").read_text())
    assert said["teacher"]["source"] == "both"


def test_interrupted_and_resumed(teacher: Any, tmp_path: Path) -> None:
    asked = iter(range(100))
    out = tmp_path / "out"
    whole = healed(teacher, teacher, plan="0,2", distil=BOTH)
    with pytest.raises(Stopped):
        healed(teacher, teacher, plan="0,2", distil=BOTH, out=out, stop=lambda: next(asked) == 9)
    with pytest.raises(CheckpointError, match=r"teacher\.source is 'both', now it is 'logits'"):
        healed(teacher, teacher, plan="0,2", out=out, resume=True)
    found = healed(teacher, teacher, plan="0,2", distil=BOTH, out=out, resume=True)
    assert found.curve == whole.curve
    assert found.teacher == whole.teacher
    assert tiny.same(found.model, whole.model)


def test_with_lora(teacher: Any) -> None:
    recipe = replace(RECIPE, lora=Lora(rank=4), rate=1e-2)
    points = recovery(healed(teacher, teacher, recipe, plan="0,2"), "perplexity")
    assert points[-1].score < points[0].score


def test_a_teacher_of_other_words_is_refused(teacher: Any, tmp_path: Path) -> None:
    other = tiny.save(teacher, tmp_path / "other")
    words = reviews.tokenizer()
    words.add_tokens(["unheard"])
    words.save_pretrained(other)
    with pytest.raises(CheckpointError, match="reads other tokens"):
        healed(teacher, other, plan="0,2")


def test_a_teacher_and_a_loss_are_one_too_many(teacher: Any) -> None:
    with pytest.raises(RestackError, match="another one was given"):
        healed(teacher, teacher, loss=lambda model, batch: torch.zeros(()))


def test_a_note_tells_who_taught_what() -> None:
    note = {"model": "big", **Distil("both", 2.0, 0.5, 0.1).to_json()}
    assert told(note) == (
        "learnt from big: its logits and states, temperature 2, states weigh 0.5, "
        "the labels weigh 0.1"
    )


def test_a_head_that_nobody_teaches_does_not_judge_the_states(tmp_path: Path) -> None:
    body = tiny.save(tiny.bert(dropout=False, initializer_range=0.1), tmp_path / "body")
    tuned = tune(
        body,
        tiny.stories(task=tiny.MLM),
        {"validation": tiny.stories(16, 1, "validation", tiny.MLM)},
        RECIPE,
        plan="0,1,3,4",
        teacher=Teacher(str(body), Distil("states")),
        out=tmp_path / "out",
        device="cpu",
    )
    assert tuned.metric == "loss"
    points = recovery(tuned, "loss")
    assert tuned.best_step > 0  # by chance it would be any
    assert points[0].regained == 0
    assert points[-1].regained == pytest.approx(1 - points[-1].score / points[0].score)
    assert points[-1].score < points[0].score
    assert "scored by the distance of its states" in (tmp_path / "out" / "README.md").read_text()
