"""Commands about stacks and plans: plan, show, edit, verify. None of them needs torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restack.cli import output
from restack.cli.main import app
from restack.errors import RestackError

if TYPE_CHECKING:
    from restack.anatomy.anatomy import Anatomy, Stack
    from restack.surgery.disk import Edit

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
StackOption = Annotated[
    str | None, typer.Option("--stack", metavar="PATH", help="Which stack, if there are several.")
]
Revision = Annotated[
    str | None, typer.Option("--revision", help="Branch, tag or commit on the Hub.")
]

PLAN_HELP = (
    "The new stack: layers (0-5 | 0-2x2,3-11 | 0-8,9-11@fresh) or verbs "
    "(drop:top=6 | duplicate:first=3 | permute:seed=7), joined by +."
)


@app.command("plan")
def plan_command(
    depth: Annotated[int, typer.Argument(metavar="DEPTH", help="Layers of the source stack.")],
    plan: Annotated[str, typer.Argument(metavar="PLAN", help=PLAN_HELP)],
    json: Json = False,
    mergekit: Annotated[
        str | None,
        typer.Option("--mergekit", metavar="MODEL", help="Print it as mergekit YAML of MODEL."),
    ] = None,
) -> None:
    """Draw a plan without a model."""
    from restack.plan import Plan, describe, to_mergekit

    made = Plan.parse(plan, depth)
    if mergekit:
        print(to_mergekit(made, mergekit), end="")
    elif json:
        output.as_json(plan_json(made) | {"describe": describe(made)})
    else:
        output.show(made)


def plan_json(plan: Any) -> dict[str, Any]:
    """A plan as plain data."""
    return {
        "plan": str(plan),
        "source_depth": plan.depth,
        "depth": len(plan),
        "slots": [
            {"source": slot.source, "mark": str(slot.mark), "draw": slot.draw} for slot in plan
        ],
        "gone": list(plan.gone),
    }


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="A directory, or the id of a model on the Hub.")],
    stack: StackOption = None,
    revision: Revision = None,
    json: Json = False,
) -> None:
    """Show where the layers of a model live. Reads headers only, also on the Hub."""
    from dataclasses import replace

    from restack.anatomy.anatomy import no_stack, summary
    from restack.anatomy.checkpoint import open_checkpoint
    from restack.anatomy.checkpoints import anatomy

    found = anatomy(open_checkpoint(model, revision=revision), stack)
    if not found.stacks:
        raise no_stack(found.location, found.config, found.tensors)
    if stack:
        found = replace(found, stacks=(found.pick(stack),))
    if json:
        output.as_json(
            {
                "model": found.location,
                "model_type": found.model_type,
                "architectures": found.config.get("architectures"),
                "parameters": sum(t.size for t in found.tensors.values()),
                "bytes": sum(t.nbytes for t in found.tensors.values()),
                "tied": dict(found.tied),
                "stacks": [summary(stack, found.config) for stack in found.stacks],
            }
        )
    else:
        _draw_anatomy(found)


def _draw_anatomy(found: Anatomy) -> None:
    from rich.table import Table
    from rich.text import Text

    total = sum(t.size for t in found.tensors.values())
    stored = sum(t.nbytes for t in found.tensors.values())
    named = found.config.get("architectures")
    classes = ", ".join(map(str, named)) if isinstance(named, list) else found.model_type
    output.show(
        Text.assemble(
            (found.location, "bold"),
            f"  {classes} · {output.number(total)} parameters · {output.size(stored)}",
        )
    )
    if found.tied:
        output.show(Text("tied  " + ", ".join(f"{a} = {b}" for a, b in found.tied.items())))
    for stack in found.stacks:
        layers = len(stack.layers)
        inside = sum(stack.parameters(i) for i in range(layers))
        table = Table(title_justify="left", box=None, padding=(0, 2), show_header=False)
        for name, value in _facts(found, stack, inside, total):
            table.add_row(name, value)
        output.show(
            Text.assemble("\n", (stack.path, "bold cyan"), f"  layers 0..{stack.depth - 1}")
        )
        output.show(table, _layer_table(stack))


def _facts(found: Anatomy, stack: Stack, inside: int, total: int) -> list[tuple[str, str]]:
    from restack.anatomy.anatomy import summary

    seen = summary(stack, found.config)
    kinds = len(set(stack.kinds))
    rows = [
        ("depth field", ", ".join(seen["count_fields"])),
        ("tensors", seen["key_pattern"] + "*"),
        ("parameters", f"{output.number(inside)} of {output.number(total)} ({inside / total:.0%})"),
        ("kinds", "all layers alike" if kinds == 1 else f"{kinds} kinds of layers"),
    ]
    if stack.facts.shared:
        rows.append(("shared", f"one set of weights for {stack.depth // len(stack.layers)} layers"))
    for label, key in (
        ("lists", "per_layer_lists"),
        ("index rules", "index_rules"),
        ("in layer 0", "stored_in_first_layer"),
        ("by depth", "depends_on_depth"),
    ):
        if seen[key]:
            rows.append((label, ", ".join(seen[key])))
    if stack.past_end:
        rows.append(("past the end", f"{len(stack.past_end)} tensors, first {stack.past_end[0]}"))
    return rows


def _layer_table(stack: Stack) -> Any:
    """One row for each run of layers that are alike."""
    from rich.table import Table

    table = Table("layers", "kind", "tensors", "parameters each", "bytes each", box=None)
    start = 0
    kinds = stack.kinds
    for i in range(1, len(kinds) + 1):
        if i == len(kinds) or kinds[i] != kinds[start]:
            span = f"{start}" if i == start + 1 else f"{start}-{i - 1}"
            table.add_row(
                span,
                chr(ord("a") + kinds[start] % 26),
                str(len(stack.layers[start])),
                output.number(stack.parameters(start)),
                output.size(stack.nbytes(start)),
            )
            start = i
    return table


@app.command()
def edit(
    model: Annotated[str, typer.Argument(help="A directory, or the id of a model on the Hub.")],
    plan: Annotated[str, typer.Argument(metavar="PLAN", help=PLAN_HELP)],
    out: Annotated[Path, typer.Option("-o", "--out", help="The directory to write.")],
    stack: StackOption = None,
    seed: Annotated[int, typer.Option(help="Seed of fresh weights.")] = 0,
    init: Annotated[
        str,
        typer.Option(
            help="Fresh weights: family (as it starts its own; needs torch), standard, paper, "
            "paper-keep-norms or released.",
        ),
    ] = "family",
    past_end: Annotated[
        str | None,
        typer.Option(
            metavar="keep|drop",
            help="What becomes of layers numbered beyond the depth (multi-token prediction).",
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, float16, bfloat16 or float64 instead.")
    ] = None,
    shard_size: Annotated[
        str | None, typer.Option(help="Split the weights into files of this size, such as 5GB.")
    ] = None,
    hash: Annotated[
        bool,
        typer.Option("--hash", help="Record a digest of every tensor, for verify to compare."),
    ] = False,
    revision: Revision = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an older output.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, write nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Write a checkpoint with another stack. Tensors are copied as they are, byte for byte."""
    from restack.surgery.disk import Options
    from restack.surgery.disk import edit as run
    from restack.surgery.shards import parse_size

    if past_end not in (None, "keep", "drop"):
        raise RestackError(f"--past-end {past_end!r}", hint="say keep or drop")
    options = Options(
        stack=stack,
        seed=seed,
        init=init,
        past_end=past_end,
        dtype=dtype,
        shard_size=None if shard_size is None else parse_size(shard_size),
        hash=hash,
        force=force,
        revision=revision,
    )
    with output.byte_progress("writing") as (start, advance):

        def started(made: Edit) -> None:
            start(made.nbytes)
            if not json:
                output.show(made.plan)

        made = run(model, plan, out, options, dry_run=dry_run, started=started, progress=advance)
    if json:
        output.as_json(made.to_json() | {"out": str(out), "written": not dry_run})
        return
    done = "would be written to" if dry_run else "written to"
    print(f"{output.number(made.parameters)} parameters, {output.size(made.nbytes)}, {done} {out}")


@app.command()
def verify(
    out: Annotated[str, typer.Argument(metavar="OUT", help="The checkpoint to check.")],
    against: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Compare every tensor with what the plan makes of it."),
    ] = None,
    load: Annotated[
        bool, typer.Option("--load", help="Also against the class that loads it (needs torch).")
    ] = False,
    json: Json = False,
) -> None:
    """Check a checkpoint: structure, provenance, bytes. Exit code 1 if anything differs."""
    from restack.surgery.verify import verify as run

    with output.byte_progress("comparing") as (_, advance):
        report = run(out, against, load=load, progress=advance)
    if json:
        output.as_json(report.to_json())
    else:
        for line in report.checked:
            print(f"ok       {line}")
        for line in report.differences:
            print(f"differs  {line}")
    if not report.ok:
        raise typer.Exit(1)
