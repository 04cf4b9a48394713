"""Train the demo models from scratch: `python -m restack.demo.pretrain mlm -o DIRECTORY`.

Twelve layers of width 128 on texts of the demo language, under two hours on two CPU cores. The
same seed gives the same texts, masks, first weights and batches on every machine; the sums of a
GPU differ in their last digits, so that models are alike and not equal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from restack.data.batches import collate
from restack.data.tokens import Tokens
from restack.demo.card import card
from restack.demo.curriculum import lessons, sample, schedule
from restack.demo.vocabulary import POSITIONS, SIZE, Kind, learn_tokenizer
from restack.errors import RestackError
from restack.surgery.publish import check_output, publish
from restack.tune.masking import IGNORED, Masking

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WIDTH, LAYERS, HEADS = 128, 12, 4


@dataclass(frozen=True, slots=True)
class Schooling:
    """All that decides about a demo model."""

    kind: Kind
    steps: int
    batch_tokens: int
    rows: int
    """Different rows of text; they are gone over until the steps are done."""
    rate: float
    tied: bool
    """Whether the head reads with the table that the embeddings are taken from."""
    seed: int = 0
    warmup: float = 0.08
    weight_decay: float = 0.01
    mask: float = 0.2
    """The part of the tokens that is hidden, for `mlm`."""


SCHOOLING: dict[Kind, Schooling] = {
    # with a head of its own layer 0 is no mere lookup: it has to be told what it reads
    "mlm": Schooling("mlm", 2500, 4096, 80_000, 1e-3, tied=False),
    "clm": Schooling("clm", 2000, 1024, 40_000, 1.5e-3, tied=True),
}


def build(kind: Kind, seed: int, tied: bool) -> PreTrainedModel:
    """A model with the first weights that follow from the seed."""
    from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

    common: dict[str, Any] = {
        "vocab_size": SIZE,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": 0,
        "tie_word_embeddings": tied,
    }
    torch.manual_seed(seed)
    if kind == "mlm":
        none: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return BertForMaskedLM(BertConfig(intermediate_size=4 * WIDTH, **none, **common))
    return LlamaForCausalLM(
        LlamaConfig(
            intermediate_size=352,
            num_key_value_heads=2,
            bos_token_id=1,
            eos_token_id=2,
            **common,
        )
    )


@dataclass(frozen=True, slots=True)
class Lesson:
    """One batch: what goes into the model, and the tokens that it is asked for."""

    inputs: dict[str, Tensor]
    asked: Tensor
    """Rows x places: where the state has to know a token."""
    answers: Tensor


def _lesson(
    tokens: Tokens, rows: np.ndarray, masking: Masking | None, device: Any, step: int = 0
) -> Lesson:
    batch = collate(tokens, rows, multiple=8)
    special = batch.pop("special_tokens_mask")
    batch.pop("indices")
    ids = batch["input_ids"]
    if masking is not None:
        batch["input_ids"], labels = masking.hide(ids, special, rows, step)
    else:
        labels = torch.full_like(ids, IGNORED)
        real = batch["attention_mask"].bool()
        labels[:, :-1] = torch.where(real[:, 1:], ids[:, 1:], IGNORED)
    asked = labels != IGNORED
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    return Lesson(batch, asked.to(device), labels[asked].to(device))


def _logits(model: PreTrainedModel, lesson: Lesson) -> Tensor:
    """The head reads only the places that are asked for, a fifth of all."""
    states = model.base_model(**lesson.inputs).last_hidden_state[lesson.asked]
    head: Any = model.cls if hasattr(model, "cls") else model.lm_head
    logits: Tensor = head(states)
    return logits


def _loss(model: PreTrainedModel, lesson: Lesson, device: torch.device) -> Tensor:
    with torch.autocast(device.type, torch.bfloat16):
        logits = _logits(model, lesson)
    return cross_entropy(logits.float(), lesson.answers)


def teach(
    model: PreTrainedModel, tokens: Tokens, masking: Masking | None, how: Schooling, device: Any
) -> Iterator[tuple[int, float]]:
    """Train; gives the step and the mean loss since the last one, 50 steps apart."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": how.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=how.rate, betas=(0.9, 0.98), fused=True)
    model.train()
    total = torch.zeros((), device=device)
    plan = schedule(tokens, how.steps, how.batch_tokens, how.seed)
    rising = max(1, round(how.warmup * how.steps))
    for step, rows in enumerate(plan, start=1):
        for group in optimizer.param_groups:
            left = (how.steps + 1 - step) / (how.steps + 1 - rising)
            group["lr"] = how.rate * min(step / rising, left)
        loss = _loss(model, _lesson(tokens, rows, masking, device, step), device)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total += loss.detach()
        if step % 50 == 0:
            yield step, float(total) / 50
            total.zero_()


@torch.no_grad()
def examine(
    model: PreTrainedModel, tokens: Tokens, masking: Masking | None, device: Any
) -> dict[str, float]:
    """Loss and accuracy on texts that it has not seen, hidden as in training."""
    model.eval()
    loss = right = count = 0.0
    for rows in np.array_split(
        np.argsort(tokens.lengths, kind="stable"), max(1, len(tokens) // 64)
    ):
        lesson = _lesson(tokens, rows, masking, device)
        logits = _logits(model, lesson)
        loss += float(cross_entropy(logits, lesson.answers, reduction="sum"))
        right += float((logits.argmax(-1) == lesson.answers).sum())
        count += len(lesson.answers)
    return {"loss": loss / count, "accuracy": right / count, "tokens": count}


def pretrain(how: Schooling, device: str, say: Any) -> tuple[PreTrainedModel, Any, dict[str, Any]]:
    """A trained model in float16, its tokenizer, and the record of the training."""
    place = torch.device(device)
    tokenizer = learn_tokenizer(how.kind, sample(20_000))
    tokens = lessons(tokenizer, how.rows)
    masking = None
    if how.kind == "mlm":
        masking = Masking(how.mask, tokenizer.mask_token_id, SIZE, how.seed)
    model = build(how.kind, how.seed, how.tied)
    model.to(place)  # type: ignore[arg-type]
    begin, curve = time.monotonic(), []
    for step, loss in teach(model, tokens, masking, how, place):
        curve.append([step, round(loss, 4)])
        say(f"step {step} of {how.steps}, loss {loss:.3f}, {time.monotonic() - begin:.0f} s")
    seconds = time.monotonic() - begin
    model.to("cpu").half().float()  # type: ignore[arg-type]  # what is measured is what is saved
    held_out = examine(model, lessons(tokenizer, 1000, "validation"), masking, torch.device("cpu"))
    record = {
        "schooling": asdict(how),
        "tokens": int(
            sum(
                tokens.lengths[rows].sum()
                for rows in schedule(tokens, how.steps, how.batch_tokens, how.seed)
            )
        ),
        "loss": curve,
        "validation": held_out,
        "device": place.type,
        "seconds": round(seconds, 1),
    }
    return model.half(), tokenizer, record


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m restack.demo.pretrain", description=__doc__)
    parser.add_argument("kind", choices=tuple(SCHOOLING), help="masked or causal")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the directory to write")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="fewer steps, to try it out")
    said = parser.parse_args()
    try:
        check_output(said.out)
        how = replace(SCHOOLING[said.kind], seed=said.seed)
        if said.steps:
            how = replace(how, steps=said.steps)
        device = said.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        made = pretrain(how, device, lambda text: print(text, file=sys.stderr, flush=True))
        save(said.out, *made)
    except RestackError as error:
        sys.exit(f"error: {error.message}\n  {error.hint or ''}".rstrip())
    except KeyboardInterrupt:
        sys.exit("interrupted; nothing was written")


def save(out: Path, model: PreTrainedModel, tokenizer: Any, record: dict[str, Any]) -> None:
    """A directory as transformers reads it, with the record of the training and a card beside."""
    with publish(out) as work:
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)
        (work / "training.json").write_text(json.dumps(record) + "\n")
        (work / "README.md").write_text(card(record["schooling"]["kind"], record))


if __name__ == "__main__":
    main()
