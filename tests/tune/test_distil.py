"""Distillation: nothing to learn from oneself, gradients for the student alone, sums by hand."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from restack.data.glue import TASKS
from restack.data.tasks import Kind, Task
from restack.errors import RestackError, StackError
from restack.plan import Plan
from restack.surgery import restack
from restack.surgery.disk import edit
from restack.tune.distil import Distil, distillation, pairs, plan_from
from restack.tune.divergence import divergence
from restack.tune.examples import Batch
from restack.tune.heads import Loaded, load_for_task
from restack.tune.watching import watched
from tests.families import FAMILIES, text

OWN = Task("own", "multilabel", ("text",), "label", ("a", "b", "c"))
CASES: dict[str, tuple[str, Task]] = {
    "classification": ("bert", TASKS["sst2"]),
    "regression": ("bert", TASKS["stsb"]),
    "multilabel": ("bert", OWN),
    "span": ("bert", TASKS["squad_v2"]),
    "lm": ("llama", Task("texts", "lm", ("text",), None)),
    "mlm": ("bert", Task("texts", "mlm", ("text",), None)),
}


def batch_of(kind: Kind) -> Batch:
    inputs = text()
    labels: dict[str, Any] = {
        "classification": torch.tensor([0, 1]),
        "regression": torch.tensor([0.5, 2.0]),
        "multilabel": torch.tensor([[1.0, 0, 1], [0, 0, 1]]),
        "span": torch.tensor([[1, 2], [0, 3]]),
        "lm": inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100),
        "mlm": torch.tensor(
            [[-100, 6, -100, 8, -100, -100, 11], [12, -100, -100, 15, *[-100] * 3]]
        ),
    }
    count = {"lm": 9, "mlm": 5}.get(kind, 2)
    return Batch(inputs, labels[kind], count, np.arange(2))


def teacher_for(kind: str) -> Loaded:
    family, task = CASES[kind]
    source = FAMILIES[family].build()
    if kind not in ("lm", "mlm"):  # a tuned model has a head, whose weights matter to the answers
        source = load_for_task(source, task, seed=3).model
        with torch.no_grad():
            for name, tensor in source.named_parameters():
                if name.startswith(("classifier", "qa_outputs")):
                    tensor.add_(torch.randn_like(tensor))
    made = load_for_task(source, task)
    assert not made.fresh
    return made


@pytest.mark.parametrize("source", ["logits", "states", "both"])
@pytest.mark.parametrize("kind", CASES)
def test_nothing_is_to_be_learnt_from_oneself(kind: Any, source: Any) -> None:
    teacher = teacher_for(kind)
    student = copy.deepcopy(teacher.model).eval()
    loss = distillation(teacher, None, kind, Distil(source))
    assert float(loss(student, batch_of(kind)).detach()) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("source", ["logits", "states", "both"])
@pytest.mark.parametrize("kind", CASES)
def test_gradients_reach_the_student_alone_and_lower_the_loss(kind: Any, source: Any) -> None:
    teacher = teacher_for(kind)
    plan = Plan.parse("0-2,4", 5)
    student = restack(teacher.body, plan)
    before = {name: p.clone() for name, p in teacher.model.named_parameters()}
    loss = distillation(teacher, plan, kind, Distil(source))
    for p in student.parameters():
        p.requires_grad_()
    optimizer = torch.optim.SGD(student.parameters(), lr=1e-3)
    values = []
    for _ in range(4):
        optimizer.zero_grad()
        value = loss(student, batch_of(kind))
        value.backward()
        values.append(float(value.detach()))
        optimizer.step()
    assert values[0] > 1e-4
    assert values == sorted(values, reverse=True)
    assert all(p.grad is None and not p.requires_grad for p in teacher.model.parameters())
    assert all(torch.equal(before[n], p) for n, p in teacher.model.named_parameters())


def test_logits_give_the_divergence_by_hand() -> None:
    teacher = teacher_for("classification")
    student = load_for_task(teacher.body, CASES["classification"][1], plan="0-2").model.eval()
    batch = batch_of("classification")
    found = distillation(teacher, None, "classification", Distil(temperature=2.0))(student, batch)
    with torch.no_grad():
        ours, theirs = (m(**batch.inputs).logits / 2 for m in (student, teacher.model))
    by_hand = 4 * functional.kl_div(
        ours.log_softmax(-1), theirs.log_softmax(-1), reduction="sum", log_target=True
    )
    assert float(found.detach()) == pytest.approx(float(by_hand), rel=1e-4)


def test_tokens_count_where_something_is_asked() -> None:
    teacher = teacher_for("lm")
    student = restack(teacher.body, "0-2").eval()
    batch = batch_of("lm")
    found = distillation(teacher, None, "lm", Distil())(student, batch)
    with torch.no_grad():
        ours, theirs = (m(**batch.inputs).logits for m in (student, teacher.model))
    places = [(0, t) for t in range(6)] + [(1, t) for t in range(3)]
    by_hand = sum(
        float(
            functional.kl_div(
                ours[p].log_softmax(-1), theirs[p].log_softmax(-1), reduction="sum", log_target=True
            )
        )
        for p in places
    )
    assert float(found.detach()) == pytest.approx(by_hand, rel=1e-4)


def test_states_count_by_their_distance_from_the_source_layers() -> None:
    teacher = teacher_for("lm")
    plan = Plan.parse("0,3@fresh,4", 5)
    student = restack(teacher.body, plan, seed=1).eval()
    batch = batch_of("lm")
    found = distillation(teacher, plan, "lm", Distil("states"))(student, batch)
    with torch.no_grad():
        with watched(teacher.body, teacher.stack, (0, 4)) as theirs:  # type: ignore[arg-type]
            teacher.model(**batch.inputs)
        stack = load_for_task(student, CASES["lm"][1]).stack
        assert stack is not None
        with watched(student, stack, (0, 2)) as ours:
            student(**batch.inputs)
    real = batch.inputs["attention_mask"] != 0
    assert torch.equal(ours[0][real], theirs[0][real])
    apart = (ours[2] - theirs[4])[real].square().sum(-1) / theirs[4][real].square().sum(-1)
    by_hand = 9 * float(apart.mean()) / 2  # two slots, of which the first is right
    assert float(found.detach()) == pytest.approx(by_hand, rel=1e-4)
    both = distillation(teacher, plan, "lm", Distil("both", states=3.0))(student, batch)
    logits = distillation(teacher, plan, "lm", Distil())(student, batch)
    assert float(both.detach()) == pytest.approx(float(logits.detach()) + 3 * by_hand, rel=1e-4)


def test_labels_come_on_top() -> None:
    teacher = teacher_for("classification")
    student = load_for_task(teacher.body, CASES["classification"][1], plan="0-2").model.eval()
    batch = batch_of("classification")
    alone, with_labels = (
        distillation(teacher, None, "classification", Distil(labels=weight))(student, batch)
        for weight in (0.0, 0.5)
    )
    own = functional.cross_entropy(student(**batch.inputs).logits, batch.labels, reduction="sum")
    assert float((with_labels - alone).detach()) == pytest.approx(
        0.5 * float(own.detach()), rel=1e-4
    )


def test_padding_does_not_count() -> None:
    teacher = teacher_for("mlm")
    student = restack(teacher.body, "0-2").eval()
    batch = batch_of("mlm")
    other = copy.deepcopy(batch)
    other.inputs["input_ids"][1, 4:] = 17
    loss = distillation(teacher, Plan.parse("0-2", 5), "mlm", Distil("both"))
    assert float(loss(student, batch).detach()) == pytest.approx(
        float(loss(student, other).detach()), rel=1e-5
    )


def test_layers_that_are_one_module_are_told_apart_by_their_calls() -> None:
    body = FAMILIES["albert"].build()
    task = Task("texts", "mlm", ("text",), None)
    teacher = load_for_task(body, task)
    assert teacher.stack is not None
    depth = teacher.stack.depth
    plan = Plan.parse(f"0-{depth - 1}x2", depth)
    student = restack(teacher.body, plan).eval()
    batch = batch_of("mlm")
    loss = distillation(teacher, plan, "mlm", Distil("states"))(student, batch)
    assert float(loss.detach()) > 1e-3
    same = distillation(teacher, None, "mlm", Distil("states"))(teacher.model, batch)
    assert float(same.detach()) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_wrapped_student_is_seen_through(checkpointing: bool) -> None:
    teacher = teacher_for("lm")
    plan = Plan.parse("0-3", 5)
    student = restack(teacher.body, plan).train()

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = student

        def forward(self, **inputs: Any) -> Any:
            return self.module(**inputs)

    if checkpointing:
        student.gradient_checkpointing_enable({"use_reentrant": False})
    loss = distillation(teacher, plan, "lm", Distil("both"))(Wrapper(), batch_of("lm"))
    loss.backward()
    gradients = [p.grad for p in student.parameters()]
    assert all(g is not None and torch.isfinite(g).all() for g in gradients)
    assert all(not layer._forward_hooks for layer in student.model.layers)


def test_with_lora_only_its_matrices_learn() -> None:
    peft = pytest.importorskip("peft")
    teacher = teacher_for("lm")
    plan = Plan.parse("0-3", 5)
    student = peft.get_peft_model(
        restack(teacher.body, plan), peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"])
    )
    distillation(teacher, plan, "lm", Distil("both"))(student, batch_of("lm")).backward()
    learning = {name for name, p in student.named_parameters() if p.grad is not None}
    assert learning
    assert all("lora_" in name for name in learning)


def test_the_gradient_of_the_divergence_is_that_of_autograd() -> None:
    torch.manual_seed(0)
    ours, theirs = torch.randn(2, 7, 5, dtype=torch.double)
    rows = torch.tensor([0, 2, 3, 6])
    given = ours.clone().requires_grad_()
    found = divergence(given, rows, lambda some: theirs[some], 3.0, memory=4 * 6 * 5 * 2)
    found.backward()
    plain = ours.clone().requires_grad_()
    p = (theirs[rows] / 3).softmax(-1)
    by_hand = 9 * (p * (p.log() - (plain[rows] / 3).log_softmax(-1))).sum()
    by_hand.backward()
    assert float(found.detach()) == pytest.approx(float(by_hand.detach()), rel=1e-5)
    assert given.grad is not None
    assert plain.grad is not None
    assert torch.allclose(given.grad, plain.grad, atol=1e-6)
    assert not given.grad[[1, 4, 5]].any()


def test_the_teacher_is_asked_for_few_tokens_at_a_time() -> None:
    asked: list[int] = []

    def goal(some: torch.Tensor) -> torch.Tensor:
        asked.append(len(some))
        return torch.zeros(len(some), 1000)

    divergence(torch.zeros(64, 1000), torch.arange(64), goal, memory=4 * 6 * 1000 * 10)
    assert asked == [10] * 6 + [4]


def test_what_cannot_be_learnt_is_refused() -> None:
    with pytest.raises(RestackError, match="temperature is for logits"):
        Distil("states", temperature=2)
    with pytest.raises(RestackError, match="weight of states"):
        Distil("logits", states=2)
    with pytest.raises(RestackError, match="temperature of 0"):
        Distil(temperature=0)
    with pytest.raises(RestackError, match="'hidden'"):
        Distil("hidden")  # type: ignore[arg-type]
    teacher = teacher_for("classification")
    with pytest.raises(StackError, match="4 layers, and the teacher has 5"):
        distillation(teacher, Plan.parse("0-2", 4), "classification", Distil("states"))
    with pytest.raises(StackError, match="all slots are fresh"):
        distillation(teacher, Plan.parse("0-4@fresh", 5), "classification", Distil("both"))
    loss = distillation(teacher, Plan.parse("0-2", 5), "classification", Distil("states"))
    with pytest.raises(StackError, match="the student has 5 layers, and the plan makes 3"):
        loss(copy.deepcopy(teacher.model), batch_of("classification"))
    untuned = load_for_task(FAMILIES["bert"].build(), CASES["classification"][1])
    with pytest.raises(RestackError, match="not tuned on this task"):
        distillation(untuned, None, "classification", Distil())
    distillation(untuned, None, "classification", Distil("states"))
    with pytest.raises(RestackError, match="no temperature"):
        distillation(teacher_for("regression"), None, "regression", Distil(temperature=2))


def test_fresh_slots_have_no_state_to_learn() -> None:
    assert pairs(Plan.parse("0x2,3@fresh,2@noop", 4)) == {0: 0, 1: 0, 3: 2}


def test_edits_tell_how_the_slots_came_about(tmp_path: Any) -> None:
    FAMILIES["llama"].build().save_pretrained(tmp_path / "a")
    edit(tmp_path / "a", "0-3", tmp_path / "b")
    edit(tmp_path / "b", "3-0", tmp_path / "c")
    assert str(plan_from(tmp_path / "b", None, 5)) == "0-3"
    assert str(plan_from(tmp_path / "c", None, 5)) == "3-0"
    assert str(plan_from(tmp_path / "c", Plan.parse("0-1", 4), 5)) == "3-2"
    # a teacher of four layers is the model before the last edit
    assert str(plan_from(tmp_path / "c", None, 4)) == "3-0"
    assert plan_from(tmp_path / "a", None, 5) is None
