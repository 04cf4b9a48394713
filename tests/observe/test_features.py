"""Pooled features against plain forward passes, and the file that they are kept in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from restack.errors import DataError
from restack.observe import features as module
from restack.observe.features import Pooling, pooled_features, weights_fingerprint
from tests.families import FAMILIES
from tests.observe import reviews

TEXTS = reviews.split("train", 23, 0).texts
POOLINGS: tuple[Pooling, ...] = ("mean", "cls", "last")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESTACK_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def bert() -> PreTrainedModel:
    return reviews.model()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return reviews.tokenizer()


def plainly(model: PreTrainedModel, ids: list[int], pooling: str) -> torch.Tensor:
    """One text at a time, without padding: layers x hidden."""
    with torch.no_grad():
        run = model.base_model(torch.tensor([ids]), output_hidden_states=True)
    states = torch.stack(run.hidden_states)[:, 0]
    return {"mean": states.mean(1), "cls": states[:, 0], "last": states[:, -1]}[pooling]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_text_has_the_vectors_of_a_plain_forward_pass(
    bert: PreTrainedModel, tokenizer: Any, pooling: Pooling
) -> None:
    found = pooled_features(bert, tokenizer, TEXTS, pooling=pooling, batch_tokens=40)
    assert found.values.shape == (len(TEXTS), 6, 16)
    for text, row in enumerate(found.rows):
        wanted = plainly(bert, tokenizer(TEXTS[text])["input_ids"], pooling)
        assert np.allclose(found.values[row], wanted, atol=1e-5)
    assert found.order[found.rows].tolist() == list(range(len(TEXTS)))
    assert found.layer_applications == 5 * len(TEXTS)


def test_a_decoder_without_padding_token_or_special_tokens() -> None:
    model, words = reviews.model("gpt2"), reviews.tokenizer(special=False)
    for pooling in ("mean", "last"):
        found = pooled_features(model, words, TEXTS, pooling=pooling)
        for text in (0, 7):
            ids = words(TEXTS[text])["input_ids"]
            wanted = plainly(model, ids, pooling)
            # transformers' last hidden state is behind the final norm, a stack's is before
            ours = found.values[found.rows[text]]
            assert np.allclose(ours[:-1], wanted[:-1], atol=1e-5)
            if pooling == "last":
                with torch.no_grad():
                    normed = model.transformer.ln_f(torch.from_numpy(ours[-1]))
                assert np.allclose(normed, wanted[-1], atol=1e-5)


def test_albert_applies_its_layer_anew_each_time(tokenizer: Any) -> None:
    model = reviews.model("albert")
    found = pooled_features(model, tokenizer, TEXTS)
    wanted = plainly(model, tokenizer(TEXTS[3])["input_ids"], "mean")
    assert np.allclose(found.values[found.rows[3]], wanted, atol=1e-5)


def test_the_encoder_of_two_stacks_runs_alone(tokenizer: Any) -> None:
    model = reviews.model("t5")
    found = pooled_features(model, tokenizer, TEXTS, stack="encoder.block")
    ids = torch.tensor([tokenizer(TEXTS[0])["input_ids"]])
    with torch.no_grad():
        states = model.encoder(ids, output_hidden_states=True).hidden_states
    assert np.allclose(found.values[found.rows[0], 2], states[2][0].mean(0), atol=1e-5)


def test_the_class_token_of_xlnet_is_the_last() -> None:
    words = reviews.tokenizer()
    words.padding_side = "left"
    words.backend_tokenizer.post_processor = type(words.backend_tokenizer.post_processor)(
        single="$A [SEP] [CLS]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    model = FAMILIES["xlnet"].build()
    found = pooled_features(model, words, TEXTS, pooling="cls")
    wanted = plainly(model, words(TEXTS[1])["input_ids"], "last")
    assert np.allclose(found.values[found.rows[1]], wanted, atol=1e-4)


def test_kept_by_content(bert: PreTrainedModel, tokenizer: Any, cache: Path) -> None:
    first = pooled_features(bert, tokenizer, TEXTS)
    again = pooled_features(reviews.model(), tokenizer, list(TEXTS), batch_tokens=7)
    assert again.path == first.path
    assert again.layer_applications == 0
    assert np.array_equal(first.values, again.values)
    assert isinstance(again.values, np.memmap)
    assert sorted(p.suffix for p in (cache / "features").iterdir()) == [".npy"]
    others = [
        pooled_features(bert, tokenizer, TEXTS, pooling="cls"),
        pooled_features(bert, tokenizer, TEXTS, dtype="float16"),
        pooled_features(bert, tokenizer, TEXTS[:-1]),
        pooled_features(bert, tokenizer, TEXTS, max_length=5),
    ]
    with torch.no_grad():
        bert.bert.encoder.layer[4].output.dense.bias[3] += 1e-3
    others.append(pooled_features(bert, tokenizer, TEXTS))
    assert len({first.path, *(other.path for other in others)}) == 6
    assert all(other.layer_applications for other in others)


def test_a_model_is_known_by_its_weights_but_not_by_its_head(bert: PreTrainedModel) -> None:
    name = weights_fingerprint(bert)
    with torch.no_grad():
        bert.cls.predictions.bias[0] += 1
    bert.config.id2label = {0: "a", 1: "b", 2: "c"}
    assert weights_fingerprint(bert) == name
    bert.config.layer_norm_eps = 1e-3
    assert weights_fingerprint(bert) != name
    assert weights_fingerprint(reviews.model().half()) != name


@pytest.mark.parametrize("damage", ["cut", "text", "empty"])
def test_a_damaged_file_is_made_again(bert: PreTrainedModel, tokenizer: Any, damage: str) -> None:
    first = pooled_features(bert, tokenizer, TEXTS)
    whole = first.path.read_bytes()
    first.path.unlink()
    first.path.write_bytes({"cut": whole[:-9], "text": b"no array", "empty": b""}[damage])
    again = pooled_features(bert, tokenizer, TEXTS)
    assert again.layer_applications
    assert np.array_equal(again.values, np.load(first.path))


class Stop(Exception):
    pass


@pytest.mark.parametrize("torn", [0, 5, -3])
def test_an_interrupted_pass_goes_on_where_it_stopped(
    bert: PreTrainedModel, tokenizer: Any, cache: Path, torn: int
) -> None:
    """Also behind a row of which a part was lost, or of which a part is there."""

    def stop(_: str, done: int, total: int, __: float) -> None:
        if done > total // 2:
            raise Stop

    with pytest.raises(Stop):
        pooled_features(bert, tokenizer, TEXTS, batch_tokens=30, progress=stop)
    (part,) = (cache / "features").glob("*.part")
    assert not list((cache / "features").glob("*.npy"))
    if torn < 0:
        part.write_bytes(part.read_bytes()[:torn])
    else:
        part.write_bytes(part.read_bytes() + bytes(torn))
    found = pooled_features(bert, tokenizer, TEXTS, batch_tokens=50)
    assert 0 < found.layer_applications < 5 * len(TEXTS) // 2
    for text in range(len(TEXTS)):
        wanted = plainly(bert, tokenizer(TEXTS[text])["input_ids"], "mean")
        assert np.allclose(found.values[found.rows[text]], wanted, atol=1e-5)
    assert [p.name for p in (cache / "features").iterdir()] == [found.path.name]


def test_a_part_of_something_else_is_thrown_away(
    bert: PreTrainedModel, tokenizer: Any, cache: Path
) -> None:
    good = pooled_features(bert, tokenizer, TEXTS)
    part = good.path.with_suffix(".part")
    values = np.array(good.values)
    good.path.unlink()
    for other in (values.astype(np.float16), values[:9], values[:, :2]):
        with part.open("wb") as file:
            np.save(file, other)
        found = pooled_features(bert, tokenizer, TEXTS)
        assert found.layer_applications == 5 * len(TEXTS)
        assert np.array_equal(found.values, values)
        found.path.unlink()


def test_two_at_once_make_it_once() -> None:
    """Threads here; the lock of a file is the same between processes."""
    models = [reviews.model(), reviews.model()]

    def make(model: PreTrainedModel) -> int:
        found = pooled_features(model, reviews.tokenizer(), TEXTS, batch_tokens=9)
        return found.layer_applications

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(make, models)) == [0, 5 * len(TEXTS)]


def test_progress_tells_the_pace(bert: PreTrainedModel, tokenizer: Any) -> None:
    told: list[tuple[str, int, int, float]] = []
    pooled_features(
        bert, tokenizer, TEXTS, batch_tokens=40, progress=lambda *said: told.append(said)
    )
    assert [done for _, done, _, _ in told] == sorted({done for _, done, _, _ in told})
    assert told[-1][1:3] == (len(TEXTS), len(TEXTS))
    assert all(pace > 0 for *_, pace in told)


def test_the_model_is_left_as_it_was(bert: PreTrainedModel, tokenizer: Any) -> None:
    found = pooled_features(bert, tokenizer, TEXTS)
    found.path.unlink()
    bert.train()
    bert.config.hidden_dropout_prob = 0.5
    again = pooled_features(bert, tokenizer, TEXTS)
    assert np.array_equal(found.values, again.values)  # without dropout
    assert bert.training


def test_out_of_memory_halves_the_batch_and_says_so(
    bert: PreTrainedModel,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = pooled_features(bert, tokenizer, TEXTS)
    plain.path.unlink()
    real, sizes = module.layer_states, []

    def scarce(model: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        sizes.append(len(batch["input_ids"]))
        if sizes[-1] > 6:
            raise torch.OutOfMemoryError("out of memory")
        return real(model, batch, *args, **kwargs)

    monkeypatch.setattr(module, "layer_states", scarce)
    found = pooled_features(bert, tokenizer, TEXTS)
    assert np.allclose(found.values, plain.values, atol=1e-5)
    assert "out of memory" in capsys.readouterr().err
    assert sizes.count(len(TEXTS)) == 1


def test_values_that_are_no_numbers_name_the_layer(bert: PreTrainedModel, tokenizer: Any) -> None:
    with torch.no_grad():
        bert.bert.encoder.layer[2].output.dense.weight[0, 0] = float("nan")
    with pytest.raises(DataError, match=r"leaves layer 2 of `bert.encoder.layer`"):
        pooled_features(bert, tokenizer, TEXTS)
    with torch.no_grad():
        bert.bert.embeddings.word_embeddings.weight[:] = float("inf")
    with pytest.raises(DataError, match="enters layer 0"):
        pooled_features(bert, tokenizer, TEXTS)


def test_what_float16_cannot_hold_is_refused(bert: PreTrainedModel, tokenizer: Any) -> None:
    with torch.no_grad():
        bert.bert.encoder.layer[1].output.LayerNorm.bias[0] = 1e5
    with pytest.raises(DataError, match=r"layer 2 \(0 = embeddings\) go up to 1e\+05"):
        pooled_features(bert, tokenizer, TEXTS, dtype="float16")
    assert pooled_features(bert, tokenizer, TEXTS).values.max() > 65504


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pooling": "max"}, "no pooling 'max'"),
        ({"dtype": "int8"}, "no format for features 'int8'"),
        ({"max_length": 2}, "no token is left besides special tokens"),
        ({"max_length": 100}, "more than the 64 positions"),
    ],
)
def test_options_that_cannot_be(
    bert: PreTrainedModel, tokenizer: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        pooled_features(bert, tokenizer, TEXTS, **options)


def test_texts_that_cannot_be_run(bert: PreTrainedModel, tokenizer: Any) -> None:
    with pytest.raises(DataError, match="besides special tokens"):
        pooled_features(bert, tokenizer, ["", " "])
    with pytest.raises(DataError, match="text 1 has no tokens"):
        pooled_features(reviews.model("gpt2"), reviews.tokenizer(special=False), ["dull", ""])
    other = reviews.tokenizer()
    other.add_tokens([f"new{n}" for n in range(60)])
    with pytest.raises(DataError, match="does not belong to the model"):
        pooled_features(bert, other, ["new59"])


def test_a_cache_that_cannot_be_written(
    bert: PreTrainedModel, tokenizer: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "file").write_text("in the way")
    monkeypatch.setenv("RESTACK_CACHE", str(cache / "file"))
    with pytest.raises(DataError, match="cannot be kept") as caught:
        pooled_features(bert, tokenizer, TEXTS)
    assert "RESTACK_CACHE" in str(caught.value.hint)
