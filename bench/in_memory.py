"""Surgery on a model in memory beside a deep copy of it; prints seconds as JSON."""

from __future__ import annotations

import copy
import gc
import json
import sys

from common import alternate, timed
from transformers import BertConfig, BertModel

from restack import restack


def main(plan: str, repeats: int) -> None:
    model = BertModel(BertConfig()).eval()
    ways = {
        "restack": lambda: _freed(timed(lambda: restack(model, plan))),
        "deepcopy": lambda: _freed(timed(lambda: copy.deepcopy(model))),
    }
    alternate(ways, 1)  # the first call of each imports and reads what later ones have
    print(json.dumps(alternate(ways, repeats)))


def _freed(seconds: float) -> float:
    gc.collect()  # modules refer to each other: what is left over is not for the next to remove
    return seconds


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
