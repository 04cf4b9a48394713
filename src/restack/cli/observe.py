"""Commands that look into a stack: lens, score, compare, probe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restack.cli import output
from restack.cli.loading import (
    BatchTokens,
    Column,
    Data,
    Device,
    Dtype,
    Limit,
    Loading,
    MaxLength,
    SplitName,
    Texted,
    Trust,
    in_batches,
    texts,
    tokenized,
)
from restack.cli.main import app
from restack.cli.surgery import PLAN_HELP, Json, Revision, StackOption
from restack.errors import RestackError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from restack.observe.heads import Head
    from restack.observe.lens import LensResult

Model = Annotated[str, typer.Argument(help="A directory, or the id of a model on the Hub.")]


@app.command()
def lens(
    model: Model,
    text: Texted = None,
    data: Data = None,
    column: Column = None,
    split: SplitName = None,
    limit: Limit = None,
    plan: Annotated[
        list[str] | None, typer.Option("--plan", metavar="PLAN", help=PLAN_HELP + " Repeatable.")
    ] = None,
    curve: Annotated[
        list[str] | None,
        typer.Option(
            "--curve",
            metavar="KIND[:DEPTH]",
            help="Many plans at once: duplicate, duplicate-last, duplicate-one, repeat:50, drop, "
            "drop-bottom, drop-even, drop-odd, drop-symmetric, drop-one. Repeatable.",
        ),
    ] = None,
    decode: Annotated[
        bool, typer.Option("--decode", help="Show what each layer decodes the texts to.")
    ] = False,
    head: Annotated[
        str | None, typer.Option("--head", metavar="FROM", help="Use the head of this checkpoint.")
    ] = None,
    fit_head: Annotated[
        bool, typer.Option("--fit-head", help="Fit a head on the texts, the body frozen.")
    ] = False,
    tuned: Annotated[
        Path | None, typer.Option("--tuned", help="Read through this tuned lens too.")
    ] = None,
    tune: Annotated[
        Path | None, typer.Option("--tune", help="Train a tuned lens on the texts, save it here.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of fresh slots and of fitting.")] = 0,
    stack: StackOption = None,
    max_length: MaxLength = None,
    batch_tokens: BatchTokens = 8192,
    device: Device = "auto",
    dtype: Dtype = "float32",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    json: Json = False,
) -> None:
    """What every layer already knows: its states through the model's own head, untrained."""
    from dataclasses import replace

    from restack.observe.lens import lens as run

    loading = Loading(device, dtype, revision, trust_remote_code)
    found = texts(text, data, column, split, limit)
    body = loading.model(model)
    tokenizer = loading.tokenizer(model)
    batches = in_batches(
        tokens := tokenized(body, tokenizer, found.texts, max_length), batch_tokens
    )
    real = int((~tokens.special.astype(bool)).sum())
    used = _head(body, batches, loading, head, fit_head, stack, seed)
    through = _tuned(body, batches, used, tuned, tune, stack, seed, real)
    with output.count_progress("tokens", real) as advance:
        result = run(body, batches, stack=stack, head=used, tuned=through, progress=advance)
    result = replace(result, model=model)
    if plan or curve:
        plans, effort = _plans(body, batches, used, plan or [], curve or [], stack, seed)
        result = replace(result, plans=plans)
        output.note(effort)
    shown = (
        _decoded(body, tokenizer, found.texts, used, through, stack, max_length) if decode else []
    )
    if json:
        output.as_json(
            result.to_json()
            | {"texts": len(found), "data": found.name, "partial": found.partial}
            | ({"decoded": [d.to_json() for d in shown]} if decode else {})
        )
        return
    output.note(
        f"{found.name}: {len(found)} texts" + (f" ({found.partial})" if found.partial else "")
    )
    output.show(*_lens_tables(result))
    if shown:
        from restack.observe.decode import table

        output.show(*(table(item) for item in shown))


def _head(
    body: PreTrainedModel,
    batches: list[Any],
    loading: Loading,
    source: str | None,
    fit: bool,
    stack: str | None,
    seed: int,
) -> Head | None:
    if source and fit:
        raise RestackError("--head and --fit-head are both given", hint="choose one")
    if source:
        from restack.observe.heads import graft_head

        return graft_head(body, loading.model(source), stack=stack)
    if fit:
        from restack.observe.fitted_head import fit_head

        with output.count_progress("fitting a head", None) as advance:
            return fit_head(
                body, batches, stack=stack, seed=seed, progress=lambda n, loss: advance(n)
            )
    return None


def _tuned(
    body: PreTrainedModel,
    batches: list[Any],
    head: Head | None,
    given: Path | None,
    make: Path | None,
    stack: str | None,
    seed: int,
    tokens: int,
) -> Any:
    from restack.observe.heads import own_head
    from restack.observe.tuned import load_tuned, save_tuned, tune_lens

    if given and make:
        raise RestackError("--tuned and --tune are both given", hint="choose one")
    if given:
        return load_tuned(given, head or own_head(body, stack=stack))
    if make:
        epochs = 3
        with output.count_progress("tuning the lens", tokens * epochs) as advance:
            made = tune_lens(
                body,
                batches,
                stack=stack,
                head=head,
                epochs=epochs,
                seed=seed,
                progress=lambda n, loss: advance(n),
            )
        save_tuned(made, make)
        return made
    return None


def _plans(
    body: PreTrainedModel,
    batches: list[Any],
    head: Head | None,
    plans: list[str],
    curves: list[str],
    stack: str | None,
    seed: int,
) -> tuple[Any, str]:
    """Accuracies of all plans by one virtual evaluation, and what it took."""
    from restack.anatomy import models
    from restack.observe.curves import plan_accuracy, plan_curve
    from restack.plan import Plan

    depth = models.pick(body, stack).depth
    wanted = [Plan.parse(text, depth) for text in plans]
    for kind in curves:
        wanted += plan_curve(kind, depth)
    rows = sum(len(batch["input_ids"]) for batch in batches)
    with output.count_progress("plans x texts", rows * len(wanted)) as advance:
        run = plan_accuracy(
            body, wanted, batches, stack=stack, head=head, seed=seed, progress=advance
        )
    separate = sum(map(len, wanted))
    effort = (
        f"{len(wanted)} plans: {run.layer_applications} layer applications, {run.edges} for each "
        f"batch (one by one {separate})"
    )
    if run.fallback:
        effort += f"; rebuilt for every plan: {run.fallback}"
    return run.plans, effort


def _decoded(
    body: PreTrainedModel,
    tokenizer: Any,
    found: Any,
    head: Head | None,
    tuned: Any,
    stack: str | None,
    max_length: int | None,
) -> list[Any]:
    from restack.observe.decode import decode

    most = 20
    if len(found) > most:
        output.note(f"--decode shows the first {most} of {len(found)} texts")
    return decode(
        body,
        tokenizer,
        list(found)[:most],
        stack=stack,
        head=head,
        tuned=tuned,
        max_length=max_length,
    )


def _lens_tables(result: LensResult) -> list[Any]:
    from rich.table import Table

    which = {"same": "the token at its place", "next": "the next token"}[result.reads]
    lines: list[Any] = [
        f"{result.model}: {result.tokens:,} tokens, {result.head} head, asked for {which}"
    ]
    table = Table("layer", box=None)
    names = ("accuracy", "top 5", "mean rank", "log-prob", "as the last", "behind [CLS]")
    for name in names + (("tuned accuracy",) if result.tuned else ()):
        table.add_column(name, justify="right")
    table.add_column("")
    for i, row in enumerate(result.layers):
        first = result.after_first[i]
        cells = [
            f"{row.accuracy:.2%}",
            f"{row.top5:.2%}",
            f"{row.rank:,.1f}",
            f"{row.logprob:.3f}",
            f"{row.agreement:.2%}",
            "" if first is None else f"{first:.2%}",
        ]
        if result.tuned:
            cells.append(f"{result.tuned.layers[i].accuracy:.2%}")
        label = "0 (in)" if i == 0 else str(i)
        table.add_row(label, *cells, "█" * round(20 * row.accuracy))
    lines.append(table)
    if result.plans:
        curve = Table("plan", box=None)
        curve.add_column("depth", justify="right")
        curve.add_column("accuracy", justify="right")
        curve.add_column("")
        for plan in result.plans:
            bar = "█" * round(20 * plan.accuracy)
            curve.add_row(str(plan.plan), str(len(plan.plan)), f"{plan.accuracy:.2%}", bar)
        lines += ["", curve]
    return lines


@app.command()
def score(
    model: Model,
    text: Texted = None,
    data: Data = None,
    column: Column = None,
    split: SplitName = None,
    limit: Limit = None,
    task: Annotated[
        str | None, typer.Option(help="Score by the loss of this task; --data holds its splits.")
    ] = None,
    measures: Annotated[
        str | None, typer.Option(help="Only these, with commas between; all that can be if none.")
    ] = None,
    blocks: Annotated[
        str, typer.Option(help="Also blocks of so many consecutive layers: 2,4.")
    ] = "1",
    by: Annotated[
        str | None, typer.Option(help="The measure by which --drop chooses (cls_cosine).")
    ] = None,
    drop: Annotated[
        int | None, typer.Option(help="Give the plan without this many layers.")
    ] = None,
    drop_above: Annotated[
        float | None, typer.Option(help="Give the plan without layers above this value.")
    ] = None,
    drop_below: Annotated[
        float | None, typer.Option(help="Give the plan without layers below this value.")
    ] = None,
    drop_block: Annotated[
        int | None, typer.Option(help="Give the plan without the best block of this length.")
    ] = None,
    stack: StackOption = None,
    max_length: MaxLength = None,
    batch_tokens: BatchTokens = 8192,
    device: Device = "auto",
    dtype: Dtype = "float32",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    json: Json = False,
) -> None:
    """How much each layer matters, by many measures at once; and the plan that follows."""
    from dataclasses import replace

    from restack.observe.score import plan_from
    from restack.observe.score import score as run

    loading = Loading(device, dtype, revision, trust_remote_code)
    lengths = _numbers("--blocks", blocks) + ([drop_block] if drop_block else [])
    chosen_task, labels = None, None
    if task:
        from restack.data import get_task, load_split

        chosen_task = get_task(task)
        rows = load_split(chosen_task, split or "validation", data, limit=limit)
        found, labels, name = rows.texts, rows.labels, str(rows)
    else:
        given = texts(text, data, column, split, limit)
        found, name = given.texts, given.name + (f" ({given.partial})" if given.partial else "")
    body, tokenizer = loading.model(model), loading.tokenizer(model)
    batches = in_batches(tokenized(body, tokenizer, found, max_length), batch_tokens)
    with output.stage_progress() as told:
        result = run(
            body,
            batches,
            stack=stack,
            blocks=sorted(set(lengths)),
            measures=measures.split(",") if measures else None,
            task=chosen_task,
            labels=labels,
            progress=told,
        )
    result = replace(result, model=model)
    choices = {"above": drop_above, "below": drop_below, "count": drop, "block": drop_block}
    wanted: dict[str, Any] = {key: value for key, value in choices.items() if value is not None}
    measure = by or ("angular_distance" if drop_block else "cls_cosine")
    plan = plan_from(result, measure, **wanted) if wanted else None
    if json:
        output.as_json(result.to_json() | {"data": name, "plan": plan and str(plan)})
        return
    output.note(name)
    output.show(result)
    if plan:
        output.show("", f"by {measure}:", plan)


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise RestackError(f"{option} {text!r}", hint="write numbers: 1,2,4") from None


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="The first model, such as pretrained.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The second one, such as fine-tuned.")],
    text: Texted = None,
    data: Data = None,
    column: Column = None,
    split: SplitName = None,
    limit: Limit = None,
    plan: Annotated[
        str | None, typer.Option("--plan", help="The plan by which B was made of A.")
    ] = None,
    stack: StackOption = None,
    max_length: MaxLength = None,
    batch_tokens: BatchTokens = 8192,
    device: Device = "auto",
    dtype: Dtype = "float32",
    trust_remote_code: Trust = False,
    json: Json = False,
) -> None:
    """How alike two models of one family are, layer by layer: states and weights."""
    from dataclasses import replace

    from restack.observe.similarity import compare as run

    loading = Loading(device, dtype, None, trust_remote_code)
    found = texts(text, data, column, split, limit)
    one, two = loading.model(a), loading.model(b)
    tokenizers = loading.tokenizer(a), loading.tokenizer(b)
    batches = in_batches(tokenized(one, tokenizers[0], found.texts, max_length), batch_tokens)
    with output.count_progress("texts", len(found)) as advance:
        result = run(
            one,
            two,
            batches,
            stack=stack,
            plan=plan or _recorded_plan(b),
            tokenizers=tokenizers,
            progress=advance,
        )
    result = replace(result, a=a, b=b)
    if json:
        output.as_json(result.to_json() | {"data": found.name, "partial": found.partial})
    else:
        output.show(result)


def _recorded_plan(location: str) -> str | None:
    """The plan that the record of a re-stacked checkpoint tells of."""
    from restack.anatomy.checkpoint import open_checkpoint
    from restack.surgery.disk import read_record

    if not Path(location).is_dir():
        return None
    record = read_record(open_checkpoint(location))
    return str(record["plan"]) if record and record.get("plan") else None


@app.command()
def probe(
    model: Model,
    task: Annotated[str, typer.Option(help="sst2, cola, qnli, squad_answerable, or a file.")],
    data: Data = None,
    train_split: Annotated[str, typer.Option(help="Where the readers are trained.")] = "train",
    split: Annotated[str, typer.Option("--split", help="Where they are scored.")] = "validation",
    limit: Annotated[
        int | None, typer.Option(min=1, help="A random draw of so many training examples.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Draws of examples for each layer.")] = 8,
    sizes: Annotated[
        str | None, typer.Option(help="Examples of a trial, with commas between several sizes.")
    ] = None,
    layers: Annotated[str | None, typer.Option(help="Only these: 0,6,12 (0: embeddings).")] = None,
    pooling: Annotated[str, typer.Option(help="mean, cls or last.")] = "mean",
    solver: Annotated[
        str, typer.Option(help="adam (stops early) or exact (to the optimum).")
    ] = "adam",
    epochs: Annotated[int, typer.Option(min=1, help="At most so many.")] = 40,
    rate: Annotated[float, typer.Option(help="Learning rate of adam.")] = 1e-3,
    batch_size: Annotated[int, typer.Option(min=1, help="Of adam.")] = 32,
    standardise: Annotated[bool, typer.Option("--standardise", help="Scale the features.")] = False,
    also_random: Annotated[
        str | None,
        typer.Option(
            metavar="model|layers", help="Probe a control with fresh weights: all, or its layers."
        ),
    ] = None,
    plan: Annotated[str | None, typer.Option("--plan", metavar="PLAN", help=PLAN_HELP)] = None,
    seed: int = 0,
    stack: StackOption = None,
    max_length: MaxLength = None,
    batch_tokens: BatchTokens = 8192,
    device: Device = "auto",
    dtype: Dtype = "float32",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    json: Json = False,
) -> None:
    """What a linear reader finds in each frozen layer: all layers and trials from one pass."""
    from dataclasses import replace

    from restack.data import Task, check_classes, get_task, load_split
    from restack.observe.linear_base import Settings
    from restack.observe.probe import probe as run
    from restack.surgery import restack

    if also_random not in (None, "model", "layers"):
        raise RestackError(f"--also-random {also_random!r}", hint="say model or layers")
    loading = Loading(device, dtype, revision, trust_remote_code)
    chosen = Task.from_file(task) if Path(task).exists() else get_task(task)
    where = data or (task if Path(task).exists() else None)
    train = load_split(chosen, train_split, where, limit=limit, seed=seed if limit else None)
    scored = load_split(chosen, split, where)
    check_classes(train)
    body, tokenizer = loading.model(model), loading.tokenizer(model)
    if plan:
        body = restack(body, plan, stack=stack, seed=seed)
    settings = Settings(
        solver=solver,  # type: ignore[arg-type]
        standardise=standardise,
        seed=seed,
        epochs=epochs,
        rate=rate,
        batch_size=batch_size,
    )
    with output.stage_progress() as told:
        result = run(
            body,
            tokenizer,
            train,
            scored,
            layers=_numbers("--layers", layers) if layers else None,
            trials=trials,
            sizes=_numbers("--sizes", sizes) if sizes else None,
            settings=settings,
            also_random=also_random or False,  # type: ignore[arg-type]
            pooling=pooling,  # type: ignore[arg-type]
            stack=stack,
            max_length=max_length,
            batch_tokens=batch_tokens,
            progress=told,
        )
    result = replace(result, model=model if not plan else f"{model} ({plan})")
    if json:
        output.as_json(result.to_json())
    else:
        output.show(*_probe_tables(result))


def _probe_tables(result: Any) -> list[Any]:
    from rich.table import Table

    table = Table("layer", box=None)
    for name in ("examples", result.metric, "95% interval", "trials"):
        table.add_column(name, justify="right")
    if result.control:
        table.add_column(f"fresh {result.control}", justify="right")
    table.add_column("")
    controls = {(row.layer, row.size): row for row in result.control_layers}
    for row in result.layers:
        low, high = row.mean.low, row.mean.high
        spread = "fewer than 3" if low is None else f"{low:.3f} .. {high:.3f}"
        cells = [f"{row.size:,}", f"{row.mean.mean:.4f}", spread, str(len(row.scores))]
        if result.control:
            cells.append(f"{controls[row.layer, row.size].mean.mean:.4f}")
        label = "0 (in)" if row.layer == 0 else str(row.layer)
        table.add_row(label, *cells, "█" * round(20 * max(0.0, row.mean.mean)))
    base = result.baseline[result.metric]
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in result.seconds.items())
    return [
        f"{result.model}, {result.task}: trained on {result.train}, scored on {result.validation}",
        f"one answer for all would score {base:.4f}",
        table,
        f"{result.layer_applications:,} layer applications; {seconds}",
    ]
