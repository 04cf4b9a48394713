"""The command that measures what models cost, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from restack.cli import output
from restack.cli.loading import Device
from restack.cli.main import app
from restack.cli.surgery import PLAN_HELP, Json, StackOption

if TYPE_CHECKING:
    from rich.table import Table

    from restack.tune.cost import Cost, CostResult, Ratio, Subject


@app.command()
def bench(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Directories, or ids on the Hub.")
    ],
    plan: Annotated[
        list[str] | None,
        typer.Option("--plan", metavar="PLAN", help=PLAN_HELP + " Of every model. Repeatable."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Texts in a batch.")] = 32,
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a text (128); not with --task.")
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="Run texts of this task, as they come.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DIR", help="Where they are, if not on the Hub."),
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Which split.")] = "validation",
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many texts.")] = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Cut texts to so many tokens.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="The head: classification, regression, multilabel, span, lm or mlm; by default "
            "that of the task or of the first model, or classification.",
        ),
    ] = None,
    training: Annotated[bool, typer.Option(help="Measure training steps too.")] = True,
    rounds: Annotated[
        int, typer.Option(min=3, help="How often each model is measured, in turn.")
    ] = 10,
    precision: Annotated[
        str, typer.Option(help="fp32, bf16 or fp16: the arithmetic of matrices.")
    ] = "fp32",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of a CPU.")] = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--like",
            help="`drop`: the columns of table 3 of Sajjad et al., beside theirs; without --plan "
            "a sixth, a third and a half of the layers are dropped from the top.",
        ),
    ] = None,
    stack: StackOption = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """What models and plans cost, measured in turn: sizes, times, memory, ratios to the first."""
    from restack.errors import RestackError
    from restack.tune.cost import label_plans, measure, steps
    from restack.tune.cost_worker import Workload

    if task is not None and length is not None:
        raise RestackError(
            "--length is for made-up texts, and --task gives real ones",
            hint="leave one of them out; --max-length cuts real texts",
        )
    if task is None and (data is not None or limit is not None or max_length is not None):
        raise RestackError(
            "--data, --limit and --max-length are for the texts of a task", hint="give --task"
        )
    if like not in (None, "drop"):
        raise RestackError(f"--like {like!r}", hint="known: drop")
    place = _place(device)
    load = Workload(
        _kind(kind, task, models[0]),  # type: ignore[arg-type]
        batch,
        None if task is not None else length or 128,
        task,
        data,
        split,
        limit,
        max_length,
        precision,
        place,
        threads,
    )
    plans: Any = plan or []
    if like and not plan:
        plans = {model: _top_plans(model, stack) for model in models}
    subjects = label_plans(models, plans, stack)
    with output.count_progress("steps", steps(len(subjects), rounds, training=training)) as told:
        result = measure(subjects, load, rounds=rounds, training=training, progress=told)
    if json:
        compared = {"like_drop": _like_drop(result)} if like else {}
        output.as_json(result.to_json() | compared)
        return
    output.note(_workload(result))
    output.show(*((_drop_table(result),) if like else (_costs(result), _ratios(result))))


def _place(device: str) -> str:
    from restack.cli.loading import Loading

    return str(Loading(device).place())


def _kind(kind: str | None, task: str | None, model: str) -> str:
    from typing import get_args

    from restack.data import get_task
    from restack.data.tasks import Kind
    from restack.errors import RestackError

    if task is not None:
        own = get_task(task).kind
        if kind not in (None, own):
            raise RestackError(f"--kind {kind!r}: the task {task} is of the kind {own!r}")
        return own
    if kind is not None:
        if kind not in get_args(Kind):
            raise RestackError(f"--kind {kind!r}", hint=f"known: {', '.join(get_args(Kind))}")
        return kind
    from restack.anatomy.checkpoint import open_checkpoint

    names = " ".join(open_checkpoint(model).config.get("architectures") or ())
    causal = "ForCausalLM" in names or "LMHeadModel" in names
    return "lm" if causal else "mlm" if "ForMaskedLM" in names else "classification"


def _top_plans(model: str, stack: str | None) -> list[str]:
    """The drops of the paper: 2, 4 and 6 of 12 layers, 1, 2 and 3 of 6."""
    depth = _depth(model, stack)
    return [
        f"drop:top={count}" for count in dict.fromkeys(depth * i // 6 for i in (1, 2, 3)) if count
    ]


def _depth(model: str, stack: str | None) -> int:
    from restack.anatomy.checkpoint import open_checkpoint
    from restack.anatomy.checkpoints import anatomy

    return anatomy(open_checkpoint(model)).pick(stack).depth


def _workload(result: CostResult) -> str:
    load, facts = result.workload, result.costs[0].facts
    what = facts.data or f"made-up texts of {load.length} tokens"
    part = f", the first {load.limit:,} texts" if load.limit else ""
    return (
        f"{what}{part}, batches of {load.batch}, {load.kind} head, {load.precision} on "
        f"{load.device}; {result.rounds} rounds of {result.batches} batches in turn"
    )


def _label(subject: Subject) -> str:
    name = subject.model.rstrip("/").rpartition("/")[2] or subject.model
    return name if subject.plan is None else f"{name} {subject.plan}"


def _costs(result: CostResult) -> Table:
    from rich.table import Table

    table = Table(title="cost", title_justify="left")
    for name in ("", "layers", "parameters", "bytes", "FLOPs/token", "p50", "p95", "texts/s"):
        table.add_column(name, justify="right" if name else "left")
    for name in ("tokens/s", "peak", "update", "its peak"):
        table.add_column(name, justify="right")
    for cost in result.costs:
        facts, times, updates = cost.facts, cost.inference, cost.training
        table.add_row(
            _label(cost.subject),
            "-" if facts.depth is None else str(facts.depth),
            output.number(facts.parameters),
            output.size(facts.nbytes),
            output.number(facts.flops_per_token),
            _seconds(times.p50),
            _seconds(times.p95),
            f"{times.examples_per_second:,.1f}",
            f"{times.tokens_per_second:,.0f}",
            output.size(cost.inference_peak),
            "-" if updates is None else _seconds(updates.p50),
            "-" if cost.training_peak is None else output.size(cost.training_peak),
        )
    return table


def _ratios(result: CostResult) -> Table:
    from rich.table import Table

    title = f"ratios to the first; in brackets the {result.level:.0%} interval of the times"
    table = Table(title=title, title_justify="left")
    for name in ("", "parameters", "FLOPs/token", "peak", "inference", "update", "its peak"):
        table.add_column(name, justify="right" if name else "left")
    for cost in result.costs:
        sizes = result.sizes(cost)
        training = result.training(cost)
        table.add_row(
            _label(cost.subject),
            f"{sizes['parameters']:.2f}",
            f"{sizes['flops_per_token']:.2f}",
            f"{sizes['inference_peak']:.2f}",
            _spread(result.inference(cost)),
            "-" if training is None else _spread(training),
            f"{sizes['training_peak']:.2f}" if "training_peak" in sizes else "-",
        )
    return table


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def _spread(ratio: Ratio) -> str:
    return f"{ratio.value:.2f} [{ratio.low:.2f}-{ratio.high:.2f}]"


def _like_drop(result: CostResult) -> list[dict[str, Any]]:
    """The columns of table 3 of Sajjad et al., ours and theirs; each model beside its own drops."""
    from restack.studies.published import drop_sizes

    rows = []
    base: Cost | None = None
    for cost in result.costs:
        base = cost if cost.subject.plan is None else base
        assert base is not None
        dropped = (base.facts.depth or 0) - (cost.facts.depth or 0)
        # theirs of the same depth: BERT and XLNet have 12 layers, DistilBERT has 6
        theirs = [
            size
            for size in drop_sizes()
            if size.dropped == dropped
            and base.facts.depth == (6 if size.model == "DistilBERT" else 12)
        ]
        rows.append(
            {
                "model": _label(cost.subject),
                "dropped": dropped,
                "parameters": cost.facts.parameters,
                "finetune_speedup": _speedup(result, cost, base),
                "inference_time_saved": _saved(result, cost, base),
                "published": [
                    {
                        "model": size.model,
                        "parameters": size.parameters,
                        "finetune_speedup": size.finetune_speedup,
                        "inference_time_saved": size.inference_time_saved,
                    }
                    for size in theirs
                ],
            }
        )
    return rows


def _speedup(result: CostResult, cost: Cost, base: Cost) -> dict[str, float] | None:
    from restack.tune.cost import ratio

    if cost.training is None or base.training is None:
        return None
    return ratio(base.training.rounds, cost.training.rounds, level=result.level).to_json()


def _saved(result: CostResult, cost: Cost, base: Cost) -> dict[str, float]:
    from restack.tune.cost import ratio

    found = ratio(cost.inference.rounds, base.inference.rounds, level=result.level)
    return {"value": 1 - found.value, "low": 1 - found.high, "high": 1 - found.low}


def _drop_table(result: CostResult) -> Table:
    from rich.table import Table

    title = "as table 3 of Sajjad et al. (theirs: all of QQP's dev set, batches of 32)"
    table = Table(title=title, title_justify="left")
    for name in ("", "dropped", "parameters", "fine-tuning speed-up", "inference time"):
        table.add_column(name, justify="right" if name else "left")
    for row in _like_drop(result):
        speed, saved = row["finetune_speedup"], row["inference_time_saved"]
        untouched = row["dropped"] == 0
        table.add_row(
            row["model"],
            str(row["dropped"]),
            output.number(row["parameters"]),
            "-"
            if speed is None
            else f"{speed['value']:.2f} [{speed['low']:.2f}-{speed['high']:.2f}]",
            "-" if untouched else f"-{saved['value']:.0%} [{saved['low']:.0%}-{saved['high']:.0%}]",
        )
        for size in row["published"]:
            less = size["inference_time_saved"]
            table.add_row(
                f"  {size['model']}, published",
                str(row["dropped"]),
                output.number(size["parameters"]),
                f"{size['finetune_speedup']:.2f}",
                "-" if less is None else f"-{less:.0%}",
            )
    return table
