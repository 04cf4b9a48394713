"""Surgery on random Llama checkpoints beside `cp` and mergekit, side by side in one run.

Every command is measured whole, with the start of its interpreter. Before each, the disk is let
come to rest, and what the command will read is brought into the page cache (or out of it, if it
would not fit there beside the output). `restack edit` returns when its output is on the disk. `cp`
returns earlier, so it is measured with `sync` of what it wrote as well; mergekit returns earlier,
and is taken as it is.

    python bench/surgery.py --size 0.9b
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import random_llama
from common import (
    ROOT,
    Child,
    ChildFailed,
    Claim,
    Spread,
    add_options,
    alternate,
    finish,
    note,
    ratio,
    run_child,
    table,
    work_directory,
)
from mergekit_runs import Mergekit, install, write_config
from page_cache import room_for, settle

PLANS = {"drop": "drop:top=8", "duplicate": "duplicate:each", "overlap": "0-15,8-23"}
OURS, CP, CP_SYNC, MERGEKIT = "restack edit", "cp", "cp + sync", "mergekit"
_RESTACK = [sys.executable, "-m", "restack"]
_ENVIRONMENT = {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
_WORTH_TIMING = 100_000_000  # below, only the starts of the interpreters would be compared
_CP_SYNC = 'cp -R "$1" "$2" && sync "$2"/* "$2"'


@dataclass(frozen=True, slots=True)
class Result:
    """All runs of one plan."""

    name: str
    plan: str
    nbytes: int
    warm: bool
    runs: dict[str, list[Child]]
    same: bool | None  # whether mergekit wrote the same tensors

    def seconds(self, way: str) -> Spread:
        return Spread.of([run.seconds for run in self.runs[way]])

    def peak(self, way: str) -> int:
        """Most memory that any of the runs took; 0 where it was too little to be measured."""
        return max(run.peak for run in self.runs[way])

    def ratio(self, way: str) -> Spread | None:
        """Our time by that of another way."""
        if way not in self.runs:
            return None
        ours, theirs = ([run.seconds for run in self.runs[each]] for each in (OURS, way))
        return ratio(ours, theirs)

    def to_json(self) -> dict[str, Any]:
        ratios = {way: self.ratio(way) for way in self.runs if way != OURS}
        return {
            "name": self.name,
            "plan": self.plan,
            "bytes": self.nbytes,
            "page_cache": "warm" if self.warm else "cold",
            "same_tensors_as_mergekit": self.same,
            "runs": {
                way: {"seconds": [run.seconds for run in runs], "peak_bytes": self.peak(way)}
                for way, runs in self.runs.items()
            },
            "ratios": {way: found.to_json() for way, found in ratios.items() if found},
        }


def measure(
    name: str, source: Path, work: Path, repeats: int, mergekit: Mergekit | None
) -> Result | None:
    """All ways of writing what a plan makes of a checkpoint, in turn; None if the disk is full."""
    plan, reference, out = PLANS[name], work / "reference", work / "out"
    nbytes = _nbytes_of(source, plan)
    free = shutil.disk_usage(work).free
    if free < 2.05 * nbytes:
        note(
            f"{name}: takes {2 * nbytes / 1e9:.1f} GB at once, free are {free / 1e9:.1f}: left out"
        )
        return None
    warm = room_for(_size(source) + 2 * nbytes)
    _edit(source, plan, reference)  # what cp copies, and what mergekit's output is compared with

    def way(reads: Path, write: Callable[[], Child]) -> Callable[[], Child]:
        def run() -> Child:
            settle([reads] if warm else [source, reference], warm=warm)
            try:
                return write()
            finally:
                shutil.rmtree(out, ignore_errors=True)

        return run

    copy_and_sync = ["sh", "-c", _CP_SYNC, "sh", reference, out]
    ways = {
        OURS: way(source, lambda: _edit(source, plan, out)),
        CP: way(reference, lambda: run_child(["cp", "-R", reference, out])),
        CP_SYNC: way(reference, lambda: run_child(copy_and_sync)),
    }
    same = None
    if mergekit:
        config = work / "mergekit.yaml"
        write_config(config, source, plan, _depth(source))
        try:
            mergekit.run(config, out)
            same = not random_llama.differences(reference, out)
            ways[MERGEKIT] = way(source, lambda: mergekit.run(config, out))
        except ChildFailed as error:
            note(f"{name}: mergekit fails: {error}")
        shutil.rmtree(out, ignore_errors=True)
    runs = alternate(ways, repeats)
    shutil.rmtree(reference)
    return Result(name, plan, nbytes, warm, runs, same)


def _edit(source: Path, plan: str, out: Path) -> Child:
    return run_child([*_RESTACK, "edit", source, plan, "-o", out], env=_ENVIRONMENT)


def _nbytes_of(source: Path, plan: str) -> int:
    command = [*_RESTACK, "edit", source, plan, "-o", source.with_name("not-written")]
    shown = run_child([*command, "--dry-run", "--json"], env=_ENVIRONMENT)
    return int(json.loads(shown.output)["bytes"])


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _depth(source: Path) -> int:
    return int(json.loads((source / "config.json").read_text())["num_hidden_layers"])


def measure_help(repeats: int) -> Spread:
    """Seconds of `restack --help`."""
    run_child([*_RESTACK, "--help"], env=_ENVIRONMENT)  # compiles what changed
    return Spread.of(
        [run_child([*_RESTACK, "--help"], env=_ENVIRONMENT).seconds for _ in range(repeats)]
    )


def measure_in_memory(plan: str, repeats: int) -> Spread | None:
    """Our time by that of a deep copy, for a 12-layer BERT-base; None without transformers."""
    script = Path(__file__).with_name("in_memory.py")
    try:
        shown = run_child([sys.executable, script, plan, str(repeats)], env=_ENVIRONMENT)
    except ChildFailed as error:
        note(f"surgery in memory fails: {error}")
        return None
    seconds = json.loads(shown.output.splitlines()[-1])
    return ratio(seconds["restack"], seconds["deepcopy"])


def claims(
    results: Sequence[Result], left_out: Sequence[str], others: Sequence[str]
) -> Iterator[Claim]:
    """What the project says about its edits on disk, with what was measured."""
    for name in left_out:
        yield Claim(f"{name}: time by {CP_SYNC}", None, 1.15)
    for result in results:
        if result.nbytes >= _WORTH_TIMING:
            for way in others:
                limit = 1 / 3 if way == MERGEKIT else 1.15
                yield Claim(f"{result.name}: time by {way}", _median(result.ratio(way)), limit)
        peak = result.peak(OURS) / 1e6
        yield Claim(f"{result.name}: peak memory", peak or None, 80, "MB")
        if result.same is not None:
            count = 0 if result.same else 1
            yield Claim(f"{result.name}: other bytes than mergekit's", count, 0, "")


def _median(found: Spread | None) -> float | None:
    return found.median if found else None


def result_table(results: Sequence[Result]) -> str:
    """One row for each way of carrying out each plan."""
    rows = []
    for result in results:
        for way in result.runs:
            seconds, peak, ours = result.seconds(way), result.peak(way), result.ratio(way)
            rows.append(
                (
                    result.name,
                    way,
                    "warm" if result.warm else "cold",
                    f"{result.nbytes / 1e9:.2f}",
                    seconds.text(),
                    f"{result.nbytes / 1e9 / seconds.median:.2f}",
                    f"{peak / 1e6:.0f}" if peak else "-",
                    ours.text() if ours and way != OURS else "",
                )
            )
    return table(("plan", "", "cache", "GB", "seconds", "GB/s", "peak MB", "restack / this"), rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", choices=list(random_llama.SIZES), default="0.9b")
    parser.add_argument("--plans", nargs="+", choices=list(PLANS), default=list(PLANS))
    parser.add_argument("--work", type=Path, help="a directory on the disk to measure (.bench)")
    parser.add_argument(
        "--without-mergekit", action="store_true", help="install and run no mergekit"
    )
    add_options(parser, repeats=5)
    return parser.parse_args()


def main() -> int:
    """Measure, print, and remove everything that was written."""
    signal.signal(signal.SIGTERM, _leave)  # as an exception, so that the work directory goes
    options = arguments()
    mergekit = None if options.without_mergekit else install()
    with work_directory(options.work) as work:
        note(f"making a Llama of size {options.size}")
        source = work / "source"
        parameters = random_llama.make(source, random_llama.SIZES[options.size]) // 2
        results = []
        for name in options.plans:
            note(f"{name}: {PLANS[name]}")
            if result := measure(name, source, work, options.repeats, mergekit):
                results.append(result)
    helped, memory = measure_help(10), measure_in_memory("permute:seed=0", 7)
    text = [
        f"{parameters / 1e9:.2f}B parameters, {options.repeats} rounds, medians (lowest-highest)"
        + (f"; mergekit {mergekit.version}" if mergekit else "; without mergekit"),
        "",
        result_table(results),
        "",
        f"restack --help: {helped.text()} s",
        f"surgery in memory / deep copy, BERT-base: {memory.text() if memory else 'not measured'}",
    ]
    values = {
        "size": options.size,
        "parameters": parameters,
        "mergekit": mergekit and mergekit.version,
        "plans": [result.to_json() for result in results],
        "help_seconds": helped.to_json(),
        "in_memory_by_deep_copy": memory and memory.to_json(),
    }
    left_out = [name for name in options.plans if name not in {result.name for result in results}]
    others = [CP_SYNC, CP] if options.without_mergekit else [CP_SYNC, CP, MERGEKIT]
    made = [
        *claims(results, left_out, others),
        Claim("restack --help", _median(helped), 0.3, "s"),
        Claim("in memory: time by a deep copy", _median(memory), 1.5),
    ]
    return finish(options, "\n".join(text), values, made)


def _leave(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
