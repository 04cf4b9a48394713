"""What a run leaves: an ordinary model directory, with a card, scores, record and predictions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor, nn

from restack.anatomy.checkpoint import open_checkpoint
from restack.anatomy.shipped import local
from restack.plan import Plan
from restack.surgery import record
from restack.surgery.publish import publish
from restack.surgery.write import unwritable
from restack.tune.answers import answer_lines
from restack.tune.card import model_card
from restack.tune.checkpoints import METRICS
from restack.tune.journal import RUNS, finite
from restack.tune.mean_pool import MeanPool
from restack.tune.setup import Setup
from restack.tune.silence import silence
from restack.tune.tuned import Tuned

RESULTS = "tune.json"
PREDICTIONS = "predictions"


def publish_output(out: Path, work: Path, tuned: Tuned, setup: Setup) -> None:
    """Write the output, which appears as a whole, and remove the work directory."""
    with publish(out) as directory:
        try:
            save_model(tuned.model, directory)
        except SafetensorError as error:  # it wraps what the system says
            raise unwritable(directory, OSError(str(error))) from error
        setup.tokenizer.save_pretrained(directory)
        (directory / "README.md").write_text(model_card(tuned, setup, out.name), encoding="utf-8")
        (directory / RESULTS).write_text(_json(tuned.to_json()), encoding="utf-8")
        made = _record(tuned, setup, directory)
        if made is not None:
            (directory / record.RECORD).write_text(_json(made), encoding="utf-8")
        shutil.copyfile(work / METRICS, directory / METRICS)
        if (work / RUNS).is_dir():
            shutil.copytree(work / RUNS, directory / RUNS)
        for name, predictions in tuned.predictions.items():
            place = directory / PREDICTIONS / f"{name}.npz"
            predictions.save(place)
            lines = answer_lines(predictions, setup.validation[name].split)
            text = "".join(json.dumps(finite(line), ensure_ascii=False) + "\n" for line in lines)
            place.with_suffix(".jsonl").write_text(text, encoding="utf-8")
        for path in directory.glob("*.safetensors"):  # safetensors writes for its owner alone
            path.chmod((directory / RESULTS).stat().st_mode)
    shutil.rmtree(work, ignore_errors=True)


def save_model(model: nn.Module, directory: Path) -> None:
    """Write a model as transformers does; slots that are tied are written once each."""
    assert isinstance(model, MeanPool) or hasattr(model, "save_pretrained")
    body: Any = model.body if isinstance(model, MeanPool) else model
    options = {} if not _tied_layers(body) else {"state_dict": _apart(body)}
    with silence():
        model.save_pretrained(directory, **options)  # type: ignore[operator]


def _tied_layers(body: nn.Module) -> set[str]:
    """Tensors that share their storage with one of another layer, which no reader would tie."""
    from restack.anatomy.live import find_stacks

    seen: dict[int, str] = {}
    tied: set[str] = set()
    prefixes = tuple(f"{path}." for path in find_stacks(body))  # type: ignore[arg-type]
    for name, parameter in body.named_parameters(remove_duplicate=False):
        if name.startswith(prefixes) and seen.setdefault(id(parameter), name) != name:
            tied.add(name)
    return tied


def _apart(body: nn.Module) -> dict[str, Tensor]:
    tied = _tied_layers(body)
    return {n: t.clone() if n in tied else t for n, t in body.state_dict().items()}


def _record(tuned: Tuned, setup: Setup, directory: Path) -> dict[str, Any] | None:
    """The record that `restack edit` would have written, and that the weights were tuned since."""
    from restack import __version__

    stack = setup.loaded.stack
    if stack is None:
        return None
    written = open_checkpoint(str(directory))
    plan = setup.loaded.plan or Plan.identity(stack.depth)
    if Path(local(tuned.source)).is_dir():
        made = record.of_source(open_checkpoint(tuned.source), stack, plan)
    else:
        made = {
            "restack": __version__,
            "source": tuned.source,
            "fingerprint": "of weights in memory",
            "stack": stack.path,
            "plan": str(plan),
            "source_depth": plan.depth,
            "depth": len(plan),
        }
    if plan.has_fresh:
        made |= {"seed": tuned.recipe.seed, "init": setup.init}
    made["tuned"] = {
        "task": tuned.task,
        "train": tuned.train.to_json(),
        "steps": tuned.steps,
        "best_step": tuned.best_step,
        "metrics": tuned.metrics,
        "recipe": tuned.recipe.key,
    }
    tensors = [(t.name, t.dtype, t.shape) for t in written.tensors.values()]
    made["output"] = record.of_layout(written.config, tensors) | record.of_values(
        directory, written.tensors
    )
    return made


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(finite(value), indent=2) + "\n"
