"""The states of several plans as one larger batch: the same results from fewer calls."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from restack.anatomy import models
from restack.observe.evaluate import Evaluation, evaluate
from restack.observe.joining import joint
from restack.observe.readouts import Readout
from restack.observe.recording import learn, record
from restack.observe.running import observing
from restack.plan import Plan, drop
from tests.families import FAMILIES

OUTPUT = Readout(lambda leaf: {"output": leaf.output[0], "state": leaf.state})
JOINING = [  # masks of many forms, tokens first, kinds of layers, experts, a carried bias
    ("bert", "bert.encoder.layer"),
    ("xlnet", "transformer.layer"),
    ("deberta-v2", "deberta.encoder.layer"),
    ("llama", "model.layers"),
    ("gemma3_text", "model.layers"),
    ("mixtral", "model.layers"),
    ("t5", "encoder.block"),
    ("vit", "vit.layers"),
]
APART = [  # rows lie within another dimension; encoders that would run for every copy
    ("bloom", "transformer.h"),
    ("t5", "decoder.block"),
    ("whisper", "model.decoder.layers"),
]


def leaving_out(name: str, path: str, *, join: bool, memory: int | None = None) -> Evaluation:
    model = FAMILIES[name].build()
    depth = models.pick(model, path).depth
    plans = [Plan.identity(depth), *(drop(depth, [i]) for i in range(1, depth))]
    batch = FAMILIES[name].inputs()
    return evaluate(
        model, plans, [batch], OUTPUT, stack=path, join=join, memory=memory, check=False
    )


def same(ours: Evaluation, theirs: Evaluation) -> bool:
    pairs = zip(ours.results, theirs.results, strict=True)
    return all(np.allclose(a[n], b[n], rtol=1e-4, atol=1e-5) for a, b in pairs for n in a)


@pytest.mark.parametrize(("name", "path"), JOINING)
def test_the_same_from_fewer_calls(name: str, path: str) -> None:
    ours, theirs = (leaving_out(name, path, join=join) for join in (True, False))
    assert same(ours, theirs)
    depth, carried = len(ours.plans[0]), name == "t5"
    assert ours.layer_calls == depth + 2 * carried  # once for the batch, once for its copies
    assert theirs.layer_calls == theirs.layer_applications == theirs.edges + carried
    assert ours.layer_applications == ours.edges + 2 * carried


@pytest.mark.parametrize(("name", "path"), APART)
def test_what_cannot_be_joined_is_not(name: str, path: str) -> None:
    ours, theirs = (leaving_out(name, path, join=join) for join in (True, False))
    assert same(ours, theirs)
    assert ours.layer_calls == ours.layer_applications == theirs.layer_applications


def test_fresh_layers_and_permutations_join_too() -> None:
    model, batch = FAMILIES["bert"].build(), FAMILIES["bert"].inputs()
    plans = ["0-4", "permute:seed=1", "4-0", "0-3,4@fresh", "1-3,4@fresh", "0-1x3,2"]
    ours, theirs = (
        evaluate(model, plans, [batch] * 2, OUTPUT, join=join, seed=3) for join in (True, False)
    )
    assert same(ours, theirs)
    assert ours.layer_applications == theirs.layer_applications == 2 * ours.edges
    assert ours.layer_calls < theirs.layer_calls


def test_memory_that_does_not_hold_all_that_wait() -> None:
    state = 2 * 7 * 16 * 4
    few = leaving_out("bert", "bert.encoder.layer", join=True, memory=4 * state)
    assert few.layer_calls == few.layer_applications == few.edges
    assert few.batches == 1
    many = leaving_out("bert", "bert.encoder.layer", join=True, memory=40 * state)
    assert many.layer_calls == 5


def test_one_path_has_nothing_to_join() -> None:
    model, batch = FAMILIES["bert"].build(), FAMILIES["bert"].inputs()
    run = evaluate(model, ["0-4", "0-2", "0"], [batch], OUTPUT, join=True)
    assert run.layer_calls == run.layer_applications == 5


def test_the_rows_of_masks_follow_those_of_states() -> None:
    model, batch = FAMILIES["llama"].build(), FAMILIES["llama"].inputs()
    stack = models.pick(model)
    seen: list[tuple[Tensor, Tensor]] = []

    def watch(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        seen.append((args[0], kwargs["attention_mask"]))

    with observing(model):
        recording = record(model, stack, batch, learn(model, stack, batch)[0])
        together = joint(recording, batch, 3)
        assert together is not None
        state = recording.start
        hook = model.model.layers[1].register_forward_pre_hook(watch, with_kwargs=True)
        made = together.apply(1, [state, 2 * state])
        hook.remove()
        alone = [recording.apply(1, each) for each in (state, 2 * state)]
    [(states, mask)] = seen
    assert len(states) == len(mask) == 4
    assert torch.equal(mask[:2], mask[2:])
    for ours, theirs in zip(made, alone, strict=True):
        torch.testing.assert_close(ours, theirs)
