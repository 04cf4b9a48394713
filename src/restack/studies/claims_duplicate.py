"""What Kao et al. claim, and what decides about it."""

from __future__ import annotations

from collections.abc import Mapping

from restack.plan import duplicate, repeat
from restack.stats import Difference, paired_difference
from restack.studies.claim import Claim
from restack.studies.published import duplicate_ensembles
from restack.studies.telling import task_name
from restack.studies.verdicts import (
    Decision,
    Effect,
    above,
    all_above,
    any_above,
    apart,
    below,
    chance,
    none_above,
    number,
    proportion,
    shown,
    welch,
)
from restack.studies.view import Unfit, Unmeasured, View, difference, metric_of
from restack.sweep.rows import Row

PAPER = "Kao et al. 2020"
HIGH = 0.8
INTACT = 0.02  # "other layers remain intact"
STAYS = 0.775  # "about 80%", to the nearest five


def pooled(rows: list[Row]) -> list[Effect]:
    """Accuracy of each layer over the tokens of all tasks."""
    tokens = [row.payload["tokens"] for row in rows]
    layers = zip(*([one["accuracy"] for one in row.payload["layers"]] for row in rows), strict=True)
    return [
        proportion(
            sum(a * n for a, n in zip(values, tokens, strict=True)) / sum(tokens), sum(tokens)
        )
        for values in layers
    ]


def lens(view: View, when: str = "pretrained") -> list[Effect]:
    """The lens over all tasks; a model without a head has none."""
    if not view.labels["head"]:
        raise Unfit("the checkpoint holds no language-modelling head")
    return pooled(view.need("lens", f"the lens of the {when} model", when=when))


def intermediate(view: View) -> Decision:
    layers = lens(view)[1:-1]
    if not layers:
        raise Unfit("a single layer has none between the embeddings and the last")
    lowest = min(range(len(layers)), key=lambda i: layers[i].mean)
    return above(layers[lowest], HIGH, f"the lowest, layer {lowest + 1}:", unit="%")


def embeddings(view: View) -> Decision:
    found = lens(view)
    return below(found[0], HIGH, "layer 0 (embeddings):", unit="%")


def behind_class(view: View) -> Decision:
    lens(view)
    rows = view.where("lens", when="pretrained")
    known = [r.payload for r in rows if r.payload["after_first"][-1] is not None]
    if not known:
        raise Unfit("no token stands behind a class token")
    count = sum(one["first_tokens"] for one in known)
    right = sum(one["after_first"][-1] * one["first_tokens"] for one in known)
    first, every = proportion(right / count, count), pooled(rows)[-1]
    said = f"behind the class token {shown(first, '%')}, all {shown(every, '%')}; the difference"
    return below(apart(first, every), 0.0, said)


def last_few(view: View) -> Decision:
    """Change of the last quarter of the layers against that of all others."""
    after = lens(view, "fine-tuned")
    tasks = {r.trial.task for r in view.where("lens", when="fine-tuned")}
    before = pooled([r for r in view.where("lens", when="pretrained") if r.trial.task in tasks])
    change = [_size(apart(a, b)) for a, b in zip(after, before, strict=True)]
    few = max(1, view.depth // 4)
    lower, upper = change[:-few], change[-few:]
    most = [max(group, key=lambda one: one.mean) for group in (lower, upper)]
    said = (
        f"change of the last {few} layers: up to {shown(most[1])}, of all others: up to "
        f"{shown(most[0])}; claimed at least {number(INTACT)} and below it"
    )
    if any(one.low >= INTACT for one in lower if one.low is not None):
        return Decision("not seen", said)
    intact = all(one.high is not None and one.high < INTACT for one in lower)
    changed = any(one.low is not None and one.low >= INTACT for one in upper)
    return Decision("seen" if intact and changed else "undecided", said)


def _size(effect: Effect) -> Effect:
    """How large an effect is, in whichever direction."""
    if effect.low is None or effect.high is None:
        return Effect(abs(effect.mean), None, None, effect.n)
    low, high = sorted((abs(effect.low), abs(effect.high)))
    return Effect(abs(effect.mean), 0.0 if effect.low <= 0 <= effect.high else low, high, effect.n)


def untrained(view: View) -> dict[tuple[str | None, str], Effect]:
    """Accuracy behind the last layer, by task and plan."""
    if not view.labels["head"]:
        raise Unfit("the checkpoint holds no language-modelling head")
    return {
        (row.trial.task, entry["plan"]): proportion(entry["accuracy"], row.payload["tokens"])
        for row in view.need("untrained", "accuracy without training")
        for entry in row.payload["plans"]
    }


def stays_high(view: View) -> Decision:
    found = untrained(view)
    depth = view.depth
    if view.labels["shared"]:
        rows = view.where("untrained")
        deepest = max(one["depth"] for row in rows for one in row.payload["plans"])
        plan = str(repeat(depth, deepest))
    else:
        deepest, plan = 2 * depth, str(duplicate(depth, each=True))
    values = [effect for (_, text), effect in found.items() if text == plan]
    lowest = min(values, key=lambda effect: effect.mean)
    return above(lowest, STAYS, f"at {deepest} layers, untrained:", unit="%")


def rules(view: View) -> Decision:
    if view.labels["shared"]:
        raise Unfit("all layers are one, so it does not matter which is repeated")
    first = view.need("rules", "fine-tuning after each rule", rule="first")
    others = {
        f"{rule}": difference(first, view.need("rules", rule, rule=rule), rule)
        for rule in ("last", "one")
    }
    return all_above(others, "the first layers repeated, above")


def one_layer(view: View) -> Decision:
    if view.labels["shared"]:
        raise Unfit("one layer many times is what this model does")
    one = view.need("rules", "one layer many times", rule="one")
    whole = view.need("depths", "the untouched model", added=0)
    return below(difference(one, whole), 0.0, "one layer many times, against the untouched model:")


def deeper(view: View, task: str) -> dict[str, Difference]:
    """What each number of layers more gives on a task; by pairs where there are enough seeds."""
    whole = view.need("depths", f"the untouched model on {task}", task=task, added=0)
    found = {}
    for added in view.values_of("depths", "added", task=task):
        rows = view.where("depths", task=task, added=added)
        if added:
            found[f"{view.depth + added} layers"] = gain_over(rows, whole)
    if not found:
        raise Unmeasured(f"deeper models on {task}: not measured")
    return found


def gain_over(rows: list[Row], whole: list[Row], metric: str | None = None) -> Difference:
    """How much a deeper model scores above the untouched one, by pairs where there are enough."""
    one, two = (
        {row.trial.seed: row.metric(metric or metric_of(row.trial.task)) for row in some}
        for some in (rows, whole)
    )
    both = sorted(set(one) & set(two))
    if len(both) < 3:
        return welch(list(one.values()), list(two.values()))
    return paired_difference([one[seed] for seed in both], [two[seed] for seed in both])


def improves(view: View) -> Decision:
    """On SNLI and SQuAD: some depth above the baseline for certain, or most of them above it."""
    tasks = [task for task in view.tasks("depths") if task not in SIMPLE]
    if not tasks:
        raise Unmeasured("SNLI or SQuAD 2.0 at several depths: not measured")
    effects = {
        f"{task_name(task)}, {name}": e for task in tasks for name, e in deeper(view, task).items()
    }
    if all(effect.p is None for effect in effects.values()):
        return _sign_test(effects)
    return any_above(effects, "deeper above untouched")


SIMPLE = ("sst2", "sst2_sentence")


def _sign_test(effects: Mapping[str, Difference]) -> Decision:
    """One trial a depth says nothing of it, but many depths together may."""
    from scipy.stats import binomtest

    up = sum(effect.mean > 0 for effect in effects.values())
    p = float(binomtest(up, len(effects)).pvalue)
    said = f"{up} of {len(effects)} deeper models are above the untouched one, {chance(p)}"
    if p < 0.05:
        return Decision("seen" if up > len(effects) / 2 else "not seen", said)
    return Decision("undecided", said)


def simple(view: View) -> Decision:
    tasks = [task for task in view.tasks("depths") if task in SIMPLE]
    if not tasks:
        raise Unmeasured("SST-2 at several depths: not measured")
    effects = {
        f"{task_name(task)}, {name}": e for task in tasks for name, e in deeper(view, task).items()
    }
    return none_above(effects, 0.01, "deeper above untouched")


def ensembles(view: View) -> Decision:
    rows = view.where("ensemble", members="best deeper") or view.need(
        "ensemble", "ensembles of deeper models", members="deeper"
    )
    hard = [row for row in rows if row.trial.task not in SIMPLE] or rows
    row = hard[0]
    gain = next(iter((row.payload.get("gain") or {}).values()), None)
    if gain is None:
        raise Unmeasured("the gain of the ensemble: not measured")
    effect = Effect(gain["mean"], gain["low"], gain["high"], gain["n"])
    said = f"{task_name(row.trial.task)}: deeper models together against as many untouched ones:"
    return above(effect, 0.0, said)


def large_differs(view: View) -> Decision:
    if view.published != "BERT-large":
        raise Unfit("about BERT-large alone")
    base = next((o for o in view.others if o.published == "BERT-base"), None)
    if base is None:
        raise Unmeasured("BERT-base beside it: not among the models")
    mine, theirs = lens(view), lens(base)
    former = slice(1, view.depth // 2), slice(1, base.depth // 2)
    low = min(mine[former[0]], key=lambda e: e.mean)
    high = min(theirs[former[1]], key=lambda e: e.mean)
    return below(apart(low, high), 0.0, "the lowest former layer of large against base:")


def _published_ensembles() -> str:
    """Three depths of BERT-base against three untouched models, as printed."""
    found = {
        (e.members, e.metric): e.value for e in duplicate_ensembles() if e.model == "BERT-base"
    }
    (deeper,) = {members for members, _ in found} - {"baseline x3"}
    return ", ".join(
        f"{name} {found[deeper, metric]:.2%} against {found['baseline x3', metric]:.2%}"
        for name, metric in (("EM", "exact"), ("F1", "f1"))
    )


CLAIMS = (
    Claim(
        "intermediate-decode",
        PAPER,
        "The model's own head reads the tokens from every intermediate layer with more than 80% "
        "accuracy.",
        "lens",
        "above 80% in most models; BERT-large is the exception",
        intermediate,
    ),
    Claim(
        "embeddings-decode-less",
        PAPER,
        "From layer 0, the static embeddings, it does not.",
        "lens",
        "layer 0 is the exception to 80%",
        embeddings,
    ),
    Claim(
        "behind-class-token",
        PAPER,
        "The token right behind the class token is read worse than others from the last layer.",
        "lens",
        "59% on SST-2 (BERT-base)",
        behind_class,
    ),
    Claim(
        "fine-tuning-last-layers",
        PAPER,
        "Fine-tuning changes what is read from the last few layers alone.",
        "lens",
        '"only affects the last few layers"',
        last_few,
    ),
    Claim(
        "duplicates-untrained",
        PAPER,
        "With layers repeated and no training, the tokens are still read behind the last layer.",
        "untrained",
        "high for BERT-base up to 24; about 80% for ALBERT-large at 50",
        stays_high,
    ),
    Claim(
        "large-is-different",
        PAPER,
        "The former layers of BERT-large are read worse than those of BERT-base.",
        "lens",
        '"totally different layer properties"',
        large_differs,
    ),
    Claim(
        "first-layers-best",
        PAPER,
        "Repeating the first layers is better than the last ones or one layer many times.",
        "rules",
        "a rule of thumb, without numbers",
        rules,
    ),
    Claim(
        "one-layer-hurts",
        PAPER,
        "Repeating one layer many times hurts after fine-tuning.",
        "rules",
        "a rule of thumb, without numbers",
        one_layer,
    ),
    Claim(
        "deeper-improves",
        PAPER,
        "With repeated layers models fine-tune to better scores on SQuAD 2.0 and SNLI.",
        "depths",
        "about +1 F1 on SQuAD 2.0, up to +0.6 points on SNLI",
        improves,
    ),
    Claim(
        "sst2-hardly",
        PAPER,
        "On SST-2 repeated layers give hardly any improvement.",
        "depths",
        "only ALBERT-xlarge and -xxlarge improve",
        simple,
    ),
    Claim(
        "ensemble-of-depths",
        PAPER,
        "The best three depths together beat three untouched models together.",
        "ensembles",
        f"SQuAD 2.0, BERT-base: {_published_ensembles()}",
        ensembles,
    ),
)
