"""What Tamkin et al. claim, and what decides about it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence

from restack.stats import Correlation, Difference, mean_interval, spearman
from restack.studies.claim import Claim
from restack.studies.published import reinit_correlations
from restack.studies.telling import task_name
from restack.studies.verdicts import (
    LEVEL,
    Decision,
    all_above,
    all_below,
    any_above,
    below,
    chance,
    welch,
)
from restack.studies.view import (
    Unmeasured,
    View,
    difference,
    metric_of,
    runs,
    score,
    scores,
)
from restack.sweep.rows import Row

PAPER = "Tamkin et al. 2020"
NEAR_CHANCE = 0.05
LITTLE = 0.02  # about the error bars of the paper's figure 6
NOT_MUCH = 0.25  # of the way from fresh layers to the whole model


def curves(view: View, task: str, examples: int) -> dict[int, list[Row]]:
    """The trials of the incremental curve by the number of layers kept."""
    rows = view.where("incremental", task=task, examples=examples)
    return {
        k: [row for row in rows if row.labels["k"] == k]
        for k in sorted({row.labels["k"] for row in rows})
    }


def sizes(view: View, task: str) -> list[int]:
    """The numbers of training examples of the incremental curves."""
    return view.values_of("incremental", "examples", task=task)


def _middle(found: Mapping[int, Sequence[Row]], depth: int) -> int:
    between = [k for k in found if 0 < k < depth]
    if not between:
        raise Unmeasured("no curve has a point between none and all layers kept")
    return min(between, key=lambda k: abs(k - depth / 2))


def early_share(view: View, task: str, examples: int) -> list[float]:
    """What part of the whole gain the first half of the layers gives, trial by trial.

    The whole gain is the mean of all trials: single ones are too uncertain to divide by.
    """
    found = curves(view, task, examples)
    if 0 not in found or view.depth not in found:
        raise Unmeasured(f"{task_name(task)} with {examples} examples: both ends of the curve")
    gain = statistics.fmean(scores(found[view.depth])) - statistics.fmean(scores(found[0]))
    if gain < LITTLE:
        raise Unmeasured(
            f"{task_name(task)} with {examples:,} examples: pretrained layers gain "
            f"{gain * 100:.2f} points, too little to be divided"
        )
    low, middle = runs(found[0]), runs(found[_middle(found, view.depth)])
    return [(middle[p] - low[p]) / gain for p in sorted(set(low) & set(middle))]


def _two_sizes(view: View) -> dict[str, tuple[int, int]]:
    """The smallest and the largest size of each task that has several."""
    found = {task: sizes(view, task) for task in view.tasks("incremental")}
    several = {task: (ns[0], ns[-1]) for task, ns in found.items() if len(ns) > 1}
    if not several:
        raise Unmeasured("the same curve with different numbers of examples: not measured")
    return several


def data_matters(view: View) -> Decision:
    effects = {
        f"{task_name(task)}, {large:,} against {small:,} examples": welch(
            early_share(view, task, large), early_share(view, task, small)
        )
        for task, (small, large) in _two_sizes(view).items()
    }
    return all_above(effects, "share of the gain that the first half of the layers gives")


def probe_rows(view: View) -> dict[str, Row]:
    """The probes by task."""
    found = view.need("probe", "probes of the frozen layers")
    return {str(row.trial.task): row for row in found}


def probe_curve(row: Row) -> list[dict[str, float | None]]:
    """Mean and interval of each layer; 0 is the embeddings."""
    return [dict(layer) for layer in row.payload["layers"]]


def early_probes_near_chance(view: View) -> Decision:
    found = {}
    for task, row in probe_rows(view).items():
        early = probe_curve(row)[1 : view.depth // 2 + 1]
        best = max(early, key=lambda layer: layer["mean"] or 0.0)
        base = row.payload["baseline"][metric_of(task)]
        mean, low, high = best["mean"] or 0.0, best["low"], best["high"]
        found[f"{task_name(task)}, layer {best['layer']:.0f}"] = Difference(
            mean - base,
            None if low is None else low - base,
            None if high is None else high - base,
            None,
            int(best["n"] or 0),
        )
    return all_below(found, NEAR_CHANCE, "best probe of the first half above one answer for all")


def early_layers_transfer(view: View) -> Decision:
    effects = {}
    for task in view.tasks("incremental"):
        largest = sizes(view, task)[-1]
        found = curves(view, task, largest)
        if 0 in found:
            kept = _middle(found, view.depth)
            name = f"{task_name(task)}, {kept} layers kept, {largest:,} examples"
            effects[name] = difference(found[kept], found[0], name)
    if not effects:
        raise Unmeasured("curves from all layers fresh: not measured")
    return all_above(effects, "gain of the first half of the layers over none")


def gaps_to_probe(view: View, task: str, examples: int) -> list[float]:
    """How far each trial's curve lies from the probes, on average over the layers kept."""
    probe = [layer["mean"] or 0.0 for layer in probe_curve(probe_rows(view)[task])]
    by_k = {k: runs(rows) for k, rows in curves(view, task, examples).items()}
    places = set.intersection(*(set(found) for found in by_k.values()))
    return [
        statistics.fmean(abs(found[place] - probe[k]) for k, found in by_k.items())
        for place in sorted(places)
    ]


def aligns_at_small(view: View) -> Decision:
    """The gap to the probes shrinks with the data; single trials' noise speaks against it."""
    effects = {
        f"{task_name(task)}, {large:,} against {small:,} examples": welch(
            gaps_to_probe(view, task, large), gaps_to_probe(view, task, small)
        )
        for task, (small, large) in _two_sizes(view).items()
        if task in probe_rows(view)
    }
    return all_above(effects, "gap between fine-tuning curve and probes")


def _blocks(view: View, way: str) -> tuple[list[Row], list[Row]]:
    """The trials of the first and of the last block."""
    rows = view.need("blocks", f"blocks of layers {way}", way=way)
    starts = sorted({row.labels["start"] for row in rows})
    if len(starts) < 2:
        raise Unmeasured(f"blocks of layers {way}: only one of them")
    first, last = ([r for r in rows if r.labels["start"] == s] for s in (starts[0], starts[-1]))
    return first, last


def early_blocks_help(view: View) -> Decision:
    kept_first, kept_last = _blocks(view, "preserved")
    fresh_first, fresh_last = _blocks(view, "reinitialised")
    effects = {
        "first preserved above last preserved": difference(kept_first, kept_last),
        "last fresh above first fresh": difference(fresh_last, fresh_first),
    }
    return all_above(effects, "gain by early blocks")


def single_layers(view: View) -> Decision:
    whole = view.need("single", "the untouched model", layer=-1)
    effects = {}
    for layer in view.values_of("single", "layer"):
        if layer >= 0:
            rows = view.where("single", layer=layer)
            effects[f"layer {layer}"] = difference(whole, rows)
    if not effects:
        raise Unmeasured("single layers made fresh: not measured")
    return all_below(effects, LITTLE, "loss with one layer fresh")


def closed(view: View, task: str) -> list[float]:
    """How far each shuffled stack is on the way from fresh layers to the whole model."""
    ends = {
        order: view.need("orders", f"the {order} model on {task}", task=task, order=order)
        for order in ("fresh", "whole")
    }
    fresh, whole = (statistics.fmean(scores(ends[order])) for order in ("fresh", "whole"))
    gap = welch(scores(ends["whole"]), scores(ends["fresh"]))
    if gap.low is None or gap.low <= 0:
        raise Unmeasured(
            f"{task_name(task)}: the whole model ({whole:.1%}) and the one with fresh layers "
            f"({fresh:.1%}) cannot be told apart"
        )
    rows = view.need("orders", f"shuffled layers on {task}", task=task, order="shuffled")
    return [(score(row) - fresh) / (whole - fresh) for row in rows]


def shuffled_near_random(view: View) -> Decision:
    tasks = view.tasks("orders", order="shuffled")
    if not tasks:
        raise Unmeasured("shuffled layers: not measured")
    found, missing = [], []
    for task in tasks:
        try:
            values = mean_interval(closed(view, task))
            said = f"{task_name(task)}, mean way from fresh layers to the whole model:"
            found.append(below(values, NOT_MUCH, said, unit="%"))
        except Unmeasured as reason:
            missing.append(str(reason))
    said = "; ".join([*(one.why for one in found), *missing])
    statuses = {one.status for one in found}
    if statuses == {"seen"} and not missing:
        return Decision("seen", said)
    return Decision("not seen" if "not seen" in statuses else "undecided", said)


def task_pairs(view: View) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """The scores of the same permutations on two tasks."""
    by_task = {
        task: {
            row.labels["permutation"]: score(row)
            for row in view.where("orders", task=task, order="shuffled")
        }
        for task in view.tasks("orders", order="shuffled")
    }
    return {
        (a, b): [(by_task[a][n], by_task[b][n]) for n in sorted(set(by_task[a]) & set(by_task[b]))]
        for a, b in itertools.combinations(by_task, 2)
    }


def orders_correlate(view: View) -> Decision:
    pairs = task_pairs(view)
    if not pairs:
        raise Unmeasured("the same permutations on several tasks: not measured")
    found: dict[str, Correlation] = {
        f"{task_name(a)}, {task_name(b)}": spearman(*map(list, zip(*values, strict=True)))
        for (a, b), values in pairs.items()
        if values
    }
    said = "; ".join(
        f"{name} {c.r:.2f} ({chance(c.p)}, n = {c.n})"
        if c.r is not None and c.p is not None
        else f"{name} not defined (n = {c.n})"
        for name, c in found.items()
    )
    certain = [c.r for c in found.values() if c.r is not None and c.p is not None and c.p < LEVEL]
    if any(r < 0 for r in certain):
        return Decision("not seen", f"Spearman {said}")
    most = sum(r > 0 for r in certain) > len(found) / 2
    return Decision("seen" if most else "undecided", f"Spearman {said}")


def way_gains(view: View, way: str) -> Decision:
    """That a change of the procedure gains nothing, over all layers that were tried."""
    rows = view.need("ablations", f"{way}", way=way)
    plain = view.need("ablations", "the procedure as it is", way="as in the paper")
    return below(difference(rows, plain, way), 0.01, f"{way}, gain:")


def epoch_scores(rows: Sequence[Row], epoch: int) -> dict[tuple[str, int, int], float]:
    """The score behind an epoch, by task, layers kept and trial."""
    found = {}
    for row in rows:
        for point in row.curve:
            if "metrics" in point and abs(point["epoch"] - epoch) < 1e-3:
                values = next(iter(point["metrics"].values()))
                place = str(row.trial.task), row.labels["k"], row.trial.seed
                found[place] = float(values[metric_of(row.trial.task)])
    return found


def later_gain(view: View, examples: int, early: int, late: int) -> dict[str, Difference]:
    """What later epochs gain, for each number of layers kept."""
    from restack.stats import paired_difference

    rows = view.need("long", f"up to {late} epochs with {examples} examples", examples=examples)
    one, two = epoch_scores(rows, early), epoch_scores(rows, late)
    effects = {}
    for k in sorted({row.labels["k"] for row in rows}):
        places = sorted(p for p in set(one) & set(two) if p[1] == k)
        if places:
            pair = [two[p] for p in places], [one[p] for p in places]
            effects[f"{k} layers kept"] = paired_difference(*pair)
    if not effects:
        raise Unmeasured(f"scores behind epochs {early} and {late}: not measured")
    return effects


def _long_size(view: View, *, small: bool) -> int:
    known = view.values_of("long", "examples")
    fitting = [n for n in known if (n < 1000) == small]
    if not fitting:
        raise Unmeasured(f"long runs with {'few' if small else 'more'} examples: not measured")
    return int(fitting[0])


def long_is_enough(view: View) -> Decision:
    effects = later_gain(view, _long_size(view, small=False), 3, 10)
    return all_below(effects, 0.01, "gain from epoch 3 to 10")


def five_epochs(view: View) -> Decision:
    effects = later_gain(view, _long_size(view, small=True), 3, 5)
    return any_above(effects, "gain from epoch 3 to 5")


def _published_pairs() -> str:
    return "; ".join(
        f"{p.first}, {p.second} {p.spearman:.2f} (p = {p.spearman_p:.2f})"
        for p in reinit_correlations()
    )


CLAIMS = (
    Claim(
        "data-matters",
        PAPER,
        "The more data there is to fine-tune on, the larger the part of the gain that the first "
        "layers give.",
        "incremental",
        "figure 2; all but SST-2 at 500 examples",
        data_matters,
    ),
    Claim(
        "early-probes-near-chance",
        PAPER,
        "Probes of the first half of the layers are near chance (within 5 points).",
        "incremental",
        "near chance on all tasks for the first six layers",
        early_probes_near_chance,
    ),
    Claim(
        "early-layers-transfer",
        PAPER,
        "Keeping the first half of the layers and making all others fresh gains much all the same.",
        "incremental",
        "large gains across tasks",
        early_layers_transfer,
    ),
    Claim(
        "aligns-at-small-data",
        PAPER,
        "The fewer data, the closer the fine-tuning curve lies to the probes.",
        "incremental",
        "500 examples: much more similar than 5k and 50k",
        aligns_at_small,
    ),
    Claim(
        "early-blocks-help",
        PAPER,
        "Blocks of early layers help more than blocks of late ones.",
        "blocks",
        "figure 3; QNLI above all",
        early_blocks_help,
    ),
    Claim(
        "single-layers-little",
        PAPER,
        "Making a single layer fresh has little effect (less than 2 points).",
        "single",
        "little effect, except for the first layer on CoLA",
        single_layers,
    ),
    Claim(
        "shuffled-near-random",
        PAPER,
        "Shuffled layers fine-tune to not much above fresh ones (a quarter of the way at most).",
        "orders",
        "on average not much above a randomly initialised network",
        shuffled_near_random,
    ),
    Claim(
        "orders-correlate",
        PAPER,
        "The same permutation does well or badly on different tasks alike.",
        "table-orders",
        f"Spearman: {_published_pairs()}",
        orders_correlate,
    ),
    Claim(
        "five-epochs-at-small-data",
        PAPER,
        "With 500 examples five epochs are better than three.",
        "long",
        "several percentage points",
        five_epochs,
    ),
    Claim(
        "three-epochs-suffice",
        PAPER,
        "With 5k examples ten epochs are no better than three (less than a point).",
        "long",
        "minimal effects",
        long_is_enough,
    ),
    Claim(
        "larger-rate-no-gain",
        PAPER,
        "Five times the learning rate for fresh layers gains nothing.",
        "ablations",
        "figure 7: more variance, no gain",
        lambda view: way_gains(view, "rate x 5"),
    ),
    Claim(
        "kept-norms-no-gain",
        PAPER,
        "Keeping the LayerNorm parameters of fresh layers gains nothing.",
        "ablations",
        "figure 8: no gain, perhaps harm",
        lambda view: way_gains(view, "norms kept"),
    ),
)
