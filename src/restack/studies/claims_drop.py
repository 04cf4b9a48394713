"""What Sajjad et al. claim, and what decides about it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from restack.stats import Difference, mean_interval, spearman
from restack.studies.claim import Claim
from restack.studies.drop import STRATEGIES, counts
from restack.studies.published import drop_scores, drop_sizes
from restack.studies.telling import task_name
from restack.studies.verdicts import (
    Decision,
    Effect,
    above,
    all_above,
    all_below,
    all_within,
    below,
    correlated,
)
from restack.studies.view import Unfit, Unmeasured, View, difference
from restack.sweep.rows import Row

PAPER = "Sajjad et al. 2020"


def _layers(count: int, which: str = "") -> str:
    return f"{count} {which}layer{'s' if count > 1 else ''}"


def dropped(view: View, strategy: str, count: int) -> list[Row]:
    """The trials that left out so many layers by a strategy."""
    return view.need(
        "strategies", f"{_layers(count)} dropped by {strategy}", strategy=strategy, k=count
    )


def whole(view: View) -> list[Row]:
    """The trials of the untouched model."""
    return view.need("strategies", "the untouched model", strategy="none")


def loss(view: View, strategy: str, count: int) -> Difference:
    """What the untouched model scores above one with layers dropped, over tasks and seeds."""
    return difference(whole(view), dropped(view, strategy, count), strategy)


def _against(view: View, best: str, count: int) -> dict[str, Difference]:
    """A strategy against each of the others that drop as many layers."""
    mine = dropped(view, best, count)
    return {
        f"{other} at {count}": difference(mine, rows, other)
        for other in (*STRATEGIES, "contribution")
        if other != best
        and (rows := view.where("strategies", strategy=other, k=count))
        # in small stacks two strategies may leave out the same layers
        and rows[0].trial.plan != mine[0].trial.plan
    }


def top_best(view: View) -> Decision:
    effects: dict[str, Difference] = {}
    for count in counts(view.depth)[1:]:
        effects |= _against(view, "top", count)
    return all_above(effects, "top, above")


def top_over_bottom(view: View) -> Decision:
    effects = {
        f"at {count}": difference(dropped(view, "top", count), dropped(view, "bottom", count))
        for count in counts(view.depth)
    }
    return all_above(effects, "top above bottom")


def bottom_worst(view: View) -> Decision:
    effects: dict[str, Difference] = {}
    for count in counts(view.depth):
        found = _against(view, "bottom", count)
        effects |= {
            name: Difference(
                -e.mean,
                None if e.high is None else -e.high,
                None if e.low is None else -e.low,
                e.p,
                e.n,
            )
            for name, e in found.items()
        }
    return all_above(effects, "others above bottom")


def half_costs_little(view: View) -> Decision:
    count = counts(view.depth)[-1]
    return below(loss(view, "top", count), 0.03, f"loss without the top {count} layers:")


def third_costs_little(view: View) -> Decision:
    count = counts(view.depth)[1]
    return below(loss(view, "top", count), 0.02, f"loss without the top {count} layers:")


def odd_over_top(view: View) -> Decision:
    count = counts(view.depth)[0]
    found = difference(dropped(view, "odd", count), dropped(view, "top", count))
    return above(found, 0.0, f"odd-alternate above top, {count} dropped:")


def symmetric_second(view: View) -> Decision:
    count = counts(view.depth)[0]
    rows = dropped(view, "symmetric", count)
    others = {
        name: difference(rows, dropped(view, name, count), name)
        for name in ("top", "even", "bottom")
    }
    return all_above(others, f"{_layers(count, 'middle ')} dropped, above")


def contribution_over_top(view: View) -> Decision:
    """That contribution does not beat top; about the model in question, for BERT."""
    found = view.where("strategies", strategy="contribution")
    effects = {}
    for count in sorted({row.labels["k"] for row in found}):
        rows = [row for row in found if row.labels["k"] == count]
        top = view.where("strategies", strategy="top", k=count) or view.where(
            "needed", strategy="top", k=count
        )
        if top and top[0].trial.plan != rows[0].trial.plan:
            effects[f"at {count}"] = difference(top, rows)
    if not effects:
        if view.where("contribution"):
            raise Unfit("no threshold chose layers that can be compared with as many top layers")
        raise Unmeasured("the contribution of layers: not measured")
    return all_above(effects, "top above contribution")


def half_the_time(view: View) -> Decision:
    rows = view.need("cost", "size and speed")
    payload = rows[0].payload
    entry = payload["plans"][-1]
    saved = Effect(
        1 - entry["inference"]["ratio"],
        1 - entry["inference"]["high"],
        1 - entry["inference"]["low"],
        entry["inference"]["n"],
    )
    said = f"inference time saved without the top {view.depth - entry['depth']} layers:"
    # printed as 49 to 50%: half, to the nearest ten
    return above(saved, 0.45, said, unit="%")


SENSITIVE, ROBUST = ("qnli", "mnli"), ("qqp", "stsb")


def sensitive_tasks(view: View) -> Decision:
    count = counts(view.depth)[-1]
    have = view.tasks("strategies")
    hard, easy = ([t for t in group if t in have] for group in (SENSITIVE, ROBUST))
    if not hard or not easy:
        raise Unmeasured("needs one of QNLI and MNLI, and one of QQP and STS-B")
    base, top = whole(view), dropped(view, "top", count)

    def losses(tasks: Sequence[str]) -> dict[int, float]:
        found: dict[int, list[float]] = {}
        for task in tasks:
            one = {r.trial.seed: r for r in base if r.trial.task == task}
            for row in top:
                if row.trial.task == task and row.trial.seed in one:
                    gap = difference([one[row.trial.seed]], [row]).mean
                    found.setdefault(row.trial.seed, []).append(gap)
        return {seed: statistics.fmean(gaps) for seed, gaps in found.items()}

    more, less = losses(hard), losses(easy)
    seeds = sorted(set(more) & set(less))
    gaps = mean_interval([more[seed] - less[seed] for seed in seeds])
    groups = [", ".join(map(task_name, group)) for group in (hard, easy)]
    said = f"loss on {groups[0]} above that on {groups[1]}, {count} dropped:"
    return above(gaps, 0.0, said)


def on_par_with_distilled(view: View) -> Decision:
    """Against every other model of the study that has as many layers as are left here."""
    effects = {
        f"{other.depth} layers against {other.subject}": difference(
            dropped(view, "top", count), whole(other), other.subject
        )
        for count in counts(view.depth)
        for other in view.others
        if other.depth == view.depth - count
    }
    if not effects:
        raise Unfit("no model of the study has as many layers as are left of this one")
    return all_within(effects, 0.01, "difference")


def from_finetuned(view: View) -> Decision:
    rows = view.need("again", "dropping from a fine-tuned model")
    count = rows[0].labels["k"]
    found = difference(rows, dropped(view, "top", count))
    return below(found, 0.01, f"fine-tuned before {count} layers are dropped, gain:")


def iterative(view: View) -> Decision:
    rows = view.need("iterative", "dropping one layer after every two epochs")
    count = rows[0].labels["k"]
    found = difference(rows, dropped(view, "top", count))
    return below(found, 0.01, f"one of {count} layers at a time, gain:")


def classifiers_rise(view: View) -> Decision:
    """BERT improves with every layer until the last but one."""
    rows = view.need("classifiers", "classifiers on each layer of a fine-tuned model")
    curve = layer_scores(rows)[:-1]
    return correlated(spearman(range(len(curve)), curve), "layer against its classifier's score")


def layer_scores(rows: Sequence[Row]) -> list[float]:
    """The mean score of each layer over tasks; 0 is the embeddings."""
    curves = [[layer["mean"] for layer in row.payload["layers"]] for row in rows]
    return [statistics.fmean(values) for values in zip(*curves, strict=True)]


def moved(rows: Sequence[Row]) -> list[float]:
    """The cosine of each layer before and after fine-tuning, over tasks."""
    curves = [[layer["token_cosine"] for layer in row.payload["layers"]] for row in rows]
    return [statistics.fmean(values) for values in zip(*curves, strict=True)]


def higher_layers_move(view: View) -> Decision:
    curve = moved(view.need("moved", "what fine-tuning moves"))
    found = spearman(range(len(curve)), curve)
    return correlated(found, "layer against its cosine to before", sign=-1)


def needed_layers(view: View) -> Decision:
    """A third of the layers can go within two points on every task that was tried."""
    count = counts(view.depth)[1]
    effects = {}
    base = whole(view)
    for row_task in view.tasks("strategies"):
        one = [r for r in base if r.trial.task == row_task]
        two = [r for r in dropped(view, "top", count) if r.trial.task == row_task]
        effects[task_name(row_task)] = difference(one, two, row_task)
    return all_below(effects, 0.02, f"loss without the top {count}")


def _numbers(model: str = "BERT") -> dict[int, float]:
    return {size.dropped: size.loss for size in drop_sizes() if size.model == model}


def _saved() -> str:
    half = max((s for s in drop_sizes() if s.model == "BERT"), key=lambda s: s.dropped)
    return f"{half.inference_time_saved:.0%} (BERT, {half.dropped} dropped)"


def _losses(tasks: Sequence[str]) -> str:
    """The published losses of BERT with half of its layers on some tasks."""
    found = {(s.task, s.change): s.value for s in drop_scores() if s.model == "BERT"}
    most = max(change for _, change in found)
    gaps = (f"{task} {(found[task, 0] - found[task, most]) * 100:.2f}" for task in tasks)
    return ", ".join(gaps)


_BERT = _numbers()
CLAIMS = (
    Claim(
        "top-best",
        PAPER,
        "Dropping a third or a half of the layers from the top is better than any other strategy.",
        "strategies",
        "top outperforms all others at 4 and 6 of 12",
        top_best,
    ),
    Claim(
        "top-beats-bottom",
        PAPER,
        "Dropping top layers is better than dropping bottom layers.",
        "strategies",
        "at 2, 4 and 6 of 12, for all models",
        top_over_bottom,
    ),
    Claim(
        "bottom-worst",
        PAPER,
        "Dropping from the bottom is the worst strategy.",
        "strategies",
        "worst for all models",
        bottom_worst,
    ),
    Claim(
        "half-under-three",
        PAPER,
        "Half of the layers can go from the top for under 3 points on average.",
        "table-loss",
        f"{_BERT[6] * 100:.2f} points (BERT), {_numbers('XLNet')[6] * 100:.2f} (XLNet)",
        half_costs_little,
    ),
    Claim(
        "third-under-two",
        PAPER,
        "A third of the layers can go from the top for at most 2 points on average.",
        "table-loss",
        f"{_BERT[4] * 100:.2f} points (BERT), {_numbers('XLNet')[4] * 100:.2f} (XLNet)",
        third_costs_little,
    ),
    Claim(
        "third-on-every-task",
        PAPER,
        "Without a third of the layers no task loses more than 2 points.",
        "table-tasks",
        "top four layers: at most 2% on all of the five stable tasks",
        needed_layers,
    ),
    Claim(
        "half-the-time",
        PAPER,
        "Without half of the layers inference takes half of the time.",
        "table-cost",
        _saved(),
        half_the_time,
    ),
    Claim(
        "odd-over-top-at-two",
        PAPER,
        "Where a sixth of the layers goes, odd-alternate is better than top.",
        "strategies",
        "on all tasks at 2 of 12",
        odd_over_top,
    ),
    Claim(
        "symmetric-second",
        PAPER,
        "Where a sixth of the layers goes, dropping the middle is second only to odd-alternate.",
        "strategies",
        "0.97 points below the untouched BERT; drastic for XLNet",
        symmetric_second,
    ),
    Claim(
        "contribution-not-better",
        PAPER,
        "Dropping by contribution does not do as well as dropping from the top (BERT).",
        "strategies",
        "contribution chose lower layers of BERT, and did not work well",
        contribution_over_top,
    ),
    Claim(
        "sensitive-tasks",
        PAPER,
        "QNLI and MNLI lose more by dropped layers than QQP and STS-B.",
        "table-tasks",
        f"points lost by BERT without 6 layers: {_losses(('QNLI', 'MNLI', 'QQP', 'STS-B'))}",
        sensitive_tasks,
    ),
    Claim(
        "on-par-with-distilled",
        PAPER,
        "A model with its top layers dropped is on par with a distilled one of the same depth.",
        "table-distilled",
        "BERT-6 against DistilBERT: tables 3 and 4",
        on_par_with_distilled,
    ),
    Claim(
        "from-fine-tuned",
        PAPER,
        "Fine-tuning before layers are dropped gains nothing (less than a point).",
        "table-again",
        "comparable in most cases (table 5)",
        from_finetuned,
    ),
    Claim(
        "iterative",
        PAPER,
        "Dropping one layer after every two epochs gains nothing (less than a point).",
        "table-again",
        "no improvement, without numbers",
        iterative,
    ),
    Claim(
        "classifiers-rise",
        PAPER,
        "Classifiers on the layers of the fine-tuned model improve with every higher layer.",
        "classifiers",
        "BERT: until layer 11 of 12; XLNet: until about layer 7",
        classifiers_rise,
    ),
    Claim(
        "higher-layers-move",
        PAPER,
        "Fine-tuning moves higher layers more than lower ones.",
        "moved",
        "similarity falls from lower to higher layers (BERT), not so for XLNet",
        higher_layers_move,
    ),
)
