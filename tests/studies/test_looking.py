"""Kinds of trials that look into a model: they leave as soon as a sweep is stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from restack.studies import looking
from restack.sweep.kinds import Context, Stopped
from restack.sweep.trial import Data, Model, Trial

TEXTS = Data(source="demo/text", limit=4)
LABELLED = Data(train="train", validation=("validation",), size=64, subsample=0, limit=16)


@pytest.mark.parametrize(
    ("kind", "settings", "task", "data"),
    [
        ("lens", {}, None, TEXTS),
        ("plans", {"plans": ["0-11", "0-5"], "read": "tokens"}, None, TEXTS),
        ("score", {"measures": ["cls_cosine"]}, None, TEXTS),
        ("probe", {"trials": 3, "epochs": 1}, "demo/sentiment", LABELLED),
    ],
)
def test_a_look_hears_of_a_stop(
    tmp_path: Path, kind: str, settings: Mapping[str, Any], task: str | None, data: Data
) -> None:
    trial = Trial(
        kind=kind, model=Model("restack/demo-mlm"), task=task, data=data, settings=dict(settings)
    )
    with pytest.raises(Stopped):
        getattr(looking, kind)(Context(trial, tmp_path, stop=lambda: True))
