"""Mutated configs over sound weights: each edit is refused with a reason, or comes out consistent.

`python tests/fuzz_config.py 20000` tries that many and prints a summary; the test suite tries a few
hundred.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from restack.anatomy.checkpoint import Checkpoint, open_checkpoint
from restack.anatomy.config import BY_NUMBER, PER_LAYER, get, put, walk
from restack.anatomy.rules import RULES
from restack.errors import RestackError
from restack.surgery.disk import Edit, Options, prepare

NAMES = ("albert", "bert", "deepseek_v3", "gemma3", "gpt2", "gpt_neo", "llama", "modernbert")
NAMES = (*NAMES, "qwen2-sliding", "qwen3_moe", "t5")
SECONDS = 20.0  # some build the class of the config, for which transformers is imported
FIELDS = sorted({*PER_LAYER, *BY_NUMBER, *(name for rule in RULES for name in rule.fields)})
FIELDS += ["out_indices", "stage_names", "attention_types", "quantization_config", "model_type"]

odd_values: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.sampled_from([10**6, 2**31, 2**63, 10**30, 0.5, float("inf"), "", "5", "llama", "no-such"]),
    st.lists(st.integers(-2, 9), max_size=6),
    st.lists(st.sampled_from(["full_attention", "sliding_attention", "x"]), max_size=6),
    st.just([[["global", "local"], 3]]),
    st.dictionaries(st.sampled_from(["0", "1", "9", "-1", "x", "model_type"]), st.integers(-1, 9)),
)
plans = st.sampled_from(
    ["0-3", "1-4", "0-4x2", "4-0", "0,2,1,3,4", "0-3,4@fresh", "0,0@noop,1-4", "drop:top=1", "0"]
)


Case = tuple[str, dict[str, Any], str, str | None]  # family, config, plan, stack


@dataclass
class Tally:
    """What came of all configs, and the slowest of them."""

    refused: int = 0
    made: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)


@contextmanager
def checkpoints() -> Iterator[dict[str, Checkpoint]]:
    """A sound checkpoint of each family."""
    from tests.families import FAMILIES

    with tempfile.TemporaryDirectory(prefix="restack-fuzz-") as place:
        for name in NAMES:
            FAMILIES[name].build().save_pretrained(Path(place, name))
        yield {name: open_checkpoint(Path(place, name)) for name in NAMES}


@st.composite
def cases(draw: st.DrawFn, sound: dict[str, Checkpoint]) -> Case:
    """A config with one to three things changed, a plan and a stack."""
    family = draw(st.sampled_from(NAMES))
    config = copy.deepcopy(sound[family].config)
    for _ in range(draw(st.integers(1, 3))):
        fields = sorted(name for name, _ in walk(config))
        name = draw(st.sampled_from([*fields, *FIELDS]))
        section = name.rpartition(".")[0]
        if section and not isinstance(get(config, section), dict):
            continue  # the section itself was changed before
        value = get(config, name)
        how = draw(st.sampled_from(["set", "drop", "shift", "longer"]))
        if how == "drop":
            owner = get(config, section) if section else config
            owner.pop(name.rpartition(".")[2], None)
        elif how == "longer" and isinstance(value, list) and value:
            put(config, name, value + value[:1])
        elif how == "shift" and type(value) is int:
            put(config, name, value + draw(st.sampled_from([-1, 1])))
        else:
            put(config, name, draw(odd_values))
    stack = draw(st.sampled_from([None, None, "encoder.block", "model.layers", "h", ""]))
    return family, config, draw(plans), stack


def consistent(made: Edit) -> None:
    """Check that config and tensors of an edit tell of the same stack."""
    json.dumps(made.config)
    prefix = f"{made.stack}."
    numbers = {
        int(target.name[len(prefix) :].partition(".")[0])
        for target in made.targets
        if target.name.startswith(prefix)
    }
    assert len({target.name for target in made.targets}) == len(made.targets)
    if made.config.get("model_type") != "albert":
        assert numbers == set(range(len(made.plan))), made.plan


def check(checkpoint: Checkpoint, plan: str, stack: str | None, tally: Tally) -> None:
    before = repr(checkpoint.config)
    begun = time.process_time()  # not of the clock: a busy machine is no hang
    try:
        consistent(prepare(checkpoint, plan, Options(stack=stack)))
        tally.made += 1
    except RestackError as error:
        str(error).encode()  # can be printed
        tally.refused += 1
        tally.kinds[type(error).__name__] += 1
    seconds = time.process_time() - begun
    assert seconds < SECONDS
    assert repr(checkpoint.config) == before
    tally.seconds = max(tally.seconds, seconds)


def fuzz(examples: int, *, seeded: bool = True) -> Tally:
    """Try `examples` configs; always the same ones if `seeded`."""
    tally = Tally()
    with checkpoints() as sound:

        @settings(
            max_examples=examples,
            derandomize=seeded,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(cases(sound))
        def one(case: Case) -> None:
            family, config, plan, stack = case
            check(replace(sound[family], config=config), plan, stack, tally)

        one()
    return tally


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    begun = time.perf_counter()
    tally = fuzz(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, seeded=False)
    print(
        f"{tally.refused + tally.made} mutated configs in {time.perf_counter() - begun:.0f} s: "
        f"{tally.refused} refused, {tally.made} edits that are consistent, nothing else. "
        f"The slowest took {tally.seconds:.3f} s."
    )
