"""One tuning in a process of its own, for tests that kill it or start several together."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from restack.tune import Recipe, tune
from restack.tune.engine import make_engine
from restack.tune.interrupts import Stopped
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


def _shard_on_cpu() -> None:
    """accelerate shards among GPUs only, and torch can do it among processes of a CPU too."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU


if __name__ == "__main__":
    if sys.argv[1] == "together":  # without dropout, which each process draws for itself
        small = Recipe(epochs=2, batch_size=8, rate=3e-3, accumulate=2)
        if os.environ.get("ACCELERATE_USE_FSDP"):
            _shard_on_cpu()
        engine = make_engine(small)
        print(engine.world, engine.sharded)
        asked = iter(range(100))
        with contextlib.suppress(Stopped):
            main(Path(sys.argv[2]), small, device=None, stop=lambda: next(asked) == 4)
        main(Path(sys.argv[2]), small, device=None, resume=True)
    else:
        main(Path(sys.argv[1]), save_seconds=0.0)
