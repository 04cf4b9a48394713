"""The tests of claims on rows made by hand: seen, not seen, undecided, not applicable."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from restack.studies import claims_drop, claims_duplicate, claims_reinit, claims_successors
from restack.studies.claim import judged
from restack.studies.claims import CLAIMS
from restack.studies.findings import STATUSES
from restack.studies.known import FINDINGS, findings_in
from restack.studies.successors import repeated
from restack.studies.view import Unmeasured, View
from restack.sweep.rows import Row
from restack.sweep.trial import Trial
from tests.studies.hand import row, seeds, view

HIGH, LOW = [0.92, 0.93, 0.925, 0.921], [0.80, 0.81, 0.79, 0.803]
BETWEEN = [0.86, 0.95, 0.78, 0.91]


def verdict(study: str, key: str, one: View) -> str:
    claim = next(claim for claim in CLAIMS[study] if claim.key == key)
    (found,) = judged([claim], one, {})
    return found.status


def lens(values: Sequence[float], when: str = "pretrained", first: float | None = 0.9) -> Row:
    layers = [{"layer": i, "accuracy": v} for i, v in enumerate(values)]
    after = [first] * len(layers)
    payload = {"tokens": 10_000, "layers": layers, "after_first": after, "first_tokens": 500}
    return row("lens", payload=payload, when=when)


# --- all claims ---------------------------------------------------------------------------------


def test_claims_are_told_apart_and_have_figures() -> None:
    for study, claims in CLAIMS.items():
        assert study in FINDINGS
        keys = [claim.key for claim in claims]
        assert len(set(keys)) == len(keys)
        assert all(claim.statement and claim.paper and claim.figure for claim in claims)


@pytest.mark.parametrize("study", CLAIMS)
def test_without_measurements_nothing_is_decided(study: str) -> None:
    nothing = view(row("something else"), row("strategies", status="pending", strategy="none"))
    for found in judged(CLAIMS[study], nothing, {}):
        assert found.status in ("undecided", "not applicable")
        assert found.why


def test_failed_trials_are_named() -> None:
    one = view(row("again", status="failed", k=6))
    (found,) = [v for v in judged(CLAIMS["drop"], one, {}) if v.claim == "from-fine-tuned"]
    assert "failed (broken)" in found.why


def test_a_task_of_which_nothing_is_learned_decides_nothing() -> None:
    """Models that answer no question at all are all alike, which says nothing of their depth."""

    def span(exact: float, added: int, seed: int) -> Row:
        plan = "0-11" if added == 0 else f"0x{added + 1},1-11"
        found = row(
            "depths",
            exact,
            metric="f1",
            task="squad_v2",
            plan=plan,
            seed=seed,
            added=added,
            rule="first",
        )
        rest = {"exact": exact, "has_answer_exact": 2 * exact - 1.0, "no_answer_exact": 1.0}
        found.metrics["validation"].update(rest)  # type: ignore[attr-defined]
        return found

    blank = view(*[span(0.5, added, seed) for added in (0, 1) for seed in range(3)])
    assert blank.unlearned() == ["squad_v2"]
    (found,) = [
        v for v in judged(CLAIMS["duplicate"], blank.learned(), {}) if v.claim == "deeper-improves"
    ]
    assert found.status == "undecided"
    assert (
        findings_in([replace(r, trial=labelled(r.trial, "duplicate")) for r in blank.rows])[0]
        .notes[0]
        .startswith("SQuAD 2.0: fine-tuned as it is, one gives one answer to all examples.")
    )

    some = [span(0.5, 0, 0), span(0.6, 0, 1), span(0.5, 1, 0)]
    assert view(*some).unlearned() == []
    assert view(*some).learned().rows == tuple(some)

    still = view(*seeds("strategies", [0.0] * 3, task="cola", metric="matthews", plan="0-11", k=0))
    assert still.unlearned() == ["cola"]
    with pytest.raises(Unmeasured, match="learned nothing"):
        still.learned().need("strategies", "scores", k=0)


def labelled(trial: Trial, study: str) -> Trial:
    return replace(trial, labels={**trial.labels, "study": study})


# --- duplicate ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lowest", "status"), [(0.85, "seen"), (0.75, "not seen"), (0.8, "undecided")]
)
def test_intermediate_layers(lowest: float, status: str) -> None:
    one = view(lens([0.3, 0.9, lowest, 0.9, 0.5]))  # the ends do not count
    assert verdict("duplicate", "intermediate-decode", one) == status


def test_layers_of_several_tasks_are_pooled_by_tokens() -> None:
    few = lens([0.1] * 3)
    few.payload["tokens"] = 100
    found = claims_duplicate.pooled([lens([0.9] * 3), few])
    assert found[1].mean == pytest.approx((0.9 * 10_000 + 0.1 * 100) / 10_100)
    assert found[1].n == 10_100


def test_without_a_head_the_lens_does_not_apply() -> None:
    one = view(row("depths", 0.9, head=False, added=0, rule="first"))
    assert verdict("duplicate", "intermediate-decode", one) == "not applicable"
    assert verdict("duplicate", "duplicates-untrained", one) == "not applicable"


def test_behind_the_class_token() -> None:
    assert verdict("duplicate", "behind-class-token", view(lens([0.9] * 3, first=0.59))) == "seen"
    assert (
        verdict("duplicate", "behind-class-token", view(lens([0.8] * 3, first=0.95))) == "not seen"
    )
    assert (
        verdict("duplicate", "behind-class-token", view(lens([0.9] * 3, first=0.9))) == "undecided"
    )


def test_fine_tuning_and_the_last_layers() -> None:
    before = [0.9] * 13
    after = [0.9] * 11 + [0.6, 0.3]
    one = view(lens(before), lens(after, "fine-tuned"))
    assert verdict("duplicate", "fine-tuning-last-layers", one) == "seen"
    one = view(lens(before), lens([0.9, 0.5, *after[2:]], "fine-tuned"))
    assert verdict("duplicate", "fine-tuning-last-layers", one) == "not seen"
    one = view(lens(before), lens(before, "fine-tuned"))
    assert verdict("duplicate", "fine-tuning-last-layers", one) == "undecided"
    # two points of a few hundred tokens may be chance
    few = [lens(before), lens(after, "fine-tuned")]
    for each in few:
        each.payload["tokens"] = 200
    assert verdict("duplicate", "fine-tuning-last-layers", view(*few)) == "undecided"


def test_untrained_depth() -> None:
    def deepest(accuracy: float, shared: bool) -> Row:
        plan, depth = ("0-11,0-11,0-11,0-11,0-1", 50) if shared else ("0-11x2", 24)
        plans = [
            {"plan": "0-11", "depth": 12, "accuracy": 0.95},
            {"plan": plan, "depth": depth, "accuracy": accuracy},
        ]
        return row("untrained", payload={"tokens": 5000, "plans": plans}, shared=shared)

    for shared in (False, True):
        assert verdict("duplicate", "duplicates-untrained", view(deepest(0.8, shared))) == "seen"
        assert (
            verdict("duplicate", "duplicates-untrained", view(deepest(0.6, shared))) == "not seen"
        )


def depths(task: str, *groups: Sequence[float]) -> list[Row]:
    return [
        one
        for added, values in enumerate(groups)
        for one in seeds(
            "depths", values, task=task, added=added, rule="first", metric=metric(task)
        )
    ]


def metric(task: str) -> str:
    return "f1" if task.startswith("squad") else "accuracy"


def test_deeper_models() -> None:
    better, same = (
        [v + 0.02 for v in HIGH],
        [v + d for v, d in zip(HIGH, (1e-3, -1e-3, 2e-3, 0), strict=True)],
    )
    assert verdict("duplicate", "deeper-improves", view(depths("snli", HIGH, better))) == "seen"
    assert verdict("duplicate", "deeper-improves", view(depths("snli", HIGH, LOW))) == "not seen"
    assert verdict("duplicate", "deeper-improves", view(depths("snli", HIGH, same))) == "undecided"
    assert verdict("duplicate", "sst2-hardly", view(depths("sst2", HIGH, same))) == "seen"
    assert verdict("duplicate", "sst2-hardly", view(depths("sst2", HIGH, better))) == "not seen"
    assert verdict("duplicate", "sst2-hardly", view(depths("snli", HIGH, same))) == "undecided"


def test_one_trial_a_depth_is_decided_by_many_depths() -> None:
    base = [0.90, 0.91, 0.905]
    up = depths("squad_v2", base, *([0.92 + i / 1000] for i in range(8)))
    assert verdict("duplicate", "deeper-improves", view(up)) == "seen"
    assert verdict("duplicate", "deeper-improves", view(up[:6])) == "undecided"
    down = depths("squad_v2", base, *([0.80 + i / 1000] for i in range(8)))
    assert verdict("duplicate", "deeper-improves", view(down)) == "not seen"


def test_rules_of_repeating() -> None:
    def rules(first: Sequence[float], last: Sequence[float], one: Sequence[float]) -> View:
        ways = {"first": first, "last": last, "one": one}
        return view(*(seeds("rules", v, rule=rule, added=3) for rule, v in ways.items()))

    assert verdict("duplicate", "first-layers-best", rules(HIGH, LOW, LOW)) == "seen"
    assert verdict("duplicate", "first-layers-best", rules(LOW, HIGH, LOW)) == "not seen"
    assert verdict("duplicate", "first-layers-best", rules(HIGH, BETWEEN, LOW)) == "undecided"
    shared = view(row("rules", 0.9, shared=True, rule="first", added=3))
    assert verdict("duplicate", "first-layers-best", shared) == "not applicable"


@pytest.mark.parametrize(
    ("low", "high", "status"),
    [(0.001, 0.02, "seen"), (-0.02, -0.001, "not seen"), (-0.01, 0.02, "undecided")],
)
def test_ensembles(low: float, high: float, status: str) -> None:
    gain = {"validation": {"mean": (low + high) / 2, "low": low, "high": high, "n": 500}}
    one = row(
        "ensemble", 0.8, task="squad_v2", metric="f1", payload={"gain": gain}, members="deeper"
    )
    assert verdict("duplicate", "ensemble-of-depths", view(one)) == status


# --- drop ---------------------------------------------------------------------------------------


def strategies(values: dict[str, Sequence[float]], count: int) -> list[Row]:
    return [
        one
        for name, scores in values.items()
        for one in seeds(
            "strategies",
            scores,
            strategy=name,
            k=0 if name == "none" else count,
            plan=f"plan of {name}",
        )
    ]


def all_counts(**values: Sequence[float]) -> View:
    return view(*(strategies(values, count) for count in (2, 4, 6)))


def test_top_against_all() -> None:
    kept = {"top": HIGH, "even": LOW, "odd": LOW, "symmetric": LOW, "bottom": LOW}
    assert verdict("drop", "top-best", all_counts(**kept)) == "seen"
    assert (
        verdict("drop", "top-best", all_counts(**kept | {"even": HIGH, "top": LOW})) == "not seen"
    )
    assert verdict("drop", "top-best", all_counts(**kept | {"even": BETWEEN})) == "undecided"
    assert verdict("drop", "top-beats-bottom", all_counts(**kept)) == "seen"
    assert verdict("drop", "top-beats-bottom", all_counts(top=LOW, bottom=HIGH)) == "not seen"
    lower = {"bottom": [v - 0.1 for v in LOW]}
    assert verdict("drop", "bottom-worst", all_counts(**kept | lower)) == "seen"
    assert verdict("drop", "bottom-worst", all_counts(**kept | {"bottom": HIGH})) != "seen"


@pytest.mark.parametrize(("loss", "status"), [(0.01, "seen"), (0.05, "not seen")])
def test_half_of_the_layers(loss: float, status: str) -> None:
    noise = (0.001, -0.001, 0.002, 0.0)
    top = [v - loss + d for v, d in zip(HIGH, noise, strict=True)]
    one = view(strategies({"none": HIGH, "top": top}, 6))
    assert verdict("drop", "half-under-three", one) == status


def test_a_third_of_the_layers_on_every_task() -> None:
    """The task that loses most on average decides nothing about one that is uncertain."""

    def tasks(**losses: tuple[float, float]) -> View:
        rows = []
        for task, (loss, noise) in losses.items():
            rows += seeds("strategies", [0.9] * 3, task=task, strategy="none", k=0)
            lower = [0.9 - loss + d * noise for d in (1, -1, 0.5)]
            rows += seeds("strategies", lower, task=task, strategy="top", k=4, plan="0-7")
        return view(rows)

    steady, wide = (0.01, 1e-4), (0.0, 0.02)
    assert verdict("drop", "third-on-every-task", tasks(sst2=steady, qnli=steady)) == "seen"
    assert verdict("drop", "third-on-every-task", tasks(sst2=steady, qnli=wide)) == "undecided"
    much = (0.05, 1e-4)
    assert verdict("drop", "third-on-every-task", tasks(sst2=steady, qnli=much)) == "not seen"


def test_two_trials_decide_nothing() -> None:
    one = view(strategies({"none": HIGH[:2], "top": LOW[:2]}, 6))
    assert verdict("drop", "half-under-three", one) == "undecided"


def test_trials_are_paired_by_task_and_seed() -> None:
    """A difference that is the same on every task is seen however far apart the tasks are."""
    rows = []
    for task, base in (("sst2", 0.9), ("qnli", 0.6), ("rte", 0.3)):
        rows += seeds("strategies", [base, base + 0.01], task=task, strategy="top", k=4, plan="a")
        lower = [base - 0.02, base - 0.0099]
        rows += seeds("strategies", lower, task=task, strategy="bottom", k=4, plan="b")
    gap = claims_drop.difference(rows[0::4] + rows[1::4], rows[2::4] + rows[3::4])
    assert gap.n == 6
    assert gap.low is not None
    assert gap.low > 0


def test_time_saved() -> None:
    def cost(ratio: float) -> View:
        entry = {"ratio": ratio, "low": ratio - 0.02, "high": ratio + 0.02, "n": 10}
        plans = [{"depth": 12, "inference": entry}, {"depth": 6, "inference": entry}]
        return view(row("cost", payload={"plans": plans}))

    assert verdict("drop", "half-the-time", cost(0.51)) == "seen"
    assert verdict("drop", "half-the-time", cost(0.7)) == "not seen"
    assert verdict("drop", "half-the-time", cost(0.55)) == "undecided"


def test_beside_a_distilled_model() -> None:
    mine = view(strategies({"top": HIGH}, 6))
    assert verdict("drop", "on-par-with-distilled", mine) == "not applicable"

    def beside(values: Sequence[float]) -> str:
        other = view(seeds("strategies", values, strategy="none", k=0, layers=6, subject="small"))
        return verdict("drop", "on-par-with-distilled", View("one", mine.rows, (other,)))

    assert beside([v + d for v, d in zip(HIGH, (1e-3, -1e-3, 0, 1e-3), strict=True)]) == "seen"
    assert beside(LOW) == "not seen"
    assert beside(BETWEEN) == "undecided"


def test_sensitive_tasks() -> None:
    def losses(hard: float, easy: float) -> View:
        rows = []
        for task, loss in (("qnli", hard), ("stsb", easy)):
            name = "pearson" if task == "stsb" else "accuracy"
            noise = (0.0, 0.001, -0.001) if task == "qnli" else (0.001, -0.001, 0.0)
            rows += seeds("strategies", [0.9] * 3, task=task, strategy="none", k=0, metric=name)
            rows += seeds(
                "strategies",
                [0.9 - loss + d for d in noise],
                task=task,
                strategy="top",
                k=6,
                metric=name,
            )
        return view(rows)

    assert verdict("drop", "sensitive-tasks", losses(0.1, 0.02)) == "seen"
    assert verdict("drop", "sensitive-tasks", losses(0.02, 0.1)) == "not seen"
    assert verdict("drop", "sensitive-tasks", losses(0.02, 0.02)) == "undecided"


def test_inside_the_tuned_model() -> None:
    def look(scores: Sequence[float], cosines: Sequence[float]) -> View:
        probes = {"layers": [{"mean": v} for v in scores]}
        moved = {"layers": [{"token_cosine": v} for v in cosines]}
        return view(row("classifiers", payload=probes), row("moved", payload=moved))

    up = [0.5 + 0.03 * i for i in range(13)]
    one = look([*up[:-1], 0.5], [1 - 0.02 * i for i in range(12)])  # the last layer is free
    assert verdict("drop", "classifiers-rise", one) == "seen"
    assert verdict("drop", "higher-layers-move", one) == "seen"
    other = look(up[::-1], [0.5 + 0.02 * i for i in range(12)])
    assert verdict("drop", "classifiers-rise", other) == "not seen"
    assert verdict("drop", "higher-layers-move", other) == "not seen"


# --- reinit -------------------------------------------------------------------------------------


def curve(examples: int, scores: dict[int, float], task: str = "sst2") -> list[Row]:
    noise = (0.0, 0.002, -0.002, 0.001)
    return [
        one
        for k, value in scores.items()
        for one in seeds(
            "incremental", [value + d for d in noise], k=k, examples=examples, task=task
        )
    ]


def probes(values: Sequence[float], base: float = 0.5) -> Row:
    layers = [
        {"layer": i, "mean": v, "low": v - 0.01, "high": v + 0.01, "n": 8}
        for i, v in enumerate(values)
    ]
    return row("probe", payload={"layers": layers, "baseline": {"accuracy": base}})


def test_data_matters() -> None:
    few, much = {0: 0.5, 6: 0.55, 12: 0.9}, {0: 0.5, 6: 0.85, 12: 0.9}
    one = view(curve(500, few), curve(5000, much))
    assert verdict("reinit", "data-matters", one) == "seen"
    assert verdict("reinit", "data-matters", view(curve(500, much), curve(5000, few))) == "not seen"
    assert verdict("reinit", "data-matters", view(curve(500, few))) == "undecided"
    flat = {0: 0.5, 6: 0.5, 12: 0.505}
    assert (
        verdict("reinit", "data-matters", view(curve(500, flat), curve(5000, much))) == "undecided"
    )


def test_probes_beside_curves() -> None:
    probe = probes([0.5] * 7 + [0.6, 0.7, 0.75, 0.8, 0.85, 0.9])
    few, much = {0: 0.5, 6: 0.52, 12: 0.9}, {0: 0.6, 6: 0.85, 12: 0.93}
    one = view(probe, curve(500, few), curve(5000, much))
    assert verdict("reinit", "early-probes-near-chance", one) == "seen"
    assert verdict("reinit", "early-layers-transfer", one) == "seen"
    assert verdict("reinit", "aligns-at-small-data", one) == "seen"
    other = view(probes([0.8] * 13), curve(500, {0: 0.9, 6: 0.5, 12: 0.9}))
    assert verdict("reinit", "early-probes-near-chance", other) == "not seen"
    assert verdict("reinit", "early-layers-transfer", other) == "not seen"


def test_blocks_and_single_layers() -> None:
    def blocks(first: Sequence[float], last: Sequence[float]) -> View:
        rows = []
        for way, ends in (("preserved", (first, last)), ("reinitialised", (last, first))):
            for start, values in zip((0, 9), ends, strict=True):
                rows += seeds("blocks", values, way=way, start=start)
        return view(rows)

    assert verdict("reinit", "early-blocks-help", blocks(HIGH, LOW)) == "seen"
    assert verdict("reinit", "early-blocks-help", blocks(LOW, HIGH)) == "not seen"

    def single(worst: Sequence[float]) -> View:
        groups = {-1: HIGH, 0: worst, 5: [v - 0.001 * i for i, v in enumerate(HIGH)]}
        return view(*(seeds("single", v, layer=layer) for layer, v in groups.items()))

    assert verdict("reinit", "single-layers-little", single(HIGH)) == "seen"
    assert verdict("reinit", "single-layers-little", single(LOW)) == "not seen"


def orders(
    shuffled: Sequence[float], fresh: Sequence[float] = LOW, task: str = "sst2"
) -> list[Row]:
    groups = {"whole": HIGH, "fresh": fresh}
    rows = [
        one for order, v in groups.items() for one in seeds("orders", v, order=order, task=task)
    ]
    return rows + [
        row("orders", value, order="shuffled", permutation=n, seed=n, task=task)
        for n, value in enumerate(shuffled)
    ]


def test_shuffled_layers() -> None:
    near, far = [0.80, 0.81, 0.805, 0.80], [0.91, 0.90, 0.92, 0.91]
    assert verdict("reinit", "shuffled-near-random", view(orders(near))) == "seen"
    assert verdict("reinit", "shuffled-near-random", view(orders(far))) == "not seen"
    spread = [0.80, 0.83, 0.85, 0.79]
    assert verdict("reinit", "shuffled-near-random", view(orders(spread))) == "undecided"
    # where the whole model is no better than a fresh one there is nothing to lose
    assert verdict("reinit", "shuffled-near-random", view(orders(near, BETWEEN))) == "undecided"


def test_the_same_permutations_on_two_tasks() -> None:
    values = [0.7 + 0.01 * i for i in range(10)]
    one = view(orders(values), orders(values, task="qnli"))
    assert verdict("reinit", "orders-correlate", one) == "seen"
    one = view(orders(values), orders(values[::-1], task="qnli"))
    assert verdict("reinit", "orders-correlate", one) == "not seen"
    one = view(orders(values[:4]), orders([0.7, 0.9, 0.6, 0.8], task="qnli"))
    assert verdict("reinit", "orders-correlate", one) == "undecided"
    assert verdict("reinit", "orders-correlate", view(orders(values))) == "undecided"


def test_changes_of_the_procedure() -> None:
    def ways(plain: Sequence[float], changed: Sequence[float]) -> View:
        return view(
            seeds("ablations", plain, way="as in the paper", k=6),
            seeds("ablations", changed, way="rate x 5", k=6),
        )

    assert verdict("reinit", "larger-rate-no-gain", ways(HIGH, LOW)) == "seen"
    assert verdict("reinit", "larger-rate-no-gain", ways(LOW, HIGH)) == "not seen"
    assert verdict("reinit", "larger-rate-no-gain", ways(HIGH, BETWEEN)) == "undecided"


def test_epochs() -> None:
    def long(examples: int, gain: float) -> View:
        rows = []
        for seed in range(4):
            by_epoch = {1: 0.6, 3: 0.8 + seed / 1000, 5: 0.8 + gain, 10: 0.8 + gain}
            points: list[dict[str, Any]] = [
                {"step": e, "epoch": float(e), "metrics": {"validation": {"accuracy": v}}}
                for e, v in by_epoch.items()
            ]
            rows.append(row("long", 0.8, k=6, examples=examples, seed=seed, curve=points))
        return view(rows)

    assert verdict("reinit", "five-epochs-at-small-data", long(500, 0.05)) == "seen"
    assert verdict("reinit", "five-epochs-at-small-data", long(500, -0.05)) == "not seen"
    assert verdict("reinit", "five-epochs-at-small-data", long(5000, 0.05)) == "undecided"
    assert verdict("reinit", "three-epochs-suffice", long(5000, 0.002)) == "seen"
    assert verdict("reinit", "three-epochs-suffice", long(5000, 0.05)) == "not seen"


def test_early_share_is_a_part_of_the_whole_gain() -> None:
    one = view(curve(500, {0: 0.5, 6: 0.7, 12: 0.9}))
    assert claims_reinit.early_share(one, "sst2", 500) == pytest.approx([0.5] * 4)


# --- successors ---------------------------------------------------------------------------------


def plans(values: dict[str, float], part: str) -> Row:
    entries = [
        {"plan": plan, "loss": v, "perplexity": 2**v, "accuracy": 0.5} for plan, v in values.items()
    ]
    return row(part, payload={"plans": entries}, layers=4, task=None)


def test_less_harm_at_every_number() -> None:
    better = claims_successors.better_along
    assert better([1.0, 2.0], [1.5, 2.5], "x").status == "seen"
    assert better([1.5, 2.5], [1.0, 2.0], "x").status == "not seen"
    assert better([1.0, 2.1], [1.5, 2.0], "x").status == "undecided"


def test_blocks_that_are_repeated() -> None:
    ends, middle = (2.0, 1.0), (1.0, 2.0)
    for (end, inner), status in ((ends, "seen"), (middle, "not seen")):
        values = {"0-3": 1.0} | {
            str(plan): end + 1 if i == 0 or j == 3 else inner + 1
            for (i, j), plan in repeated(4).items()
        }
        one = view(plans(values, "blocks twice"))
        assert verdict("repeat", "middle-repeats-harmless", one) == status
        assert verdict("repeat", "some-repeat-helps", one) == "not seen"


def test_noop_copies() -> None:
    same = {"0-3": 1.0, "0-2,1-3": 3.0, "0-1,1@noop,2-3,3@noop": 1.0}
    one = view(plans(same, "deeper"))
    assert verdict("upscale", "noop-changes-nothing", one) == "seen"
    assert verdict("upscale", "overlap-needs-training", one) == "seen"
    del same["0-1,1@noop,2-3,3@noop"]
    assert (
        verdict("upscale", "noop-changes-nothing", view(plans(same, "deeper"))) == "not applicable"
    )


# --- findings -----------------------------------------------------------------------------------


def test_findings_of_several_models_are_told_apart() -> None:
    rows = [
        one
        for subject in ("one", "two")
        for values in [{"none": HIGH, "top": LOW, "bottom": LOW}]
        for one in strategies(values, 6)
        for one in [
            row(
                "strategies",
                one.metric("accuracy"),
                subject=subject,
                study="drop",
                seed=one.trial.seed,
                strategy=one.labels["strategy"],
                k=one.labels["k"],
            )
        ]
    ]
    (found,) = findings_in(rows)
    assert {"strategies-one", "strategies-two"} <= {figure.key for figure in found.figures}
    assert {v.subject for v in found.verdicts} == {"one", "two"}
    assert {v.status for v in found.verdicts} <= set(STATUSES)


def test_the_largest_scale_is_told() -> None:
    small = seeds("strategies", HIGH, scale="small", study="drop", strategy="none", k=0)
    smoke = seeds("strategies", LOW, scale="smoke", study="drop", strategy="none", k=0)
    (found,) = findings_in(list(itertools.chain(smoke, small)))
    table = next(t for t in found.tables if t.key == "table-tasks")
    assert table.rows[0][2].value == pytest.approx(sum(HIGH) / 4)  # type: ignore[union-attr]


def test_unfinished_and_failed_trials_are_noted() -> None:
    rows = [
        *seeds("strategies", HIGH, study="drop", strategy="none", k=0),
        row("strategies", status="pending", study="drop", strategy="top", k=6, plan="0-5"),
        row("strategies", status="failed", study="drop", strategy="top", k=4, plan="0-7"),
    ]
    (found,) = findings_in(rows)
    assert any("Not finished: 1 of 6 trials" in note for note in found.notes)
    assert any("broken" in note for note in found.notes)
