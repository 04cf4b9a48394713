"""The lens over all layers beside what it saves: time, and memory with a large vocabulary.

Measured side by side, on texts of unequal length:

- `lens`: every score of every layer, over the tokens that count;
- `bare`: one forward without head, then the head alone on the tokens that count, once a layer, with
  nothing made of the logits: no more than has to be computed;
- `a call a layer`: one whole `model(...)` for each layer, special tokens and padding and all, and
  the most likely token of each place.

Peak memory is that of processes of their own, with a tiny model and a vocabulary of 250,000: the
lens on some tokens, on four times as many in one batch, and one plain `model(...)` on the fewer.

    python bench/lens.py
    python bench/lens.py --model DIR --texts FILE --limit 32
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import (
    ROOT,
    Claim,
    Spread,
    add_options,
    alternate,
    finish,
    note,
    ratio,
    run_child,
    table,
    timed,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    Batches = list[dict[str, Tensor]]

LENS, BARE, CALLS = "lens", "bare", "a call a layer"
VOCABULARY = 250_000
FEW = 1024
_ENVIRONMENT = {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def random_bert(vocabulary: int, hidden: int, layers: int) -> PreTrainedModel:
    """A BERT with a masked-LM head and random weights."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
    )
    return BertForMaskedLM(config).eval()


def random_batches(vocabulary: int, lengths: list[int]) -> Batches:
    """One batch of random tokens, with a special one at both ends of each text."""
    import torch

    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, vocabulary, (len(lengths), max(lengths)), generator=generator)
    places, ends = torch.arange(max(lengths)), torch.tensor(lengths)[:, None]
    present = places < ends
    special = (places == 0) | (places == ends - 1) | ~present
    batch = {"input_ids": ids * present, "attention_mask": present.long()}
    return [batch | {"special_tokens_mask": special}]


def real_batches(model: str, texts: str, limit: int, batch_tokens: int) -> Batches:
    """Batches of texts from a file or directory."""
    from transformers import AutoTokenizer

    from restack.data import load_texts
    from restack.data.batches import batches
    from restack.data.tokens import tokenize

    loaded = load_texts(texts, limit=limit)
    tokens = tokenize(AutoTokenizer.from_pretrained(model), loaded.texts, max_length=512)
    return list(batches(tokens, batch_tokens))


def _inputs(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v for k, v in batch.items() if k not in ("special_tokens_mask", "indices")}


def ways(model: PreTrainedModel, batches: Batches) -> dict[str, Callable[[], object]]:
    """The three ways; all without gradients."""
    import torch

    from restack.anatomy import models
    from restack.observe.heads import chunks, own_head
    from restack.observe.lens import lens
    from restack.observe.right_tokens import asked_tokens

    head, depth = own_head(model), models.pick(model).depth
    # the very module, without the way around that makes `head` general
    direct = getattr(model, "cls", None) or getattr(model, "predictions", None) or head.logits
    places = [asked_tokens(batch, head.reads).where for batch in batches]

    @torch.no_grad()
    def bare() -> None:
        for batch, where in zip(batches, places, strict=True):
            state = model.base_model(**_inputs(batch))[0][where]
            for _ in range(depth + 1):
                for (rows,) in chunks(head, state):
                    direct(rows)

    @torch.no_grad()
    def calls() -> None:
        for batch in batches:
            for _ in range(depth + 1):
                model(**_inputs(batch)).logits.argmax(-1)

    return {LENS: lambda: lens(model, batches, head=head), BARE: bare, CALLS: calls}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes at the peak of a process: with its model in place, and at the end."""

    before: int
    after: int

    @property
    def added(self) -> int:
        return self.after - self.before


def measure_memory(what: str, tokens: int) -> Memory:
    """Run one way in a process of its own."""
    command = [sys.executable, Path(__file__), "--child", what, "--tokens", tokens]
    return Memory(**json.loads(run_child(command, env=_ENVIRONMENT).output.splitlines()[-1]))


def child(what: str, tokens: int) -> None:
    """What a process does whose memory is measured; prints its peaks."""
    import torch

    from restack.observe.heads import own_head
    from restack.observe.lens import lens

    model = random_bert(VOCABULARY, 64, 2)
    batches = random_batches(VOCABULARY, [66] * (tokens // 64))
    head = own_head(model)
    before = _peak()
    if what == LENS:
        lens(model, batches, head=head)
    else:
        with torch.no_grad():
            model(**_inputs(batches[0]))
    print(json.dumps({"before": before, "after": _peak()}))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", help="a checkpoint (a random BERT-base if not given)")
    parser.add_argument("--texts", help="a file or directory of texts for it")
    parser.add_argument("--limit", type=int, default=32, help="texts (%(default)s)")
    parser.add_argument("--batch-tokens", type=int, default=2048, help="of texts (%(default)s)")
    parser.add_argument("--tokens", type=int, default=FEW, help="for memory (%(default)s)")
    parser.add_argument("--threads", type=int, help="of torch")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    add_options(parser, repeats=5)
    options = parser.parse_args()
    if bool(options.model) != bool(options.texts):
        parser.error("--model and --texts go together")
    return options


def main() -> int:
    """Measure and print."""
    options = arguments()
    if options.child:
        child(options.child, options.tokens)
        return 0
    few, many = options.tokens, 4 * options.tokens
    note("memory")  # first: what this process has loaded would count in its children
    peaks = {
        f"lens, {few:,} tokens": measure_memory(LENS, few),
        f"lens, {many:,} tokens": measure_memory(LENS, many),
        f"model(...), {few:,} tokens": measure_memory("model", few),
    }
    note("time")
    import torch
    from transformers import AutoModelForMaskedLM

    if options.threads:
        torch.set_num_threads(options.threads)
    if options.model:
        model = AutoModelForMaskedLM.from_pretrained(options.model, dtype=torch.float32).eval()
        batches = real_batches(options.model, options.texts, options.limit, options.batch_tokens)
    else:
        model = random_bert(30_522, 768, 12)
        batches = random_batches(30_522, [64, 60, 56, 48, 40, 36, 28, 20])
    every = ways(model, batches)
    every[LENS]()  # whatever is only done once
    runs = alternate(
        {name: lambda way=way: timed(way) for name, way in every.items()}, options.repeats
    )
    return _report(options, model, batches, runs, peaks, (few, many))


def _report(
    options: argparse.Namespace,
    model: PreTrainedModel,
    batches: Batches,
    runs: dict[str, list[float]],
    peaks: dict[str, Memory],
    tokens: tuple[int, int],
) -> int:
    bare, calls = ratio(runs[LENS], runs[BARE]), ratio(runs[CALLS], runs[LENS])
    ours, more, _ = peaks.values()
    logits = 4 * VOCABULARY * (tokens[1] - tokens[0])
    claims = [
        Claim("lens / bare", bare.median, 1.25),
        Claim("lens / a call a layer", 1 / calls.median, 1 / 3),
        Claim(
            f"memory added by {tokens[1] - tokens[0]:,} tokens / their logits",
            (more.after - ours.after) / logits,
            0.02,
        ),
    ]
    counted = sum(int((~batch["special_tokens_mask"]).sum()) for batch in batches)
    places = sum(batch["input_ids"].numel() for batch in batches)
    times = [
        (name, "", Spread.of(seconds).text(), ratio(runs[LENS], seconds).text())
        for name, seconds in runs.items()
    ]
    sizes = [
        (name, "", f"{peak.before / 1e6:.0f}", f"{peak.after / 1e6:.0f}", f"{peak.added / 1e6:.0f}")
        for name, peak in peaks.items()
    ]
    text = [
        f"{options.model or 'a random BERT-base'}: {counted:,} tokens that count, {places:,} "
        f"places; {options.repeats} rounds, medians (lowest-highest)",
        "",
        table(("", "", "seconds", "lens / this"), times),
        "",
        f"a vocabulary of {VOCABULARY:,}, {4 * VOCABULARY * tokens[0] / 1e6:,.0f} MB of logits for "
        f"{tokens[0]:,} tokens; MB at the peak",
        "",
        table(("", "", "loaded", "at the end", "added"), sizes),
    ]
    values: dict[str, Any] = {
        "model": options.model,
        "layers": model.config.num_hidden_layers,
        "tokens": counted,
        "places": places,
        "seconds": {name: Spread.of(seconds).to_json() for name, seconds in runs.items()},
        "lens_by_bare": bare.to_json(),
        "calls_by_lens": calls.to_json(),
        "vocabulary": VOCABULARY,
        "peaks": {n: {"loaded": peak.before, "end": peak.after} for n, peak in peaks.items()},
    }
    return finish(options, "\n".join(text), values, claims)


if __name__ == "__main__":
    sys.exit(main())
