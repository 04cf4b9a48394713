"""The states between layers, and the model's tail on a state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from restack.anatomy import models
from restack.errors import DataError, StackError
from restack.observe.running import forwards, observing
from restack.observe.stack_run import finish, layer_states, layers_of
from tests.families import FAMILIES

CASES = [(name, stack) for name, family in FAMILIES.items() for stack in family.stacks]


@pytest.mark.parametrize(("name", "path"), CASES)
def test_the_tail_on_the_last_state_gives_the_output(name: str, path: str) -> None:
    model, batch = FAMILIES[name].build(), FAMILIES[name].inputs()
    stack = models.pick(model, path)
    run = layer_states(model, batch, stack)
    assert len(run.states) == stack.depth + 1
    rows = next(iter(batch.values())).shape[0]
    assert all(state.shape[0] == rows and state.shape[2] == 16 for state in run.states)
    finished = finish(model, stack, batch, run.states[-1])
    assert torch.equal(finished[0], run.output[0])
    other = finish(model, stack, batch, run.states[1])
    assert not torch.equal(other[0], run.output[0])


def test_states_are_raw_where_the_model_shows_them_behind_the_norm() -> None:
    model, batch = FAMILIES["llama"].build(), FAMILIES["llama"].inputs()
    stack = models.pick(model)
    states = layer_states(model, batch, stack).states
    with torch.no_grad():
        shown = model(**batch, output_hidden_states=True).hidden_states
        normed = model.model.norm(states[-1])
    assert all(map(torch.equal, states[:-1], shown[:-1]))
    assert not torch.equal(states[-1], shown[-1])
    assert torch.equal(normed, shown[-1])


def test_only_the_wanted_states_and_no_head() -> None:
    model, batch = FAMILIES["bert"].build(), FAMILIES["bert"].inputs()
    stack = models.pick(model)
    whole = layer_states(model, batch, stack).states
    heads = []
    hook = model.cls.register_forward_hook(lambda *_: heads.append(1))
    run = layer_states(model, batch, stack, keep=[3, 0], tail=False)
    hook.remove()
    assert run.output is None
    assert not heads
    assert torch.equal(run.states[0], whole[0])
    assert torch.equal(run.states[1], whole[3])
    assert len(run.states) == 2


def test_a_state_that_is_not_there() -> None:
    model = FAMILIES["bert"].build()
    with pytest.raises(StackError, match=r"0\.\.5"):
        layer_states(model, FAMILIES["bert"].inputs(), models.pick(model), keep=[6])


def test_gradients_reach_the_states_if_asked_for() -> None:
    model, batch = FAMILIES["bert"].build(), FAMILIES["bert"].inputs()
    stack = models.pick(model)
    run = layer_states(model, {**batch, "labels": batch["input_ids"]}, stack, grad=True)
    gradients = torch.autograd.grad(run.output.loss, run.states)
    assert all(bool(gradient.abs().sum() > 0) for gradient in gradients)
    assert not layer_states(model, batch, stack).states[0].requires_grad


def test_modes_and_forwards_are_put_back() -> None:
    model = FAMILIES["gpt2"].build().train()
    model.transformer.wte.eval()
    stack = models.pick(model)
    modes = {name: module.training for name, module in model.named_modules()}
    first = layer_states(model, FAMILIES["gpt2"].inputs(), stack)
    again = layer_states(model, FAMILIES["gpt2"].inputs(), stack)
    assert torch.equal(first.output[0], again.output[0])  # no dropout
    assert {name: module.training for name, module in model.named_modules()} == modes

    layers = layers_of(model, stack)
    broken = {layers[0]: lambda *_, **__: 1 / 0}
    with pytest.raises(ZeroDivisionError), observing(model), forwards(broken):
        model(**FAMILIES["gpt2"].inputs())
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert "forward" not in vars(layers[0])
    assert torch.is_grad_enabled()


def test_a_forward_that_was_there_before_comes_back() -> None:
    layer = torch.nn.Linear(2, 2)
    own = layer.forward
    vars(layer)["forward"] = wrapped = lambda x: own(x) + 1
    with forwards({layer: lambda x: x}):
        assert torch.equal(layer(torch.ones(2)), torch.ones(2))
    assert vars(layer)["forward"] is wrapped


@pytest.mark.parametrize("bad", [99, -1])
def test_ids_out_of_range(bad: int) -> None:
    model = FAMILIES["bert"].build()
    with pytest.raises(DataError, match=rf"token {bad} is not in the model's vocabulary of 99"):
        layer_states(model, {"input_ids": torch.tensor([[5, bad]])}, models.pick(model))


def test_what_is_not_for_the_model_is_left_out() -> None:
    model, batch = FAMILIES["bert"].build(), FAMILIES["bert"].inputs()
    special = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    more: dict[str, Tensor] = {"special_tokens_mask": special, "indices": torch.arange(2)}
    stack = models.pick(model)
    run = layer_states(model, {**batch, **more}, stack)
    assert torch.equal(run.output[0], layer_states(model, batch, stack).output[0])


def test_a_stack_that_the_inputs_do_not_reach() -> None:
    model = FAMILIES["gemma3"].build()
    stack = models.pick(model, "vision")
    with pytest.raises(StackError, match=r"0 layers of .*vision"):
        layer_states(model, FAMILIES["gemma3"].inputs(), stack)
