"""The model card of a re-stacked checkpoint: what it was made from, above the card of its source.

Front matter is edited line by line, not read and written anew: YAML would turn `language: no` into
false and drop comments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from restack.anatomy.checkpoint import CARD, MODULES, Checkpoint
from restack.plan import Plan
from restack.plan.draw import draw

TAG = "restack"
# What the source's card says that is not true of the new model: results, and its own ancestor.
_STALE = ("model-index", "eval_results", "base_model", "base_model_relation")
_FRONT = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


def of(checkpoint: Checkpoint, plan: Plan, record: Mapping[str, Any]) -> str:
    """The whole card."""
    front, body = "", ""
    if CARD in checkpoint.other_files:
        text = checkpoint.path(CARD).read_bytes().decode("utf-8", errors="replace")
        front, body = _parted(text)
    told = _told(checkpoint, plan, record)
    if body.strip():
        told += "\nWhat follows is the card of the source; its results are not of this model.\n\n"
        told += body
    return f"---\n{_front_matter(front, checkpoint)}---\n\n{told}"


def _parted(text: str) -> tuple[str, str]:
    """The front matter without its rules, and the rest."""
    found = _FRONT.match(text)
    return (found[1], text[found.end() :].lstrip("\r\n")) if found else ("", text)


def _front_matter(old: str, checkpoint: Checkpoint) -> str:
    """The old front matter with base model and tag; a new one if the old is no YAML mapping."""
    import yaml

    try:
        values = yaml.safe_load(old) if old.strip() else {}
    except yaml.YAMLError:
        values = None
    if not isinstance(values, dict):
        old, values = "", {}
    tags = values.get("tags") or []
    tags = [str(tag) for tag in (tags if isinstance(tags, list) else [tags])]
    library = "sentence-transformers" if MODULES in checkpoint.other_files else "transformers"
    ours: dict[str, Any] = {}
    if "library_name" not in values:
        ours["library_name"] = library
    if ancestor := _base_model(checkpoint, values):
        ours["base_model"] = ancestor
    ours["tags"] = [*tags, *([] if TAG in tags else [TAG])]
    kept = _without(old, (*_STALE, "tags"))
    added = yaml.safe_dump(ours, sort_keys=False, allow_unicode=True)
    try:
        whole = yaml.safe_load(kept + added)
    except yaml.YAMLError:
        whole = None
    if isinstance(whole, dict) and not any(key in whole for key in _STALE if key not in ours):
        return kept + added
    # a layout that lines do not show, such as {license: mit}
    rest = {key: value for key, value in values.items() if key not in (*_STALE, "tags")}
    return yaml.safe_dump(rest | ours, sort_keys=False, allow_unicode=True)


def _without(front: str, keys: tuple[str, ...]) -> str:
    """The front matter without these keys and what belongs to them."""
    kept, inside = [], False
    for line in front.splitlines():
        if re.match(r"[^\s#-]", line):
            inside = re.match(r"([\"']?)([\w-]+)\1\s*:", line) is not None and any(
                re.match(rf"[\"']?{re.escape(key)}[\"']?\s*:", line) for key in keys
            )
        if not inside:
            kept.append(line)
    return "".join(f"{line}\n" for line in kept)


def _base_model(checkpoint: Checkpoint, front: Mapping[str, Any]) -> Any:
    """The Hub id of the source; of a directory, what its own card names as its origin."""
    return checkpoint.location if checkpoint.commit else front.get("base_model")


def _told(checkpoint: Checkpoint, plan: Plan, record: Mapping[str, Any]) -> str:
    source = _name(checkpoint)
    if checkpoint.commit:
        source = f"[{source}](https://huggingface.co/{source}) at commit `{checkpoint.commit}`"
    else:
        source = f"`{source}`"
    made = [
        f"- source: {source}",
        f"- stack: `{record['stack']}`",
        f"- plan: `{plan}` of {plan.depth} layers, which count from 0",
    ]
    if plan.has_fresh:
        made.append(f"- fresh weights: initialiser `{record['init']}`, seed {record['seed']}")
    if record.get("dtype"):
        made.append(f"- dtype: changed to {record['dtype']}")
    lines = [
        f"# {_name(checkpoint)}, re-stacked",
        "",
        f"Made with restack {record['restack']} from another model, by taking its layers in a new "
        "order. All other tensors are those of the source.",
        "",
        *made,
        "",
        "```text",
        draw(plan),
        "```",
        "",
        "`restack.json` holds the record; `restack verify . --against SOURCE` compares every byte.",
    ]
    return "\n".join(lines) + "\n"


def _name(checkpoint: Checkpoint) -> str:
    # a path says more of the machine than others need to know
    if checkpoint.commit:
        return checkpoint.location
    return Path(os.path.abspath(checkpoint.location)).name
