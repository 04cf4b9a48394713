"""One tuning in a process of its own, for tests that kill it or start several together."""

from __future__ import annotations

import sys
from pathlib import Path

from restack.tune import Recipe, tune
from tests.tune import tiny

RECIPE = Recipe(epochs=6, batch_size=8, rate=3e-3, evaluate_every=10)


def main(out: Path, recipe: Recipe = RECIPE, **options: object) -> object:
    """Tune the tiny BERT on reviews."""
    return tune(
        tiny.bert(dropout=recipe is RECIPE),
        tiny.sentiment(),
        {"validation": tiny.sentiment(16, 1, "validation")},
        recipe,
        tokenizer=tiny.tokenizer(),
        out=out,
        **{"device": "cpu", **options},  # type: ignore[arg-type]
    )


if __name__ == "__main__":
    if sys.argv[1] == "ddp":  # without dropout, which each process draws for itself
        small = Recipe(epochs=2, batch_size=8, rate=3e-3, accumulate=2)
        main(Path(sys.argv[2]), small, device=None)
    else:
        main(Path(sys.argv[1]), save_seconds=0.0)
