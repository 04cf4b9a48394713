"""How a model calls its layers, and when that cannot be recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from restack.anatomy import models
from restack.errors import StackError
from restack.observe.evaluate import evaluate
from restack.observe.readouts import Readout
from restack.observe.recording import learn, record
from restack.observe.running import observing
from restack.plan import Plan, drop
from tests.families import FAMILIES

OUTPUT = Readout(lambda leaf: {"output": leaf.output[0]})


def test_recording_runs_no_layer() -> None:
    model, batch = FAMILIES["llama"].build(), FAMILIES["llama"].inputs()
    stack, calls = models.pick(model), []
    with observing(model):
        form, _ = learn(model, stack, batch)
        for layer in model.model.layers:
            layer.mlp.register_forward_hook(lambda *_: calls.append(1))
        recording = record(model, stack, batch, form)
        assert not calls
        recording.finish(recording.apply(2, recording.start))
        assert len(calls) == 1


def test_sliding_and_full_attention_follow_the_source_layer() -> None:
    model, batch = FAMILIES["gemma3_text"].build(), FAMILIES["gemma3_text"].inputs()
    stack = models.pick(model)
    with observing(model):
        form, _ = learn(model, stack, batch)
        calls = record(model, stack, batch, form).calls
    masks = [call.kwargs["attention_mask"] for call in calls]
    assert not torch.equal(masks[0], masks[1])
    assert masks[0] is masks[2]
    assert masks[1] is masks[5]


@pytest.mark.parametrize(("name", "carried"), [("t5", True), ("bloom", False), ("xlnet", False)])
def test_what_layers_return_beside_the_state(name: str, carried: bool) -> None:
    family = FAMILIES[name]
    model = family.build()
    stack = models.pick(model, family.stacks[0])
    with observing(model):
        form, _ = learn(model, stack, family.inputs())
    assert form.carried is carried
    assert not form.in_place
    assert all(beside is not None for beside in form.beside)


def wrap_layers(model: nn.Module, wrap: Callable[..., Any]) -> None:
    for layer in model.bert.encoder.layer:
        own = layer.forward
        vars(layer)["forward"] = lambda state, *args, own=own, **kwargs: wrap(
            own, state, *args, **kwargs
        )


def test_layers_that_overwrite_their_input() -> None:
    def in_place(own: Callable[..., Tensor], state: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return state.copy_(own(state.clone(), *args, **kwargs))

    model, batch = FAMILIES["bert"].build(), FAMILIES["bert"].inputs()
    plans = [Plan.identity(5), *(drop(5, [i]) for i in range(5))]
    expected = evaluate(model, plans, [batch], OUTPUT)
    wrap_layers(model, in_place)
    run = evaluate(model, plans, [batch], OUTPUT)
    assert run.fallback is None
    for ours, theirs in zip(run.results, expected.results, strict=True):
        assert (ours["output"] == theirs["output"]).all()


def test_values_put_into_a_list_on_the_way() -> None:
    model, batch = FAMILIES["bert"].build(), FAMILIES["bert"].inputs()
    seen: list[Tensor] = []

    def noting(own: Callable[..., Tensor], state: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        kwargs["past_key_values"].append(state)
        return own(state, *args, **{**kwargs, "past_key_values": None})

    def given(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return args, {**kwargs, "past_key_values": seen}

    wrap_layers(model, noting)
    for layer in model.bert.encoder.layer:
        layer.register_forward_pre_hook(given, with_kwargs=True, prepend=True)
    with observing(model), pytest.raises(StackError, match="write into"):
        learn(model, models.pick(model), batch)


def test_a_cache() -> None:
    model, batch = FAMILIES["llama"].build(), FAMILIES["llama"].inputs()
    cache = DynamicCache(config=model.config)
    with observing(model), pytest.raises(StackError, match="given a DynamicCache"):
        learn(model, models.pick(model), {**batch, "past_key_values": cache, "use_cache": True})
