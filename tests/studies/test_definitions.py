"""The trials of each study, counted by hand against the papers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from restack.errors import RestackError
from restack.plan import Plan
from restack.studies import drop, duplicate, reinit, successors
from restack.studies.laying import parts_of
from restack.studies.scale import NAMES
from restack.studies.subjects import PAPERS, Subject, distinct
from restack.sweep.trial import Data, Model, Trial
from tests.studies.hand import row_of

BERT = PAPERS["drop"][0]
TINY = Subject("tiny", Model("tiny"), 4)


def parts(trials: list[Trial]) -> Counter[str]:
    """Different trials of each part."""
    seen = {(trial.labels["part"], trial.key) for trial in trials}
    return Counter(part for part, _ in seen)


# --- reinit -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tamkin() -> list[Trial]:
    return reinit.definition(PAPERS["reinit"], "paper")


def test_reinit_counts(tamkin: list[Trial]) -> None:
    found = parts(tamkin)
    # k = 0..12; 50 trials at 500 and 3 at 5k on three tasks, 3 at 50k on all but CoLA
    assert found["incremental"] == 13 * (50 * 3 + 3 * 3 + 3 * 2)
    # ten blocks, fresh or kept, ten trials, three tasks; the lines are trials of the curve
    assert sum(t.labels["way"] != "line" for t in tamkin if t.labels["part"] == "blocks") == 600
    singles = [t for t in tamkin if t.labels["part"] == "single" and t.labels["layer"] >= 0]
    assert len(singles) == 12 * 3 * 3
    orders = [t for t in tamkin if t.labels.get("order") == "shuffled"]
    assert len(orders) == 10 * 3
    assert found["probe"] == 3
    assert found["long"] == 3 * 3 * 3 * 2


def test_reinit_reference_lines_cost_nothing(tamkin: list[Trial]) -> None:
    curve = {t.key for t in tamkin if t.labels["part"] == "incremental"}
    for trial in tamkin:
        if trial.labels.get("way") == "line" or trial.labels.get("order") in ("whole", "fresh"):
            assert trial.key in curve


def test_reinit_epochs_sizes_and_settings(tamkin: list[Trial]) -> None:
    curve = [t for t in tamkin if t.labels["part"] == "incremental"]
    epochs = {(t.data.size, t.settings["epochs"]) for t in curve if t.data}
    assert epochs == {(500, 5), (5000, 3), (50000, 3)}
    for trial in curve:
        assert (trial.settings["batch_size"], trial.settings["rate"]) == (8, 2e-5)
        assert trial.settings["head"] == "mean-pool"
        assert trial.data is not None
        assert trial.data.subsample == trial.seed  # a draw of its own for each trial index
    probe = next(t for t in tamkin if t.kind == "probe")
    assert (probe.settings["trials"], probe.settings["epochs"]) == (8, 40)
    assert probe.settings["pooling"] == "mean"


@pytest.mark.parametrize("scale", NAMES)
def test_probes_are_given_all_examples_to_draw_from(scale: str) -> None:
    """CoLA has fewer than twice as many as a probe draws at `small`."""
    for trial in [*reinit.definition([BERT], scale), *drop.definition([BERT], scale)]:
        if trial.kind == "probe":
            assert trial.data is not None
            assert trial.data.size is None


def test_the_nth_permutation_is_the_same_on_each_task(tamkin: list[Trial]) -> None:
    shuffled = [t for t in tamkin if t.labels.get("order") == "shuffled"]
    by_number = {t.labels["permutation"]: set() for t in shuffled}
    for trial in shuffled:
        by_number[trial.labels["permutation"]].add(trial.plan)
    assert all(len(plans) == 1 for plans in by_number.values())
    assert len(set.union(*by_number.values())) == 10


def test_reinit_plans(tamkin: list[Trial]) -> None:
    by_k = {t.labels["k"]: t.plan for t in tamkin if t.labels["part"] == "incremental"}
    assert by_k[12] == "0-11"
    assert by_k[0] == "0-11@fresh"
    assert by_k[9] == "0-8,9-11@fresh"
    blocks = {
        (t.labels["way"], t.labels["start"]): t.plan for t in tamkin if t.labels["part"] == "blocks"
    }
    assert blocks["reinitialised", 3] == "0-2,3-5@fresh,6-11"
    assert blocks["preserved", 3] == "0-2@fresh,3-5,6-11@fresh"


def test_reinit_ablations_name_their_initialiser(tamkin: list[Trial]) -> None:
    inits = {
        t.labels["way"]: t.settings.get("init") for t in tamkin if t.labels["part"] == "ablations"
    }
    assert inits == {
        "as in the paper": "paper",
        "norms kept": "paper-keep-norms",
        "released code": "released",
        "rate x 5": "paper",
    }


# --- drop ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sajjad() -> list[Trial]:
    return drop.definition(PAPERS["drop"], "paper")


def test_drop_counts(sajjad: list[Trial]) -> None:
    # twelve layers: untouched and 3 x 5 strategies; six: symmetric only where 2 of 6 go
    twelve, six = 1 + 3 * 5, 1 + 4 + 5 + 4
    strategies = [t for t in sajjad if t.labels["part"] == "strategies"]
    assert len(strategies) == 7 * (3 * twelve + 2 * six)
    assert parts(sajjad)["contribution"] == 5 * 7
    assert parts(sajjad)["cost"] == 5
    assert parts(sajjad)["classifiers"] == parts(sajjad)["moved"] == 5 * 5
    # fine-tuned first: one trial each on the five stable tasks
    assert parts(sajjad)["again"] == parts(sajjad)["again first"] == 5 * 5
    # six layers one by one, two epochs each: six steps and the last
    steps = [t for t in sajjad if t.labels["part"] == "iterative step"]
    assert len(steps) == 5 * (3 * 6 + 2 * 3)
    assert {t.settings["epochs"] for t in steps} == {2}


@pytest.mark.parametrize(
    ("strategy", "count", "gone"),
    [  # as the paper has them, counted from 1 there
        ("top", 2, (10, 11)),
        ("bottom", 2, (0, 1)),
        ("even", 2, (9, 11)),
        ("odd", 2, (8, 10)),
        ("even", 4, (5, 7, 9, 11)),
        ("odd", 4, (4, 6, 8, 10)),
        ("symmetric", 2, (5, 6)),
        ("symmetric", 6, (3, 4, 5, 6, 7, 8)),
    ],
)
def test_strategies_are_those_of_the_paper(
    strategy: str, count: int, gone: tuple[int, ...]
) -> None:
    assert drop.strategies(12, count)[strategy].gone == gone


def test_contribution_waits_for_its_measurement() -> None:
    names = {t.labels.get("strategy") for t in drop.definition([BERT], "smoke")}
    assert "contribution" not in names
    cosines = [0.5] * 12
    cosines[2], cosines[4] = 0.96, 0.97
    layers = {"layers": [{"cls_cosine": value} for value in cosines]}
    (trial,) = (t for t in drop.definition([BERT], "smoke") if t.kind == "score")
    found = drop.definition([BERT], "smoke", rows=[row_of(trial, layers)])
    chosen = [t for t in found if t.labels.get("strategy") == "contribution"]
    assert {t.plan for t in chosen} == {"0-1,3,5-11"}  # what the paper found for BERT at 0.95
    assert {t.labels["k"] for t in chosen} == {2}
    # of other tasks, or of other examples, it is no answer
    for other in (
        drop.definition([BERT], "smoke", tasks=["rte"], rows=[row_of(trial, layers)]),
        drop.definition([BERT], "smoke", {"sst2": Data("elsewhere")}, rows=[row_of(trial, layers)]),
        drop.definition([BERT], "smoke", tasks=["sst2", "rte"], rows=[row_of(trial, layers)]),
    ):
        assert "contribution" not in {t.labels.get("strategy") for t in other}


def test_dropping_from_a_tuned_model_freezes_what_will_go(sajjad: list[Trial]) -> None:
    first = next(t for t in sajjad if t.labels["part"] == "again first")
    again = next(t for t in sajjad if t.labels["part"] == "again")
    assert first.settings["freeze"] == [6, 7, 8, 9, 10, 11]
    assert first.keep == ("model",)
    assert again.needs == (first.key,)
    assert again.plan == "0-5"


def test_iterative_dropping_is_a_chain() -> None:
    found = [
        t
        for t in drop.definition([BERT], "small", tasks=["sst2"])
        if str(t.labels["part"]).startswith("iterative") and t.seed == 0
    ]
    assert [t.plan for t in found] == ["0-11", *(f"0-{n}" for n in range(10, 4, -1))]
    assert [t.needs for t in found] == [(), *((t.key,) for t in found[:-1])]


# --- duplicate ----------------------------------------------------------------------------------


def test_duplicate_counts() -> None:
    found = duplicate.definition(PAPERS["duplicate"], "paper")
    depths = [t for t in found if t.labels["part"] == "depths"]
    untouched = [t for t in depths if t.labels["added"] == 0]
    assert len(untouched) == 6 * 3 * 3  # models, tasks, seeds
    # BERT to twice its depth; ALBERT to the deepest that tables 4 and 6 name
    assert len(depths) - len(untouched) == 3 * (12 + 24 + 12 + 11 + 8 + 8)
    assert parts(found)["lens"] == 6 * 3 * 2
    squad = next(t for t in depths if t.task == "squad_v2")
    assert squad.settings["max_length"] == 384


def test_duplicate_rules() -> None:
    bert, albert = PAPERS["duplicate"][0], PAPERS["duplicate"][2]
    assert str(duplicate.deeper(bert, "first", 3)) == "0-2x2,3-11"
    assert str(duplicate.deeper(bert, "last", 2)) == "0-9,10-11x2"
    assert str(duplicate.deeper(bert, "one", 3)) == "0x4,1-11"
    assert len(duplicate.deeper(albert, "first", 38)) == 50
    assert [len(plan) for plan in duplicate.curve(bert, "first", 50)] == list(range(12, 25))
    assert [len(plan) for plan in duplicate.curve(albert, "repeat", 50)] == list(range(12, 51))


def test_without_a_head_nothing_is_read() -> None:
    headless = replace(BERT, head=False)
    kinds = {t.kind for t in duplicate.definition([headless], "smoke")}
    assert kinds == {"tune", "ensemble"}


def test_texts_alone_train_nothing() -> None:
    found = duplicate.definition([BERT], "small", texts=Data("texts.txt"))
    assert {t.kind for t in found} == {"lens", "plans"}
    assert {t.data.limit for t in found if t.data} == {500}


def test_the_ensemble_takes_one_trial_of_each_depth() -> None:
    found = duplicate.definition([BERT], "small", tasks=["sst2_sentence"])
    by_members = {t.labels["members"]: t for t in found if t.kind == "ensemble"}
    keys = {t.key: t for t in found}
    deeper = by_members["deeper"]
    against = deeper.settings["against"]
    assert len(against) == 3
    assert {keys[k].labels["added"] for k in deeper.inputs if k not in against} == {1, 3, 6}
    assert {keys[k].labels["added"] for k in by_members["baseline"].inputs} == {0}


# --- scales -------------------------------------------------------------------------------------


def test_seeds_are_the_same_trials_at_every_number_of_trials() -> None:
    """Asking for more trials, or for another study on the same settings, repeats none."""
    few = reinit.definition([BERT], "paper", tasks=["sst2"])
    sizes = {
        t.key for t in few if t.labels["part"] == "incremental" and t.data and t.data.size == 5000
    }
    others = {
        t.key
        for t in few
        if t.labels["part"] == "ablations" and t.labels["way"] == "as in the paper"
    }
    assert others <= sizes


@pytest.mark.parametrize("scale", NAMES)
def test_keys_are_stable_and_labels_name_the_study(scale: str) -> None:
    for module in (duplicate, drop, reinit):
        once = module.definition([TINY], scale)
        again = module.definition([TINY], scale)
        assert [t.key for t in once] == [t.key for t in again]
        assert {t.labels["study"] for t in once} == {module.STUDY}
        assert {t.labels["scale"] for t in once} == {scale}


def test_precision_is_that_of_training_alone() -> None:
    plain = reinit.definition([TINY], "smoke")
    other = reinit.definition([TINY], "smoke", precision="bf16")
    for one, two in zip(plain, other, strict=True):
        assert "precision" not in one.settings
        assert two.settings.get("precision") == ("bf16" if two.kind == "tune" else None)
        assert (one.key == two.key) == (one.kind != "tune")


def test_an_unknown_scale_is_named() -> None:
    with pytest.raises(RestackError, match="no scale 'huge'"):
        drop.definition([TINY], "huge")


def test_parts_of_another_depth() -> None:
    assert parts_of(12, (0, 3, 6, 9, 12)) == [0, 3, 6, 9, 12]
    assert parts_of(24, (0, 3, 12)) == [0, 6, 24]
    assert parts_of(4, (0, 6, 12)) == [0, 2, 4]


def test_models_of_one_name_are_told_apart() -> None:
    two = distinct([Subject("m", Model("a/m"), 2), Subject("m", Model("b/m"), 2)])
    assert [s.name for s in two] == ["a/m", "b/m"]
    with pytest.raises(RestackError, match="twice"):
        distinct([TINY, TINY])


# --- successors ---------------------------------------------------------------------------------


def test_successors_wait_for_what_they_measure() -> None:
    llama = Subject("llama", Model("llama"), 4, causal=True)
    texts = Data("texts.txt")
    first = successors.definition("shortgpt", [llama], "small", texts)
    assert [t.kind for t in first] == ["score"]
    layers = {"layers": [{"block_influence": v} for v in (0.9, 0.1, 0.2, 0.8)]}
    measured = [row_of(first[0], layers)]
    second = successors.definition("shortgpt", [llama], "small", texts, rows=measured)
    removed = next(t for t in second if t.labels["part"] == "removed")
    assert removed.settings["plans"][:3] == ["0-3", "0,2-3", "0,3"]  # least influence first
    assert removed.settings["read"] == "loss"
    other = Data("other texts.txt")
    assert len(successors.definition("shortgpt", [llama], "small", other, rows=measured)) == 1


def test_every_block_is_repeated() -> None:
    blocks = successors.repeated(4)
    assert len(blocks) == 4 * 5 / 2
    assert str(blocks[1, 2]) == "0-2,1-3"
    assert all(len(plan) == 4 + j - i + 1 for (i, j), plan in blocks.items())
    assert len(successors.repeated(12, 4)) == 12 + 11 + 10 + 9


def test_successors_need_a_head() -> None:
    with pytest.raises(RestackError, match="no language-modelling head"):
        successors.definition("repeat", [replace(TINY, head=False)], "smoke", Data("t"))


def test_upscaled_stacks() -> None:
    ways = {name: str(plan) for name, plan in successors.upscaled(32).items()}
    assert ways["overlap (SOLAR)"] == "0-23,8-31"  # 32 to 48, as in SOLAR
    assert len(Plan.parse(ways["no-op copies (LLaMA-Pro)"], 32)) == 48
