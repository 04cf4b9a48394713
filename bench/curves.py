"""Many plans on one model beside a model for each: layer applications, and time.

- counts: for each curve, how often layers really ran (seen by hooks on the layers), beside the
  edges of the trie of its plans and what one model after the other would take;
- twelve top-drops of a classifier: one virtual evaluation, beside twelve models that are there
  already, and beside building each of them first. All sides read the same logits of the same
  batches; that they are equal is checked;
- every layer left out by itself, on one batch: the states of all plans joined in one call of a
  layer, beside a call for each.

    python bench/curves.py
    python bench/curves.py --layers 6 --hidden 128
    python bench/curves.py --device cuda --batch 8
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from common import (
    ROOT,
    Claim,
    Spread,
    add_options,
    alternate,
    finish,
    note,
    ratio,
    table,
    timed,
)

sys.path.insert(0, str(ROOT / "src"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from restack.plan import Plan

    Batches = list[dict[str, Tensor]]

CURVES = ("drop", "drop-one", "duplicate", "repeat:50")
JOINED, APART = "joined", "a call for each"
OURS, THERE, BUILT = "one evaluation", "twelve models", "twelve models, built first"


def classifier(layers: int, hidden: int) -> PreTrainedModel:
    """A BERT with a head for two classes, and random weights."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
    )
    return BertForSequenceClassification(config).eval()


def random_batches(texts: int, batch: int) -> Batches:
    """Random tokens, 8 to 64 a text, the longest first."""
    import torch

    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, 65, (texts,), generator=generator).sort(descending=True).values
    made = []
    for some in lengths.split(batch):
        ids = torch.randint(1000, 30_000, (len(some), int(some.max())), generator=generator)
        mask = (torch.arange(ids.shape[1]) < some[:, None]).long()
        made.append({"input_ids": ids * mask, "attention_mask": mask})
    return made


def logits_of(model: PreTrainedModel, batches: Batches) -> Tensor:
    """What a model gives for all batches."""
    import torch

    with torch.no_grad():
        return torch.cat([model(**batch).logits for batch in batches])


def counted(model: PreTrainedModel, kind: str, batch: dict[str, Tensor]) -> tuple[int, int, int]:
    """For one curve and batch: layers that ran, edges of the trie, layers of all plans."""
    from restack.anatomy import models
    from restack.observe.curves import plan_curve
    from restack.observe.evaluate import evaluate

    stack = models.pick(model)
    plans = plan_curve(kind, stack.depth)
    # what stands within a layer runs if and only if the layer does
    inner = [next(layer.children()) for layer in model.get_submodule(stack.path).children()]
    calls: list[int] = []
    hooks = [module.register_forward_hook(lambda *_: calls.append(1)) for module in inner]
    run = evaluate(model, plans, [batch], _nothing, check=False)
    for hook in hooks:
        hook.remove()
    # before all plans there is one pass through the model that learns how it calls its layers
    return len(calls) - stack.depth, run.edges, sum(map(len, plans))


def _nothing(*_: object) -> dict[str, int]:
    return {"rows": 1}


def main() -> int:
    """Measure and print."""
    options = arguments()
    import torch

    from restack import restack
    from restack.observe.curves import plan_curve
    from restack.observe.evaluate import evaluate

    torch.set_num_threads(options.threads)
    model = classifier(options.layers, options.hidden).to(options.device)
    batches = [
        {name: value.to(options.device) for name, value in batch.items()}
        for batch in random_batches(options.texts, options.batch)
    ]
    note("counts")
    small = {name: value[:2] for name, value in batches[-1].items()}
    counts = {kind: counted(model, kind, small) for kind in CURVES}

    note("time")
    plans: list[Plan] = list(plan_curve("drop", options.layers))
    there = [restack(model, plan) for plan in plans]

    def read(plans: list[Plan], batches: Batches, join: bool | None = None) -> list[Tensor]:
        run = evaluate(model, plans, batches, lambda out, *_: {"logits": out.logits}, join=join)
        return [torch.from_numpy(result["logits"]) for result in run.results]

    def ours() -> list[Tensor]:
        return read(plans, batches)

    def built() -> None:
        for plan in plans:
            logits_of(restack(model, plan), batches)

    wanted = [logits_of(each, batches).cpu() for each in there]
    equal = all(torch.equal(a, b) for a, b in zip(ours(), wanted, strict=True))
    ways: dict[str, Callable[[], object]] = {
        OURS: ours,
        THERE: lambda: [logits_of(each, batches) for each in there],
        BUILT: built,
    }
    runs = alternate(
        {name: lambda way=way: timed(way) for name, way in ways.items()}, options.repeats
    )
    ones, last = list(plan_curve("drop-one", options.layers)), batches[-1:]
    pairs = zip(read(ones, last, True), read(ones, last, False), strict=True)
    far = max(float((a - b).abs().max()) for a, b in pairs)
    sides = {
        name: lambda join=join: timed(lambda: read(ones, last, join))
        for name, join in ((JOINED, True), (APART, False))
    }
    joined = alternate(sides, options.repeats)
    return report(options, counts, runs, equal, joined, far, len(plans))


def report(
    options: argparse.Namespace,
    counts: dict[str, tuple[int, int, int]],
    runs: dict[str, list[float]],
    equal: bool,
    joined: dict[str, list[float]],
    far: float,
    plans: int,
) -> int:
    ratios = {name: ratio(runs[name], runs[OURS]) for name in (THERE, BUILT)}
    rows = [
        (kind, "", f"{ran:,}", f"{edges:,}", f"{apart:,}")
        for kind, (ran, edges, apart) in counts.items()
    ]
    times = [
        (name, "", Spread.of(seconds).text(), "" if name == OURS else ratios[name].text(1))
        for name, seconds in runs.items()
    ]
    text = [
        f"a random BERT classifier, {options.layers} layers of {options.hidden}; layer "
        "applications for one batch",
        "",
        table(("curve", "", "that ran", "edges", "one by one"), rows),
        "",
        f"{plans} top-drops, {options.texts} texts; {options.repeats} rounds, medians "
        "(lowest-highest); "
        + ("all logits are equal, bit for bit" if equal else "the logits DIFFER"),
        "",
        table(("", "", "seconds", "this / one evaluation"), times),
        "",
        f"{options.layers + 1} plans that leave out a layer or none, a batch of {options.batch} on "
        f"{options.device}; the logits are at most {far:.1g} apart",
        "",
        table(
            ("", "", "seconds", f"this / {JOINED}"),
            [
                (n, "", Spread.of(found).text(), ratio(found, joined[JOINED]).text(2))
                for n, found in joined.items()
            ],
        ),
    ]
    worst = max(ran / edges for ran, edges, _ in counts.values())
    claims = [
        Claim("layers that ran / edges of the trie", worst, 1),
        Claim("one evaluation / twelve models", 1 / ratios[THERE].median, 1 / 5),
        Claim("logits that differ", 0 if equal else 1, 0, "of 1"),
    ]
    values = {
        "layers": options.layers,
        "hidden": options.hidden,
        "texts": options.texts,
        "counts": {
            kind: dict(zip(("ran", "edges", "one_by_one"), found, strict=True))
            for kind, found in counts.items()
        },
        "seconds": {name: Spread.of(seconds).to_json() for name, seconds in runs.items()},
        "ratios": {name: found.to_json() for name, found in ratios.items()},
        "equal": equal,
        "joined": {name: Spread.of(seconds).to_json() for name, seconds in joined.items()},
        "joined_apart": far,
    }
    return finish(options, "\n".join(text), values, claims)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--texts", type=int, default=512, help="(%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="texts in a batch (%(default)s)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="of torch (%(default)s)")
    add_options(parser, repeats=3)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
