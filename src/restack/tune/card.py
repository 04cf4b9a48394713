"""The model card: what the model was tuned on, how well it does, and how it was made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from restack.anatomy.shipped import local
from restack.data.tasks import Kind, Task
from restack.tune.healing import recovery_lines
from restack.tune.recipe import Recipe
from restack.tune.tuned import SplitNote, Tuned

if TYPE_CHECKING:
    from restack.tune.setup import Setup

_PIPELINES: dict[Kind, str] = {
    "classification": "text-classification",
    "regression": "text-classification",
    "multilabel": "text-classification",
    "span": "question-answering",
    "lm": "text-generation",
    "mlm": "fill-mask",
}
_METRICS = {
    "f1_macro": "f1",
    "f1_micro": "f1",
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "exact": "exact_match",
    "best_exact": "exact_match",
    "best_f1": "f1",
}
"""What the Hub calls our metrics, where it has another name."""
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def model_card(tuned: Tuned, setup: Setup, name: str) -> str:
    """The README.md of a tuned model, with the front matter that the Hub reads."""
    from huggingface_hub import ModelCardData

    task = setup.train.split.task
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=_PIPELINES[task.kind],
        base_model=tuned.source if _on_hub(tuned.source) else None,
        datasets=[task.hub] if task.hub else None,
        metrics=list(dict.fromkeys(_METRICS.get(m, m) for m in task.metrics if m != "combined")),
        tags=["restack"],
        model_name=name if tuned.metrics else None,
        eval_results=_results(tuned, task) or None,
    )
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n".join(_body(tuned, setup, name, task)) + "\n"


def _on_hub(source: str) -> bool:
    from pathlib import Path

    shipped = local(source) != source
    return bool(_HUB_NAME.fullmatch(source)) and not shipped and not Path(source).exists()


def _results(tuned: Tuned, task: Task) -> list[Any]:
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type=_PIPELINES[task.kind],
            dataset_type=task.hub or task.name,
            dataset_name=_data_name(tuned.validation[split]),
            dataset_config=task.config,
            dataset_split=split,
            metric_type=_METRICS.get(metric, metric),
            metric_name=metric,
            metric_value=value,
        )
        for split, found in tuned.metrics.items()
        for metric, value in found.items()
        if metric in task.metrics
    ]


def _data_name(note: SplitNote) -> str:
    return f"{note.task} ({note.partial})" if note.partial else note.task


def _body(tuned: Tuned, setup: Setup, name: str, task: Task) -> Iterator[str]:
    yield f"# {name}"
    yield ""
    yield f"`{tuned.source}`, tuned on {task.name} with restack."
    yield ""
    if setup.loaded.plan is not None:
        yield f"Its layers were re-stacked before: {tuned.source_depth} -> {tuned.depth} layers,"
        yield f"plan `{tuned.plan}` (layers count from 0)."
        yield ""
    yield "## Scores"
    yield ""
    if tuned.metrics:
        names = list(dict.fromkeys(m for found in tuned.metrics.values() for m in found))
        yield f"| split | {' | '.join(names)} |"
        yield f"|---|{'---:|' * len(names)}"
        for split, found in tuned.metrics.items():
            cells = (f"{found[m]:.4f}" if m in found else "" for m in names)
            yield f"| {split} | {' | '.join(cells)} |"
        yield ""
        yield f"From the weights of step {tuned.best_step} of {tuned.steps}."
    else:
        yield "The model was not evaluated."
    yield ""
    if regained := recovery_lines(tuned):
        yield "## What came back"
        yield ""
        yield from regained
        yield ""
        yield "The part regained is of the way from before the training to the teacher."
        yield ""
    yield "## Data"
    yield ""
    yield f"- trained on {tuned.train}"
    for note in tuned.validation.values():
        yield f"- scored on {note}"
    yield ""
    if task.labels:
        yield f"Labels: {', '.join(task.labels)}."
        yield ""
    yield from _making(tuned)
    yield "## Use"
    yield ""
    yield "```python"
    yield from _use(setup, name)
    yield "```"
    yield ""
    yield "`tune.json` holds all numbers and settings, `metrics.jsonl` those of every step,"
    yield "`predictions/` what the model answered: outputs (.npz), and labels or texts (.jsonl)."


def _making(tuned: Tuned) -> Iterator[str]:
    yield "## How it was made"
    yield ""
    yield f"- parameters: {tuned.parameters:,}, of them trained {tuned.trained:,}"
    for note in tuned.notes:
        yield f"- {note}"
    yield f"- settings: {settings(tuned.recipe)}"
    yield ""


def settings(recipe: Recipe) -> str:
    """The settings of a recipe: the usual ones, and those that are not the default."""
    always = ("seed", "epochs", "batch_size", "rate", "precision", "head")
    default, own = asdict(Recipe()), asdict(recipe)
    chosen = [n for n in own if (n in always and own[n] is not None) or own[n] != default[n]]
    if recipe.steps is not None:
        chosen.remove("epochs")
    return ", ".join(f"{name} {own[name]}" for name in chosen)


def _use(setup: Setup, name: str) -> Iterator[str]:
    from restack.tune.heads import CLASSES
    from restack.tune.mean_pool import MeanPool

    if isinstance(setup.loaded.model, MeanPool):
        yield "from pathlib import Path"
        yield "from restack.tune.mean_pool import load_mean_pool"
        yield ""
        yield f'model = load_mean_pool(Path("{name}"))'
        return
    cls = CLASSES[setup.train.split.task.kind]
    yield f"from transformers import AutoTokenizer, {cls}"
    yield ""
    yield f'tokenizer = AutoTokenizer.from_pretrained("{name}")'
    yield f'model = {cls}.from_pretrained("{name}")'
