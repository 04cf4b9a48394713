"""What the successors claim of untrained stacks, and what decides about it.

One model gives one number for each plan, without trials, so these tests are about orders and counts
over layers, blocks or numbers of layers removed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from restack.plan import Plan, drop
from restack.stats import spearman
from restack.studies.claim import Claim
from restack.studies.successors import (
    best_blocks,
    order_by,
    removals,
    repeated,
    upscaled,
)
from restack.studies.verdicts import Decision, correlated
from restack.studies.view import Unfit, Unmeasured, View
from restack.sweep.rows import Row

SHORTGPT = "Men et al. 2024 (ShortGPT)"
GROMOV = "Gromov et al. 2024"
SHORTENED = "Kim et al. 2024 (Shortened LLaMA)"
SOLAR, LLAMA_PRO = "Kim et al. 2023 (SOLAR)", "Wu et al. 2024 (LLaMA-Pro)"
REPEATED = "Repeated middle blocks"


def outcomes(row: Row) -> dict[str, float]:
    """What each plan gives: its loss, or for masked models the part of tokens that it misses."""
    return {
        entry["plan"]: entry["loss"] if "loss" in entry else 1 - entry["accuracy"]
        for entry in row.payload["plans"]
    }


def along(row: Row, plans: Sequence[Plan]) -> list[float]:
    """What some plans give, in their order."""
    known = outcomes(row)
    return [known[str(plan)] for plan in plans]


def influences(view: View) -> list[float | None]:
    """Block influence of each layer."""
    row = view.need("influence", "block influence")[0]
    return [layer["block_influence"] for layer in row.payload["layers"]]


def better_along(
    mine: Sequence[float], other: Sequence[float], what: str, *, start: int = 0
) -> Decision:
    """That one way of removing layers harms less than another, at each number of layers.

    The numbers of layers are not independent trials, so there is no p: seen is less harm at every
    number, not seen more harm at every number or on average of the logarithms no less.
    """
    pairs = list(zip(mine, other, strict=True))[start:]
    if not pairs:
        return Decision("undecided", f"{what}: too few layers were removed to tell")
    wins = sum(a < b for a, b in pairs)
    gap = statistics.fmean(a - b for a, b in pairs)
    said = f"{what}: less harm at {wins} of {len(pairs)} numbers of layers, on average {gap:+.3f}"
    if wins == len(pairs):
        return Decision("seen", said)
    if gap >= 0 or wins < len(pairs) / 2:
        return Decision("not seen", said)
    return Decision("undecided", said)


def low_influence_harms_less(view: View, other: str) -> Decision:
    values = influences(view)
    row = view.need("removed", "layers removed one by one")[0]
    most = max(
        n for n in range(1, view.depth) if str(removals(order_by(values), n)[-1]) in outcomes(row)
    )
    orders = {
        "most influence first": order_by(values, highest=True),
        "from the top": list(range(view.depth - 1, -1, -1)),
    }
    mine = along(row, removals(order_by(values), most))
    return better_along(
        mine, along(row, removals(orders[other], most)), f"least influence against {other}"
    )


def deeper_influence_less(view: View) -> Decision:
    """Deeper layers, the last one apart, have less influence."""
    known = [(i, v) for i, v in enumerate(influences(view)[:-1]) if v is not None]
    places, values = [i for i, _ in known], [v for _, v in known]
    return correlated(
        spearman(places, values), "layer against influence, without the last", sign=-1
    )


def alike_blocks_deep(view: View) -> Decision:
    row = view.need("angles", "angular distances of blocks")[0]
    best = best_blocks(row)
    deep = [n for n, start in best.items() if start + n / 2 > view.depth / 2]
    said = f"of {len(best)} lengths, the most alike block lies in the deeper half for {len(deep)}"
    if len(deep) == len(best):
        return Decision("seen", said)
    return Decision("not seen" if len(deep) <= len(best) / 2 else "undecided", said)


def last_layer_unlike(view: View) -> Decision:
    row = view.need("angles", "angular distances of blocks")[0]
    layers = [layer["angular_distance"] for layer in row.payload["layers"]]
    median = statistics.median(value for value in layers[:-1] if value is not None)
    said = f"the last layer turns by {layers[-1]:.3f}, the median of all others is {median:.3f}"
    return Decision("seen" if layers[-1] > median else "not seen", said)


def best_block_beats_top(view: View) -> Decision:
    angles = view.need("angles", "angular distances of blocks")[0]
    row = view.need("removed", "blocks removed")[0]
    best = best_blocks(angles)
    lengths = sorted(
        n for n in best if str(drop(view.depth, range(best[n], best[n] + n))) in outcomes(row)
    )
    mine = along(row, [drop(view.depth, range(best[n], best[n] + n)) for n in lengths])
    top = along(row, [drop(view.depth, top=n) for n in lengths])
    return better_along(mine, top, "the most alike block against the top layers")


def ends_are_critical(view: View) -> Decision:
    """Leaving out the first or the last layers harms more than one of the middle."""
    harm = leave_one_out(view)
    few = max(1, view.depth // 8)
    ends, middle = harm[:few] + harm[-few:], harm[few:-few]
    typical = statistics.median(middle)
    above = sum(value > typical for value in ends)
    said = (
        f"{above} of the {len(ends)} outermost layers harm more than the median of the middle "
        f"({typical:.3f}); worst: layer {harm.index(max(harm))} ({max(harm):.3f})"
    )
    if above == len(ends):
        return Decision("seen", said)
    return Decision("not seen" if above <= len(ends) / 2 else "undecided", said)


def leave_one_out(view: View) -> list[float]:
    """What leaving out each layer adds to the loss."""
    row = view.need("one out", "each layer left out")[0]
    whole = outcomes(row)[str(Plan.identity(view.depth))]
    return [
        value - whole for value in along(row, [drop(view.depth, [i]) for i in range(view.depth)])
    ]


def influence_agrees(view: View) -> Decision:
    known = [
        (harm, value)
        for harm, value in zip(leave_one_out(view), influences(view), strict=True)
        if value is not None
    ]
    harms, values = zip(*known, strict=True)
    return correlated(spearman(harms, values), "harm left out against block influence")


def perplexity_order_beats(view: View) -> Decision:
    row = view.need("removed", "layers removed one by one")[0]
    mine, other = order_by(leave_one_out(view)), order_by(influences(view))
    most = max(n for n in range(1, view.depth) if str(removals(mine, n)[-1]) in outcomes(row))
    return better_along(
        along(row, removals(mine, most)),
        along(row, removals(other, most)),
        "by perplexity against by block influence",
        start=1,
    )


def _deeper(view: View) -> Mapping[str, tuple[float, float]]:
    """Loss or misses of the whole and of each deeper stack."""
    row = view.need("deeper", "deeper stacks")[0]
    known = outcomes(row)
    whole = known[str(Plan.identity(view.depth))]
    return {
        name: (whole, known[str(plan)])
        for name, plan in upscaled(view.depth).items()
        if str(plan) in known
    }


def noop_changes_nothing(view: View) -> Decision:
    found = _deeper(view).get("no-op copies (LLaMA-Pro)")
    if found is None:
        raise Unfit("layers that are normed behind their sum cannot pass their input on")
    whole, deeper = found
    said = f"{whole:.6f} before, {deeper:.6f} with no-op copies"
    return Decision("seen" if abs(whole - deeper) < 1e-4 else "not seen", said)


def upscaled_needs_training(view: View) -> Decision:
    whole, deeper = _deeper(view)["overlap (SOLAR)"]
    said = f"{whole:.3f} before, {deeper:.3f} with two overlapping copies"
    return Decision("seen" if deeper > whole else "not seen", said)


def repeated_harm(view: View) -> dict[tuple[int, int], float]:
    """What repeating each block i..j adds."""
    row = view.need("blocks twice", "repeated blocks")[0]
    known = outcomes(row)
    whole = known[str(Plan.identity(view.depth))]
    return {
        place: known[str(plan)] - whole
        for place, plan in repeated(view.depth).items()
        if str(plan) in known
    }


def middle_repeats_harmless(view: View) -> Decision:
    """Single layers and short blocks of the middle half against those that touch an end."""
    harm = repeated_harm(view)
    low, high = view.depth / 4, 3 * view.depth / 4
    short = {place: value for place, value in harm.items() if place[1] - place[0] < 3}
    middle = [v for (i, j), v in short.items() if low <= i and j < high]
    ends = [v for (i, j), v in short.items() if i == 0 or j == view.depth - 1]
    if not middle or not ends:
        raise Unmeasured("short blocks in the middle and at the ends")
    a, b = statistics.median(middle), statistics.median(ends)
    said = f"blocks of up to 3 layers add {a:.3f} in the middle half, {b:.3f} at the ends (medians)"
    return Decision("seen" if a < b else "not seen", said)


def some_repeat_helps(view: View) -> Decision:
    harm = repeated_harm(view)
    (i, j), best = min(harm.items(), key=lambda item: item[1])
    said = f"the best of {len(harm)} blocks, layers {i} to {j}, changes the loss by {best:+.4f}"
    return Decision("seen" if best < 0 else "not seen", said)


CLAIMS: dict[str, tuple[Claim, ...]] = {
    "shortgpt": (
        Claim(
            "low-influence-first",
            SHORTGPT,
            "Layers of little block influence can go with less harm than those of much.",
            "removed",
            "",
            lambda view: low_influence_harms_less(view, "most influence first"),
        ),
        Claim(
            "influence-beats-top",
            SHORTGPT,
            "Removing by block influence harms less than removing from the top.",
            "removed",
            "",
            lambda view: low_influence_harms_less(view, "from the top"),
        ),
        Claim(
            "deep-layers-little-influence",
            SHORTGPT,
            "Deeper layers, the last one apart, have less influence.",
            "influence",
            "",
            deeper_influence_less,
        ),
    ),
    "gromov": (
        Claim(
            "alike-blocks-deep",
            GROMOV,
            "The block whose ends are most alike lies in the deeper half, whatever its length.",
            "angles",
            "",
            alike_blocks_deep,
        ),
        Claim(
            "last-layer-unlike",
            GROMOV,
            "The last layer turns its input more than others do.",
            "angles",
            "",
            last_layer_unlike,
        ),
        Claim(
            "best-block-beats-top",
            GROMOV,
            "Removing the most alike block harms less than removing the top layers.",
            "removed",
            "",
            best_block_beats_top,
        ),
    ),
    "shortened": (
        Claim(
            "ends-critical",
            SHORTENED,
            "The first and the last layers are the ones that cannot be left out.",
            "one-out",
            "",
            ends_are_critical,
        ),
        Claim(
            "perplexity-and-influence",
            SHORTENED,
            "What leaving a layer out costs goes together with its block influence.",
            "one-out",
            "",
            influence_agrees,
        ),
        Claim(
            "perplexity-order",
            SHORTENED,
            "Removing several layers by their single costs harms less than by block influence.",
            "removed",
            "",
            perplexity_order_beats,
        ),
    ),
    "upscale": (
        Claim(
            "noop-changes-nothing",
            LLAMA_PRO,
            "No-op copies leave what the model says as it is.",
            "deeper",
            "",
            noop_changes_nothing,
        ),
        Claim(
            "overlap-needs-training",
            SOLAR,
            "Two overlapping copies are worse than the model before they are trained.",
            "deeper",
            "",
            upscaled_needs_training,
        ),
    ),
    "repeat": (
        Claim(
            "middle-repeats-harmless",
            REPEATED,
            "Short blocks of the middle can be repeated with less harm than those at the ends.",
            "blocks-twice",
            "",
            middle_repeats_harmless,
        ),
        Claim(
            "some-repeat-helps",
            REPEATED,
            "Some repeated block makes the model better without training.",
            "blocks-twice",
            "",
            some_repeat_helps,
        ),
    ),
}
