"""Plans on a model without building their models: the same as building them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    RwkvConfig,
    RwkvModel,
)

from restack.anatomy import models
from restack.data import load_texts
from restack.errors import DataError, PlanError, RestackError, StackError
from restack.observe.evaluate import Evaluation, evaluate
from restack.observe.readouts import Readout
from restack.observe.running import model_inputs
from restack.plan import Plan, drop
from restack.surgery import restack
from tests.families import FAMILIES, text

CASES = [(name, stack) for name, family in FAMILIES.items() for stack in family.stacks]
OUTPUT = Readout(lambda leaf: {"output": first(leaf.output), "state": leaf.state})


def first(output: Any) -> Tensor:
    return output[0]


def plans_for(depth: int) -> list[str]:
    last, middle = depth - 1, depth // 2
    return [
        f"0-{last}",
        f"0-{last - 1}",
        f"1-{last}",
        f"drop:{middle}",
        f"0-{last}x2",
        f"swap:1,{last - 1}",
        "permute:seed=3",
        f"0-{middle},{middle}x3,{middle + 1}-{last}",
        f"0-{last - 1},{last}@fresh",
        "0x2@fresh,2,0@fresh1",
        f"0-1,1@noop,2-{last}",
        f"0-1,1@tied,2-{last}",
    ]


def rebuilt_output(model: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return first(model.eval()(**model_inputs(model, batch)))


@pytest.mark.parametrize(("name", "path"), CASES)
def test_equal_to_rebuilt_models(name: str, path: str) -> None:
    model, batch = FAMILIES[name].build(), FAMILIES[name].inputs()
    stack = models.pick(model, path)
    expected: dict[Plan, Tensor] = {}
    refused: dict[Plan, str] = {}
    for text_form in plans_for(stack.depth):
        plan = Plan.parse(text_form, stack.depth)
        try:
            rebuilt = restack(model, plan, stack=path, seed=7)
        except StackError as error:
            refused[plan] = str(error)
        else:
            expected[plan] = rebuilt_output(rebuilt, batch)
    assert len(expected) >= 6

    run = evaluate(model, list(expected), [batch], OUTPUT, stack=path, seed=7)
    assert run.fallback is None
    for plan, result in zip(run.plans, run.results, strict=True):
        wanted = expected[plan].float().numpy()
        assert (result["output"] == wanted).all(), plan
    assert run.layer_applications == run.edges + (name == "t5")  # once more for its bias

    for plan, message in refused.items():
        with pytest.raises(StackError) as caught:
            evaluate(model, [Plan.identity(stack.depth), plan], [batch], OUTPUT, stack=path)
        assert str(caught.value) == message


def test_each_beginning_is_computed_once_a_batch() -> None:
    model, batch = FAMILIES["bert"].build(), FAMILIES["bert"].inputs()
    calls = []
    for layer in model.bert.encoder.layer:
        layer.intermediate.register_forward_hook(lambda *_: calls.append(1))
    plans = [Plan.parse(f"0-{last}", 5) for last in range(5)] + [Plan.parse("0-1,3", 5)]
    run = evaluate(model, plans, [batch] * 3, OUTPUT, check=False)
    assert run.edges == 6
    assert run.layer_applications == 3 * 6
    assert run.batches == 3
    assert len(calls) == 3 * 6 + 5  # once through the stack to see how layers are called


def test_all_repeats_of_albert_are_one_path() -> None:
    model, batch = FAMILIES["albert"].build(), FAMILIES["albert"].inputs()
    plans = [Plan.parse(f"repeat:{depth}", 5) for depth in range(5, 51)]
    run = evaluate(model, plans, [batch], OUTPUT)
    assert run.edges == run.layer_applications == 50
    expected = rebuilt_output(restack(model, plans[-1]), batch)
    assert (run.results[-1]["output"] == expected.numpy()).all()


def test_groups_of_albert_follow_the_config() -> None:
    family = FAMILIES["albert"]
    config = {**family.config, "num_hidden_layers": 6, "num_hidden_groups": 2}
    family = copy.copy(family)
    object.__setattr__(family, "config", config)
    model, batch = family.build(), family.inputs()
    plans = ["0-5", "0-1,3-4", "0-2x2,3-5x2"]
    run = evaluate(model, plans, [batch], OUTPUT)
    for plan, result in zip(run.plans, run.results, strict=True):
        expected = rebuilt_output(restack(model, plan), batch)
        assert (result["output"] == expected.numpy()).all()
    with pytest.raises(StackError, match="groups"):
        evaluate(model, ["0,3-5"], [batch], OUTPUT)


def test_two_streams_fall_back_to_rebuilding() -> None:
    model = FAMILIES["xlnet"].build()
    batch = text()
    batch["perm_mask"] = torch.zeros(2, 7, 7)
    batch["perm_mask"][:, :, 2] = 1
    batch["target_mapping"] = torch.zeros(2, 1, 7)
    batch["target_mapping"][:, :, 2] = 1
    rows: list[int] = []
    run = evaluate(model, ["0-4", "1-4", "drop:2"], [batch], OUTPUT, progress=rows.append)
    assert run.fallback is not None
    assert "more than its state" in run.fallback
    for plan, result in zip(run.plans, run.results, strict=True):
        expected = rebuilt_output(restack(model, plan), batch)
        assert (result["output"] == expected.numpy()).all()
    assert run.layer_applications == 5 + 4 + 4
    assert sum(rows) == 2 * 3


@pytest.mark.parametrize(("every", "plan"), [(4, "0-2"), (6, "0,1-3x2")])
def test_what_layers_do_by_their_number_is_found_out_by_rebuilding(every: int, plan: str) -> None:
    torch.manual_seed(0)
    # what leaves every so many layers is halved, whichever layer it is
    config = RwkvConfig(vocab_size=99, hidden_size=16, num_hidden_layers=4, rescale_every=every)
    model = RwkvModel(config).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(torch.randn_like(tensor) * 0.05)
    batch = {"input_ids": text()["input_ids"]}
    run = evaluate(model, [plan], [batch], OUTPUT)
    assert run.fallback is not None
    assert "rebuilt" in run.fallback
    expected = rebuilt_output(restack(model, plan), batch)
    assert (run.results[0]["output"] == expected.numpy()).all()


def spoil(name: str, path: str) -> PreTrainedModel:
    model = FAMILIES[name].build()
    with torch.no_grad():
        model.get_submodule(path).weight.fill_(float("nan"))
    return model


@pytest.mark.parametrize(
    ("broken", "place"),
    [
        ("bert.encoder.layer.3.output.dense", r"layer 3 .*\(slot 1 of 2-3\)"),
        ("bert.embeddings.LayerNorm", r"what enters `bert.encoder.layer` is"),
    ],
)
def test_nan_names_the_layer(broken: str, place: str) -> None:
    with pytest.raises(DataError, match=place):
        evaluate(spoil("bert", broken), ["2-3", "0-1"], [text()], OUTPUT, check=False)


def test_nan_names_the_layer_of_a_rebuilt_model_too() -> None:
    model = spoil("xlnet", "transformer.layer.3.ff.layer_2")
    batch = {**text(), "perm_mask": torch.zeros(2, 7, 7), "target_mapping": torch.ones(2, 1, 7)}
    loss = lambda output, *_: {"sum": float(output[0].sum())}  # noqa: E731
    assert evaluate(model, ["0-2"], [batch], loss).fallback
    with pytest.raises(DataError, match=r"layer 3 .*\(slot 1 of 2-4\)"):
        evaluate(model, ["2-4"], [batch], loss)


def rows_of_many(count: int) -> dict[str, Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(3, 99, (count, 6))
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "indices": torch.arange(count),
    }


def test_short_of_memory_it_goes_on_with_halves(capsys: pytest.CaptureFixture[str]) -> None:
    model = FAMILIES["bert"].build()
    sizes: list[int] = []

    def read(output: Any, batch: Any, plan: int) -> dict[str, Any]:
        sizes.append(len(batch["input_ids"]))
        if plan == 0 and sizes[-1] > 3:  # after the shorter plan was read
            raise torch.OutOfMemoryError("CUDA out of memory")
        return {"rows": sizes[-1], "logits": output[0]}

    batches = [rows_of_many(8), rows_of_many(5)]
    done: list[int] = []
    run = evaluate(model, ["0-4", "0-2"], batches, read, progress=done.append)
    assert sum(done) == 13 * 2  # what was done in vain is taken back
    assert min(done) == -8
    said = capsys.readouterr().err
    assert "out of memory with 8 rows; going on with 4" in said
    assert [result["rows"] for result in run.results] == [13, 13]
    assert run.batches == 4 + 2
    # what is known not to fit is not tried again
    assert sizes.count(8) == 2
    assert sizes.count(5) == 0
    for plan, result in zip(run.plans, run.results, strict=True):
        rebuilt = restack(model, plan)
        expected = torch.cat([rebuilt_output(rebuilt, batch) for batch in batches])
        torch.testing.assert_close(torch.from_numpy(result["logits"]), expected)


def test_memory_that_does_not_do_for_one_row() -> None:
    def read(*_: Any) -> dict[str, Any]:
        raise MemoryError

    with pytest.raises(DataError, match="single row"):
        evaluate(FAMILIES["bert"].build(), ["0-4"], [rows_of_many(2)], read)


def test_an_error_that_is_not_about_memory_is_shown_and_leaves_the_model_whole() -> None:
    model = FAMILIES["bert"].build().train()

    def read(*_: Any) -> dict[str, Any]:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        evaluate(model, ["0-4"], [text()], read)
    assert model.training
    assert all("forward" not in vars(module) for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


def test_bounded_memory_runs_pieces() -> None:
    model, batch = FAMILIES["gpt2"].build(), rows_of_many(9)
    plans = [Plan.identity(5), *(drop(5, [i]) for i in range(5))]
    whole = evaluate(model, plans, [batch], OUTPUT)
    state = 6 * 16 * 4  # of one row
    # leaving one out holds two states at once, and then the first one and one that is being made
    run = evaluate(model, plans, [batch], OUTPUT, memory=4 * state * 3)
    assert (whole.batches, run.batches) == (1, 3)
    assert run.layer_applications == 3 * run.edges
    for ours, theirs in zip(run.results, whole.results, strict=True):
        torch.testing.assert_close(*(torch.from_numpy(r["output"]) for r in (ours, theirs)))


def test_progress_comes_to_rows_times_plans() -> None:
    done: list[int] = []
    batches = [rows_of_many(4), rows_of_many(3)]
    evaluate(FAMILIES["bert"].build(), ["0-4", "0-1"], iter(batches), OUTPUT, progress=done.append)
    assert done == [4, 4, 3, 3]


def test_a_function_of_output_batch_and_plan() -> None:
    def read(output: Any, batch: Any, plan: int) -> dict[str, Any]:
        return {"plan": plan, "tokens": batch["attention_mask"].sum(), "rows": batch["indices"]}

    batches = [rows_of_many(4), rows_of_many(3)]
    run = evaluate(FAMILIES["bert"].build(), ["0-4", "0-1", "0-4"], batches, read)
    assert [result["plan"] for result in run.results] == [0, 2, 4]
    assert all(result["tokens"] == 7 * 6 for result in run.results)
    assert run.results[1]["rows"].tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert run.edges == 5


def test_the_encoder_is_run_once_for_all_plans_of_a_decoder() -> None:
    model, batch = FAMILIES["whisper"].build(), FAMILIES["whisper"].inputs()
    calls = []
    for layer in model.model.encoder.layers:
        layer.fc1.register_forward_hook(lambda *_: calls.append(1))
    plans = [Plan.parse(f"0-{last}", 4) for last in range(4)]
    evaluate(model, plans, [batch] * 2, OUTPUT, stack="decoder", check=False)
    assert len(calls) == 5 * (1 + 2)


def test_the_model_is_left_as_it_was() -> None:
    model = FAMILIES["llama"].build()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = model.config.to_dict()
    evaluate(model, ["0-2,1@fresh,1@noop", "4-0"], [text()], OUTPUT)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.config.to_dict() == config
    assert not any(isinstance(m, nn.Module) and m._forward_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda model: evaluate(model, [], [text()], OUTPUT), PlanError, "no plan"),
        (lambda model: evaluate(model, ["0-4"], [], OUTPUT), DataError, "no batch"),
        (lambda model: evaluate(model, ["0-9"], [text()], OUTPUT), PlanError, "layer"),
        (
            lambda model: evaluate(model, [Plan.identity(4)], [text()], OUTPUT),
            StackError,
            "for 4 layers",
        ),
        (
            lambda model: evaluate(model, ["0-3,4@fresh"], [text()], OUTPUT, init="x"),
            PlanError,
            "no initialiser",
        ),
    ],
)
def test_bad_input(
    call: Callable[[PreTrainedModel], Evaluation], error: type[RestackError], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(FAMILIES["bert"].build())


def test_json() -> None:
    run = evaluate(FAMILIES["bert"].build(), ["0-2"], [text()], lambda *_: {"count": 3})
    assert json.loads(json.dumps(run.to_json())) == {
        "plans": [{"plan": "0-2", "depth": 3, "count": 3}],
        "edges": 3,
        "batches": 1,
        "layer_applications": 3,
        "layer_calls": 3,
        "fallback": None,
    }


def reactions(shared: Path, folder: str, count: int) -> dict[str, Tensor]:
    texts = load_texts(shared / "data/reactions/validation.parquet", limit=count)
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / folder)
    return dict(tokenizer(list(texts.texts), padding=True, return_tensors="pt"))


@pytest.mark.real
@pytest.mark.parametrize(
    ("folder", "plans"),
    [
        ("rxnmapper-albert-12L-256", [f"repeat:{depth}" for depth in range(12, 51)]),
        ("rxnfp-bert-12L-256", [f"duplicate:first={n}" for n in range(1, 13)]),
    ],
)
def test_real_models_equal_rebuilt_ones(shared: Path, folder: str, plans: list[str]) -> None:
    model = AutoModelForMaskedLM.from_pretrained(shared / "models" / folder, dtype=torch.float32)
    batch = reactions(shared, folder, 4)
    run = evaluate(model, plans, [batch], OUTPUT)
    assert run.fallback is None
    assert run.edges == (50 if "albert" in folder else 24 + sum(range(11)))
    for plan, result in zip(run.plans, run.results, strict=True):
        if len(plan) in (13, 24, 50):
            expected = rebuilt_output(restack(model, plan), batch)
            assert (result["output"] == expected.numpy()).all()


@pytest.mark.real
def test_top_drops_of_a_real_model_are_one_pass(shared: Path) -> None:
    folder = shared / "models/bge-small-en-12L-384"
    model = AutoModel.from_pretrained(folder, dtype=torch.float32)
    batch = dict(
        AutoTokenizer.from_pretrained(folder)(
            ["a film with a heart", "dull"], padding=True, return_tensors="pt"
        )
    )
    run = evaluate(model, [f"0-{last}" for last in range(12)], [batch], OUTPUT)
    assert run.edges == run.layer_applications == 12
    expected = rebuilt_output(restack(model, "0-5"), batch)
    assert (run.results[5]["output"] == expected.numpy()).all()
