"""Tuned lenses: what they learn, and the head that each belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from restack.errors import CheckpointError, DataError, StackError
from restack.observe.heads import own_head
from restack.observe.lens import lens
from restack.observe.tuned import TunedLens, load_tuned, save_tuned, tune_lens
from tests.families import FAMILIES

torch.manual_seed(2)
IDS = torch.cat([torch.ones(8, 1).long(), torch.randint(3, 99, (8, 12))], dim=1)
BATCHES = [
    {"input_ids": ids, "attention_mask": torch.ones_like(ids), "special_tokens_mask": ids < 3}
    for ids in IDS.split(4)
]


def test_it_starts_as_the_plain_lens() -> None:
    model = FAMILIES["llama"].build()
    untouched = tune_lens(model, BATCHES, epochs=1, learning_rate=0.0)
    found = lens(model, BATCHES, tuned=untouched)
    assert found.tuned is not None
    assert found.tuned.layers == found.layers


@pytest.mark.parametrize("name", ["bert", "llama", "gemma3_text"])
def test_training_brings_every_layer_nearer_to_the_last(name: str) -> None:
    model = FAMILIES[name].build()
    losses: list[float] = []
    tuned = tune_lens(
        model, BATCHES, epochs=15, learning_rate=5e-3, progress=lambda _, loss: losses.append(loss)
    )
    assert losses[-1] < 0.6 * losses[0]
    found = lens(model, BATCHES, tuned=tuned)
    assert found.tuned is not None
    pairs = list(zip(found.tuned.layers, found.layers, strict=True))[:-1]
    assert all(after.agreement >= before.agreement for after, before in pairs)
    assert any(after.agreement > before.agreement for after, before in pairs)


def test_the_loss_is_the_divergence_from_the_last_layer() -> None:
    model = FAMILIES["bert"].build()
    losses: list[float] = []
    tune_lens(model, BATCHES[:1], epochs=1, progress=lambda _, loss: losses.append(loss))
    ids = BATCHES[0]["input_ids"]
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
        said = [model.cls(state)[ids > 2].log_softmax(-1) for state in states]
    wanted = [(said[-1].exp() * (said[-1] - one)).sum(-1).mean() for one in said[:-1]]
    assert losses == [pytest.approx(float(sum(wanted)) / len(wanted), rel=1e-4)]


def test_small_chunks_learn_the_same() -> None:
    model = FAMILIES["bert"].build()
    one, other = (
        tune_lens(model, BATCHES, epochs=2, memory=memory) for memory in (40_000, 1 << 26)
    )
    torch.testing.assert_close(one.maps, other.maps, rtol=1e-3, atol=1e-4)


def test_the_same_seed_gives_the_same() -> None:
    model = FAMILIES["bert"].build()
    assert torch.equal(tune_lens(model, BATCHES).maps, tune_lens(model, BATCHES).maps)


def test_the_model_stays_as_it_is() -> None:
    model = FAMILIES["bert"].build().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tune_lens(model, BATCHES, epochs=1)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, before[n]) for n, tensor in model.state_dict().items())


def test_it_is_kept_in_a_file(tmp_path: Path) -> None:
    model = FAMILIES["bert"].build()
    tuned = tune_lens(model, BATCHES, epochs=1)
    save_tuned(tuned, tmp_path / "new" / "lens.safetensors")
    found = load_tuned(tmp_path / "new" / "lens.safetensors", own_head(model))
    assert torch.equal(found.maps, tuned.maps)
    assert torch.equal(found.shifts, tuned.shifts)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["lens.safetensors"]


def test_another_head_is_refused_with_both_hashes(tmp_path: Path) -> None:
    model, other = FAMILIES["bert"].build(), FAMILIES["bert"].build(seed=1)
    tuned = tune_lens(model, BATCHES, epochs=1)
    save_tuned(tuned, tmp_path / "lens")
    first, second = own_head(model).fingerprint, own_head(other).fingerprint
    for attempt in (
        lambda: lens(other, BATCHES, tuned=tuned),
        lambda: load_tuned(tmp_path / "lens", own_head(other)),
    ):
        with pytest.raises(StackError, match=f"{first}.*{second}"):
            attempt()


def test_another_depth_is_refused() -> None:
    model = FAMILIES["bert"].build()
    short = TunedLens(torch.zeros(3, 16, 16), torch.zeros(3, 16), own_head(model).fingerprint)
    with pytest.raises(StackError, match="for 3 layers; the stack has 5"):
        lens(model, BATCHES, tuned=short)


def test_files_that_are_no_tuned_lens(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_tuned(tmp_path / "absent")
    (tmp_path / "text").write_text("no")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_tuned(tmp_path / "text")
    save_file({"maps": torch.zeros(2)}, tmp_path / "other")
    with pytest.raises(CheckpointError, match="is no tuned lens"):
        load_tuned(tmp_path / "other")


def test_a_batch_that_does_not_fit_is_halved(capsys: pytest.CaptureFixture[str]) -> None:
    model = FAMILIES["bert"].build()
    whole = tune_lens(model, BATCHES, epochs=1, learning_rate=0.0)

    def scarce(_: object, args: tuple[torch.Tensor, ...]) -> None:
        if len(args[0]) > 2 and args[0].shape[1] > 1:  # heads are run on texts of one token
            raise torch.OutOfMemoryError("CUDA out of memory")

    tokens: list[int] = []
    model.bert.encoder.layer[0].register_forward_pre_hook(scarce)
    halved = tune_lens(
        model,
        BATCHES,
        epochs=1,
        learning_rate=0.0,
        head=own_head(model),
        progress=lambda count, _: tokens.append(count),
    )
    assert torch.equal(halved.maps, whole.maps)
    assert tokens == [24] * 4
    assert "out of memory with 4 rows; going on with 2" in capsys.readouterr().err


def test_texts_without_tokens() -> None:
    ids = torch.tensor([[1, 2]])
    with pytest.raises(DataError, match="no token"):
        tune_lens(FAMILIES["bert"].build(), [{"input_ids": ids, "special_tokens_mask": ids < 3}])
