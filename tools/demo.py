"""The demo: `make demo` re-stacks tiny random models, command by command.

Everything it makes lies in `demo/`; the last thing it makes is a page that shows the plans.
"""

from __future__ import annotations

import html
import shutil
from dataclasses import dataclass
from pathlib import Path

from restack import Plan
from restack.anatomy.checkpoint import open_checkpoint
from tools.shell import run
from tools.tiny import make

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "demo"
_DAMAGED = "bert.encoder.layer.3.output.dense.weight"


@dataclass(frozen=True, slots=True)
class Step:
    """A command, why one would type it, and the plan that it speaks of."""

    why: str
    command: str
    plan: Plan | None = None
    code: int = 0  # the exit code that it should end with


BEFORE = (
    Step("Where do the layers of this model live?", "restack show demo/bert"),
    Step(
        "What would a plan do? No model is needed to see it.",
        "restack plan 12 0-2x2,3-8,9-11@fresh",
        Plan.parse("0-2x2,3-8,9-11@fresh", 12),
    ),
    Step(
        "Leave out the six upper layers.",
        "restack edit demo/bert drop:top=6 -o demo/bert-6",
        Plan.parse("drop:top=6", 12),
    ),
    Step(
        "Is the result what the plan says, bit for bit?",
        "restack verify demo/bert-6 --against demo/bert",
    ),
    Step(
        "From 8 layers to 12 by overlapping two copies; the last of them gets fresh weights.",
        "restack edit demo/llama upscale:12+reinit:11 --seed 3 -o demo/llama-12",
        Plan.parse("upscale:12+reinit:11", 8),
    ),
    Step(
        "Fresh weights come from the seed, so they can be checked too.",
        "restack verify demo/llama-12 --against demo/llama",
    ),
    Step(
        "An off-by-one does not get far: layers count from 0, and nothing is written.",
        "restack edit demo/bert 1-12 -o demo/bert-shifted",
        code=2,
    ),
)
DAMAGED = Step(
    "One bit of layer 3 was just flipped. Does anybody notice?",
    "restack verify demo/bert-6 --against demo/bert",
    code=1,
)
AFTER = Step(
    "Write it again.",
    "restack edit demo/bert drop:top=6 -o demo/bert-6 --force",
    Plan.parse("drop:top=6", 12),
)


def main() -> None:
    """Run the demo from the beginning."""
    for name in ("bert-6", "llama-12"):
        shutil.rmtree(DEMO / name, ignore_errors=True)
    print("Two tiny models with random weights take the place of yours: demo/bert and demo/llama.")
    DEMO.mkdir(exist_ok=True)
    for name in ("bert", "llama"):
        make(name, DEMO / name)
    shown = [_show(step) for step in BEFORE]
    flip_a_bit(DEMO / "bert-6")
    shown += [_show(DAMAGED), _show(AFTER)]
    page = DEMO / "index.html"
    page.write_text(_page(shown), encoding="utf-8")
    print("\nTo look at: demo/index.html, with the plans drawn; demo/bert-6 and demo/llama-12 load")
    print("with from_pretrained as any checkpoint. Use restack on a model of your own with")
    print("    .venv/bin/restack show DIRECTORY-OR-HUB-ID")


def _show(step: Step) -> tuple[Step, str]:
    print(f"\n# {step.why}\n$ {step.command}", flush=True)
    ran = run(step.command, ROOT)
    print(ran.output, flush=True)
    if ran.code != step.code:
        raise SystemExit(f"this should have ended with exit code {step.code}, not {ran.code}")
    return step, ran.output


def flip_a_bit(where: Path) -> None:
    """Change one bit of a tensor in layer 3, as a bad disk would."""
    tensor = open_checkpoint(where).tensors[_DAMAGED]
    with open(where / tensor.shard, "r+b") as file:
        file.seek(tensor.start)
        byte = file.read(1)[0]
        file.seek(tensor.start)
        file.write(bytes([byte ^ 1]))


def _page(shown: list[tuple[Step, str]]) -> str:
    parts = []
    for step, output in shown:
        parts.append(f"<h2>{html.escape(step.why)}</h2>")
        parts.append(f"<pre><b>$ {html.escape(step.command)}</b>\n{html.escape(output)}</pre>")
        if step.plan:
            parts.append(step.plan._repr_html_())
    return _PAGE.replace("BODY", "\n".join(parts))


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>restack demo</title>
<meta name="viewport" content="width=device-width">
<style>
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { font-size: 1.1rem; margin: 2.5rem 0 .5rem }
pre { background: #8881; padding: .75rem 1rem; overflow-x: auto; border-radius: 6px }
td, th { padding: .1rem .75rem }
</style>
<h1>restack demo</h1>
<p>Tiny models with random weights, and real output.</p>
BODY
</html>
"""


if __name__ == "__main__":
    main()
