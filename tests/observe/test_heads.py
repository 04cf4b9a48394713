"""A model's own head on raw states, over many architectures; heads that are none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM

from restack.anatomy import models
from restack.errors import StackError
from restack.observe.heads import Head, chunks, graft_head, language_logits, own_head, read
from restack.observe.stack_run import layer_states
from restack.surgery import restack
from tests.families import BERT, FAMILIES, LLAMA, SMALL, Family, text_pair

ROBERTA = {**BERT, "pad_token_id": 1, "bos_token_id": 0}
# Heads that do more than a norm and a matrix, and masked models that FAMILIES has other classes of.
MORE = {
    "gemma2": Family(
        "gemma2",
        "Gemma2ForCausalLM",
        {
            **LLAMA,
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 4,
            "final_logit_softcapping": 0.5,
        },
        (),
    ),
    "cohere": Family("cohere", "CohereForCausalLM", {**LLAMA, "logit_scale": 0.3}, ()),
    "granite": Family("granite", "GraniteForCausalLM", {**LLAMA, "logits_scaling": 4.0}, ()),
    "opt-projected": Family(
        "opt",
        "OPTForCausalLM",
        {**BERT, "ffn_dim": 24, "word_embed_proj_dim": 8, "do_layer_norm_before": False},
        (),
    ),
    "roberta-mlm": Family("roberta", "RobertaForMaskedLM", ROBERTA, ()),
    "xlm-roberta": Family("xlm-roberta", "XLMRobertaForMaskedLM", ROBERTA, ()),
    "distilbert-mlm": Family(
        "distilbert", "DistilBertForMaskedLM", FAMILIES["distilbert"].config, ()
    ),
    "deberta-v2-mlm": Family(
        "deberta-v2", "DebertaV2ForMaskedLM", FAMILIES["deberta-v2"].config, ()
    ),
    "bert-pretraining": Family("bert", "BertForPreTraining", BERT, ()),
    "bert-decoder": Family("bert", "BertLMHeadModel", {**BERT, "is_decoder": True}, ()),
    "mamba": Family(
        "mamba", "MambaForCausalLM", {**SMALL, "hidden_size": 16, "num_hidden_layers": 3}, ()
    ),
}
ALL = {**FAMILIES, **MORE}
HEADED = [name for name in ALL if ALL[name].cls.endswith(("LM", "Model", "ConditionalGeneration"))]
HEADED = [name for name in HEADED if name not in ("clip", "dinov2")]
ENCODER_DECODERS = ("t5", "bart", "whisper")
STACK = {"gemma3": "language_model", **dict.fromkeys(ENCODER_DECODERS, "decoder")}
MASKED = {
    *("bert", "albert", "xlnet", "electra", "modernbert", "mpnet", "esm", "roberta-mlm"),
    *("xlm-roberta", "distilbert-mlm", "deberta-v2-mlm", "bert-pretraining"),
}


@pytest.mark.parametrize("name", HEADED)
def test_behind_the_last_layer_it_gives_the_models_own_logits(name: str) -> None:
    model = ALL[name].build()
    inputs = text_pair() if name in ("t5", "bart") else ALL[name].inputs()
    run = layer_states(model, inputs, models.pick(model, STACK.get(name)))
    own = language_logits(run.output)
    head = own_head(model, stack=STACK.get(name))

    with torch.no_grad():
        found = head.logits(run.states[-1].flatten(0, 1))
        below = head.logits(run.states[-2].flatten(0, 1))

    # other numbers of rows may take other ways through a matrix product
    torch.testing.assert_close(found.reshape(own.shape), own, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(below.reshape(own.shape), own, rtol=1e-2, atol=1e-3)
    assert (head.label, head.vocab) == ("own", own.shape[-1])
    assert head.reads == ("same" if name in MASKED else "next")


def test_it_knows_its_own_weights_and_no_others() -> None:
    weights = own_head(MORE["bert-pretraining"].build().requires_grad_(False)).weights
    assert set(weights) == {
        "bert.embeddings.word_embeddings.weight",
        "cls.predictions.bias",
        *(f"cls.predictions.transform.{part}" for part in ("dense.weight", "dense.bias")),
        *(f"cls.predictions.transform.LayerNorm.{part}" for part in ("weight", "bias")),
    }
    assert set(own_head(FAMILIES["llama"].build()).weights) == {
        "model.norm.weight",
        "lm_head.weight",
    }


def test_more_rows_than_the_model_has_positions() -> None:
    model = FAMILIES["bert"].build()
    rows = torch.randn(200, 16)
    with torch.no_grad():
        torch.testing.assert_close(own_head(model).logits(rows), model.cls(rows))


def test_a_model_that_fills_texts_up_to_a_window() -> None:
    config = {**BERT, "attention_window": 4}
    model = Family("longformer", "LongformerForMaskedLM", config, ()).build()
    head, rows = own_head(model), torch.randn(7, 16)
    with torch.no_grad():
        torch.testing.assert_close(head.logits(rows), model.lm_head(rows))


def test_it_leaves_the_model_as_it_was() -> None:
    model = FAMILIES["bert"].build().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    head = own_head(model)
    head.logits(torch.randn(3, 16)).sum()

    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, before[n]) for n, tensor in model.state_dict().items())
    assert not any("forward" in vars(module) for module in model.modules())


def test_half_precision() -> None:
    model = FAMILIES["llama"].build().bfloat16()
    reading = read(own_head(model), torch.randn(5, 16), torch.arange(5))
    assert reading.logprob.dtype == torch.float32
    assert bool((reading.logprob < 0).all())


def plain_head(table: Tensor, calls: list[int]) -> Head:
    def logits(rows: Tensor) -> Tensor:
        calls.append(len(rows))
        return rows @ table

    return Head(
        "own", "same", len(table), table.shape[1], logits, {"table": table}, torch.device("cpu")
    )


def test_reading_in_chunks_gives_what_the_definitions_say() -> None:
    torch.manual_seed(1)
    table, states, right = torch.randn(4, 30), torch.randn(25, 4), torch.randint(30, (25,))
    logits = states @ table
    order = logits.argsort(-1, descending=True)
    calls: list[int] = []

    reading = read(plain_head(table, calls), states, right, memory=30 * 4 * 3 * 7)

    assert calls == [7, 7, 7, 4]
    assert torch.equal(reading.best, order[:, 0])
    assert torch.equal(reading.rank, (order == right[:, None]).int().argmax(-1) + 1)
    wanted = logits.log_softmax(-1)
    torch.testing.assert_close(reading.logprob, wanted[torch.arange(25), right])
    torch.testing.assert_close(reading.confidence, wanted.max(-1).values.exp())


def test_chunks_hold_at_least_a_row() -> None:
    head = plain_head(torch.randn(4, 1000), [])
    assert [len(rows) for (rows,) in chunks(head, torch.randn(3, 4), memory=1)] == [1, 1, 1]


def test_reading_no_rows() -> None:
    head = plain_head(torch.randn(4, 9), [])
    none = read(head, torch.empty(0, 4), torch.empty(0, dtype=torch.int64))
    assert [len(column) for column in none] == [0, 0, 0, 0]


def test_the_fingerprint_is_of_the_weights() -> None:
    family = FAMILIES["bert"]
    first, again = family.build(), family.build()
    with torch.no_grad():
        again.bert.encoder.layer[0].output.dense.bias += 1  # not a part of the head
    assert own_head(first).fingerprint == own_head(again).fingerprint
    with torch.no_grad():
        again.cls.predictions.bias[3] += 1
    assert own_head(first).fingerprint != own_head(again).fingerprint


def test_a_model_without_a_head_names_the_class_that_has_one() -> None:
    model = Family("bert", "BertModel", BERT, ()).build()
    with pytest.raises(StackError, match=r"BertModel has no .*BertForMaskedLM has one") as error:
        own_head(model)
    assert "--fit-head" in str(error.value.hint)
    with pytest.raises(StackError, match=r"LlamaModel has no .*LlamaForCausalLM has one"):
        own_head(Family("llama", "LlamaModel", LLAMA, ()).build())


def test_a_classifier_has_no_language_modelling_head() -> None:
    with pytest.raises(StackError, match="RobertaForMaskedLM has one"):
        own_head(FAMILIES["roberta"].build())


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_no_head_stands_on_an_encoder_with_a_decoder(name: str) -> None:
    with pytest.raises(StackError, match="decoder"):
        own_head(FAMILIES[name].build(), stack="encoder")


@pytest.fixture
def headless(tmp_path: Path) -> Path:
    """A checkpoint of a trained BERT without a head."""
    Family("bert", "BertModel", BERT, ()).build().save_pretrained(tmp_path)
    return tmp_path


def test_a_head_that_loading_made_up_is_refused(headless: Path) -> None:
    model = AutoModelForMaskedLM.from_pretrained(headless)
    with pytest.raises(StackError, match=r"was not in the checkpoint.*`cls.predictions"):
        own_head(model)
    # of a rebuilt model the loader left no trace
    with pytest.raises(StackError, match="was not in the checkpoint"):
        own_head(restack(model, "0-2"))


def test_a_head_that_was_trained_after_loading_is_taken(headless: Path) -> None:
    model = AutoModelForMaskedLM.from_pretrained(headless)
    with torch.no_grad():
        for parameter in model.cls.parameters():
            parameter += torch.randn_like(parameter) * 0.01
    assert own_head(model).label == "own"


def test_an_untied_output_matrix_that_loading_made_up_is_refused(tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    Family("llama", "LlamaModel", LLAMA, ()).build().save_pretrained(tmp_path)
    with pytest.raises(StackError, match=r"`lm_head.weight`"):
        own_head(LlamaForCausalLM.from_pretrained(tmp_path))


def test_a_head_from_its_checkpoint_is_taken(tmp_path: Path) -> None:
    FAMILIES["bert"].build().save_pretrained(tmp_path)
    assert own_head(AutoModelForMaskedLM.from_pretrained(tmp_path)).label == "own"


def test_a_model_that_is_random_throughout_is_taken() -> None:
    from transformers import BertConfig, BertForMaskedLM

    assert own_head(BertForMaskedLM(BertConfig(**BERT))).label == "own"


def test_the_head_of_another_checkpoint(tmp_path: Path) -> None:
    source = FAMILIES["bert"].build()
    body = Family("bert", "BertForSequenceClassification", BERT, ()).build(seed=5)
    head = graft_head(body, source, label="the pretrained one")
    rows = torch.randn(4, 16)
    with torch.no_grad():
        assert torch.equal(head.logits(rows), own_head(source).logits(rows))
    assert head.label == "the pretrained one"
    source.save_pretrained(tmp_path)
    named = graft_head(body, AutoModelForMaskedLM.from_pretrained(tmp_path))
    assert named.label == str(tmp_path)


def test_the_head_of_a_checkpoint_that_does_not_fit() -> None:
    source = FAMILIES["bert"].build()
    wide = Family("bert", "BertModel", {**BERT, "hidden_size": 32}, ()).build()
    with pytest.raises(StackError, match=r"states of 16 numbers.*give 32"):
        graft_head(wide, source)
    other = Family("bert", "BertModel", {**BERT, "vocab_size": 77}, ()).build()
    with pytest.raises(StackError, match=r"vocabulary of 99 tokens.*has 77"):
        graft_head(other, source)
    causal = Family("bert", "BertModel", {**BERT, "is_decoder": True}, ()).build()
    with pytest.raises(StackError, match="of a masked model, and BertModel is a causal one"):
        graft_head(causal, source)
    with pytest.raises(StackError, match="of a causal model, and BertForMaskedLM is a masked one"):
        graft_head(source, MORE["bert-decoder"].build())


@pytest.mark.real
def test_an_embedding_model_has_no_head(shared: Path) -> None:
    place = shared / "models" / "bge-small-en-12L-384"
    with pytest.raises(StackError, match="BertForMaskedLM has one"):
        own_head(AutoModel.from_pretrained(place))
    with pytest.raises(StackError, match="was not in the checkpoint"):
        own_head(AutoModelForMaskedLM.from_pretrained(place))
