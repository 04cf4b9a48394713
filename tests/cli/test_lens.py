"""`restack lens`: its JSON, its tables, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.conftest import Command

TEXTS = ("--text", "great word1 word2 dull", "--text", "warm word3 .", "--text", "silly poor")
Models = dict[str, Path]


def test_json_of_a_masked_model(command: Command, models: Models) -> None:
    ran = command("lens", models["bert"], *TEXTS, "--json")
    found = ran.json
    assert ran.code == 0
    assert (found["model"], found["head"], found["reads"]) == (str(models["bert"]), "own", "same")
    assert (found["tokens"], found["first_tokens"]) == (9, 3)
    scores = ["layer", "accuracy", "top5", "rank", "logprob", "agreement"]
    assert [list(row) for row in found["layers"]] == [scores] * 6
    assert [row["layer"] for row in found["layers"]] == list(range(6))
    assert len(found["after_first"]) == 6
    assert found["plans"] == []
    assert (found["data"], found["texts"], found["cut"], found["partial"]) == ("texts", 3, 0, None)
    assert "3 texts" in ran.err


def test_plans_and_curves_in_one_evaluation(command: Command, models: Models) -> None:
    ran = command(
        "lens", models["bert"], *TEXTS, "--json", "--plan", "drop:top=1", "--plan", "4-0",
        "--curve", "duplicate:6", "--curve", "drop",
    )  # fmt: skip
    found = ran.json
    plans = ["0-3", "4-0", "0-4", "0x2,1-4", "0-2", "0-1", "0"]  # the drop to 0-3 was there already
    assert [row["plan"] for row in found["plans"]] == plans
    assert [list(row) for row in found["plans"]] == [["plan", "depth", "accuracy"]] * 7
    assert [row["depth"] for row in found["plans"]] == [4, 5, 5, 6, 3, 2, 1]
    assert found["edges"] == found["layer_applications"] == 5 + 5 + 5
    assert found["fallback"] is None
    # the whole stack along a plan is what the lens reads from its last layer
    assert found["plans"][2]["accuracy"] == found["layers"][5]["accuracy"]
    assert "7 plans in 15 layer applications a batch, one by one 26" in ran.err


def test_json_of_a_causal_model(command: Command, models: Models) -> None:
    found = command("lens", models["llama"], *TEXTS, "--json").json
    assert (found["reads"], found["tokens"]) == ("next", 9)


def test_the_table(command: Command, models: Models) -> None:
    ran = command("lens", models["bert"], *TEXTS, "--plan", "0-3")
    lines = ran.out.splitlines()
    assert lines[0].endswith(
        "9 tokens, read by its own head, which is asked for the token at its place"
    )
    assert [line.split()[0] for line in lines[3:9]] == list("012345")
    assert "[CLS]" in lines[2]
    assert "4" in lines[-1].split()


def test_decoded_texts(command: Command, models: Models) -> None:
    ran = command("lens", models["bert"], *TEXTS, "--decode", "--json")
    shown = ran.json["decoded"]
    assert [item["text"] for item in shown] == list(TEXTS[1::2])
    assert shown[0]["tokens"] == ["great", "word1", "word2", "dull"]
    assert [len(row["tokens"]) for row in shown[0]["layers"]] == [4] * 6
    assert list(shown[0]["layers"][0]["tokens"][0]) == ["token", "right", "confidence"]
    assert "decoded by the own head" in command("lens", models["bert"], *TEXTS, "--decode").out


def test_no_more_texts_are_decoded_than_can_be_read(command: Command, models: Models) -> None:
    many = [part for n in range(25) for part in ("--text", f"word{n} dull")]
    ran = command("lens", models["bert"], *many, "--decode", "--json")
    assert len(ran.json["decoded"]) == 20
    assert "first 20 of 25 texts" in ran.err


def test_long_texts_are_cut_and_that_is_said(command: Command, models: Models) -> None:
    ran = command("lens", models["bert"], *TEXTS, "--max-length", 5, "--decode", "--json")
    assert ran.json["cut"] == 1
    assert "1 cut at 5 tokens" in ran.err
    assert len(ran.json["decoded"][0]["tokens"]) == 3
    # what the tokenizer allows is the limit if nothing else is
    long = command("lens", models["bert"], "--text", "dull " * 80, "--decode", "--json").json
    assert (long["cut"], len(long["decoded"][0]["tokens"])) == (1, 30)


def test_memory_for_plans_changes_only_the_pieces(command: Command, models: Models) -> None:
    call = ("lens", models["bert"], "--curve", "drop-one", "--batch-tokens", 2**20, "--json")
    # a state of these takes 300 x 29 tokens x 64 bytes, and the walk holds four
    many = [part for n in range(300) for part in ("--text", f"dull word{n % 9}" + " word1" * 25)]
    whole, small = command(*call, *many).json, command(*call, *many, "--memory", 1).json
    assert small["plans"] == whole["plans"]
    assert small["edges"] == whole["edges"] == whole["layer_applications"]
    assert small["layer_applications"] == 3 * small["edges"]


def test_a_model_without_head(command: Command, models: Models) -> None:
    ran = command("lens", models["body"], *TEXTS)
    assert (ran.code, ran.out) == (2, "")
    assert "BertModel has no language-modelling head; BertForMaskedLM has one" in ran.err
    assert "--fit-head" in ran.err


def test_a_fitted_head_is_called_so_everywhere(command: Command, models: Models) -> None:
    arguments = ("lens", models["body"], *TEXTS, "--fit-head", "--decode")
    found = command(*arguments, "--json").json
    assert found["head"] == found["decoded"][0]["head"] == "fitted"
    shown = command(*arguments).out
    assert "read by a head FITTED on these texts, the body frozen" in shown
    assert shown.count("decoded by the fitted head") == 3
    again = command(*arguments, "--json").json
    assert again["layers"] == found["layers"]


def test_the_seed_of_a_fitted_head(command: Command, models: Models, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"  # more tokens than one update takes, so that their order matters
    texts.write_text("\n".join(f"word{i % 9} word{i % 7} great dull" for i in range(200)))
    arguments = ("lens", models["body"], "--data", texts, "--fit-head", "--json")
    found = command(*arguments).json["layers"]
    assert command(*arguments, "--seed", 0).json["layers"] == found
    assert command(*arguments, "--seed", 1).json["layers"] != found


def test_fitting_a_head_though_there_is_one(command: Command, models: Models) -> None:
    ran = command("lens", models["bert"], *TEXTS, "--fit-head", "--json")
    assert ran.json["head"] == "fitted"
    assert "has a head of its own" in ran.err


def test_the_head_of_another_checkpoint(command: Command, models: Models) -> None:
    source = str(models["bert"])
    own = command("lens", source, *TEXTS, "--json").json
    grafted = command("lens", models["body"], *TEXTS, "--head", source, "--json").json
    assert grafted["head"] == source
    assert grafted["layers"] != own["layers"]
    assert (
        f"read by the head of {source}"
        in command("lens", models["body"], *TEXTS, "--head", source).out
    )
    ran = command("lens", models["body"], *TEXTS, "--head", models["short"])
    assert ran.code == 2
    assert "vocabulary" in ran.err


def test_the_head_of_a_checkpoint_with_other_tokens(
    command: Command, models: Models, tmp_path: Path
) -> None:
    other = shutil.copytree(models["bert"], tmp_path / "other")
    file = other / "tokenizer.json"
    said = json.loads(file.read_text())
    vocabulary = said["model"]["vocab"]
    first, second = TEXTS[1].split()[:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(said))
    ran = command("lens", models["body"], *TEXTS, "--head", other)
    assert (ran.code, ran.out) == (2, "")
    assert "to the first tokenizer" in ran.err
    file.unlink()
    (other / "tokenizer_config.json").unlink()
    assert command("lens", models["body"], *TEXTS, "--head", other).code == 0


def test_a_tuned_lens_belongs_to_its_head(command: Command, models: Models, tmp_path: Path) -> None:
    file = tmp_path / "lens.safetensors"
    made = command("lens", models["bert"], *TEXTS, "--tune", file, "--json")
    assert "trained on the very texts" in made.err
    read = command("lens", models["bert"], *TEXTS, "--tuned", file, "--decode", "--json").json
    assert read["tuned"] == made.json["tuned"]
    assert read["decoded"][0]["head"] == "own, tuned"
    ran = command("lens", models["llama"], *TEXTS, "--tuned", file)
    assert (ran.code, ran.out) == (2, "")
    assert "was made for the head" in ran.err
    before = file.read_bytes()
    ran = command("lens", models["bert"], *TEXTS, "--tune", file)
    assert ran.code == 2
    assert "exists already" in ran.err
    assert file.read_bytes() == before


@pytest.mark.parametrize("ending", ["txt", "csv", "jsonl", "dir"])
def test_texts_from_files(command: Command, models: Models, tmp_path: Path, ending: str) -> None:
    texts = ["great word1", "", "dull"]
    file = tmp_path / f"validation.{ending if ending != 'dir' else 'jsonl'}"
    if ending == "txt":
        file.write_text("\n".join(texts))
    elif ending == "csv":
        file.write_text("id,words\n" + "\n".join(f'{n},"{text}"' for n, text in enumerate(texts)))
    else:
        file.write_text("\n".join(json.dumps({"id": "x", "words": text}) for text in texts))
    source = file if ending != "dir" else tmp_path
    column = () if ending == "txt" else ("--column", "words")
    found = command("lens", models["bert"], "--data", source, *column, "--json").json
    assert (found["texts"], found["tokens"]) == (2, 3)
    limited = command("lens", models["bert"], "--data", source, *column, "--limit", 1, "--json")
    assert limited.json["tokens"] == 2
    assert "the first 1 of 2 texts" in limited.json["partial"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no texts are given"),
        (("--text", "dull", "--data", "x.txt"), "--text and --data are both given"),
        (("--text", " "), "all 1 texts are empty"),
        (("--data", "missing.txt"), "no such file"),
        (("--text", "dull", "--max-length", 2), "too short"),
        (("--text", "dull", "--max-length", 1), "too short"),
        (("--text", "dull", "--curve", "duplicate:11"), "cannot end at 11"),
        (("--text", "dull", "--tune", "/dev/null/lens"), "no directory that can be written to"),
        (("--text", "dull", "--memory", 0), "--memory"),
        (("--text", "dull", "--max-length", 100), "64 positions"),
        (("--text", "dull", "--column", "x"), "no column"),
        (("--text", "dull", "--plan", "0-9"), "layer 9"),
        (("--text", "dull", "--curve", "zigzag"), "there is no curve 'zigzag'"),
        (("--text", "dull", "--head", "nowhere/at/all"), "nowhere"),
        (("--text", "dull", "--head", "x", "--fit-head"), "--head and --fit-head"),
        (("--text", "dull", "--tune", "x", "--tuned", "y"), "--tuned and --tune"),
        (("--text", "dull", "--tuned", "missing"), "cannot be read as a tuned lens"),
        (("--text", "dull", "--dtype", "int8"), "--dtype 'int8'"),
        (("--text", "dull", "--device", "cuda:99"), "--device 'cuda:99' cannot be used"),
        (("--text", "dull", "--stack", "nope"), "nope"),
    ],
)
def test_bad_input(
    command: Command, models: Models, arguments: tuple[object, ...], said: str
) -> None:
    ran = command("lens", models["bert"], *arguments, "--json")
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_an_unknown_column_names_those_there_are(
    command: Command, models: Models, tmp_path: Path
) -> None:
    file = tmp_path / "some.csv"
    file.write_text("a,b\ndull,great\n")
    ran = command("lens", models["bert"], "--data", file, "--column", "c")
    assert ran.code == 2
    assert "has no column 'c'" in ran.err
    assert "a, b" in ran.err
    ran = command("lens", models["bert"], "--data", file)
    assert "which column holds the texts?" in ran.err


def test_a_tokenizer_of_another_model(command: Command, models: Models) -> None:
    ran = command("lens", models["short"], "--text", "dull word30")
    assert ran.code == 2
    assert "the tokenizer does not belong to the model" in ran.err


def test_no_tokenizer(command: Command, models: Models, tmp_path: Path) -> None:
    for file in models["bert"].iterdir():
        if "tokenizer" not in file.name:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    ran = command("lens", tmp_path, *TEXTS)
    assert ran.code == 2
    assert "tokenizer" in ran.err


def test_activations_that_are_no_numbers(command: Command, models: Models, tmp_path: Path) -> None:
    for file in models["bert"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["bert.encoder.layer.3.output.dense.weight"].fill_(float("nan"))
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for name, more in (("lens", ()), ("score", ()), ("compare", (models["bert"],))):
        ran = command(name, tmp_path, *more, *TEXTS)
        assert (ran.code, ran.out) == (2, ""), name
        assert "layer 3" in ran.err


def test_out_of_memory_halves_the_batch_and_says_so(
    command: Command, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.bert.modeling_bert import BertLayer

    own = BertLayer.forward

    def forward(self: BertLayer, states: torch.Tensor, *args: object, **more: object) -> object:
        if len(states) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return own(self, states, *args, **more)

    whole = command("lens", models["bert"], *TEXTS, "--json").json
    monkeypatch.setattr(BertLayer, "forward", forward)
    ran = command("lens", models["bert"], *TEXTS, "--json")
    assert "out of memory with 3 rows; going on with 2" in ran.err
    assert [row["accuracy"] for row in ran.json["layers"]] == [
        row["accuracy"] for row in whole["layers"]
    ]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "auto"])
def test_other_kinds_of_numbers(command: Command, models: Models, dtype: str) -> None:
    found = command("lens", models["llama"], *TEXTS, "--dtype", dtype, "--json").json
    exact = command("lens", models["llama"], *TEXTS, "--json").json
    for row, wanted in zip(found["layers"], exact["layers"], strict=True):
        assert row["logprob"] == pytest.approx(wanted["logprob"], rel=0.02)
