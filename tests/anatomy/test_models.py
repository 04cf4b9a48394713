"""Finding stacks in models and checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn
from transformers import BertConfig, BertModel, PreTrainedModel

from restack.anatomy import models
from restack.anatomy.anatomy import summary
from restack.anatomy.checkpoint import open_checkpoint
from restack.anatomy.checkpoints import anatomy
from restack.errors import StackError
from tests.families import FAMILIES


@pytest.mark.parametrize("name", list(FAMILIES))
def test_model_and_checkpoint_agree(name: str, tmp_path: Path) -> None:
    model = FAMILIES[name].build()
    model.save_pretrained(tmp_path)
    ours, theirs = models.anatomy(model), anatomy(open_checkpoint(tmp_path))
    assert [s.depth for s in ours.stacks] == [s.depth for s in theirs.stacks]
    for a, b in zip(ours.stacks, theirs.stacks, strict=True):
        assert a.kinds == b.kinds
        assert sum(map(a.parameters, range(len(a.layers)))) == sum(
            map(b.parameters, range(len(b.layers)))
        )
    assert {s.path for s in ours.stacks} >= set(FAMILIES[name].stacks) - {"albert_layer_groups"}


def test_summary_of_shared_layers() -> None:
    found = models.anatomy(FAMILIES["albert"].build())
    seen = summary(found.stacks[0], found.config)
    assert (seen["depth"], seen["shared_groups"]) == (5, 1)


def test_kinds_of_layers() -> None:
    (stack,) = models.anatomy(FAMILIES["deepseek_v3"].build()).stacks
    assert stack.kinds == (0, 0, 1, 1, 1)


def test_a_class_stands_for_its_default_config() -> None:
    found = models.anatomy(BertModel)
    (stack,) = found.stacks
    assert (stack.path, stack.depth, found.location) == ("encoder.layer", 12, "BertModel")


def test_part_of_a_path_picks_a_stack() -> None:
    found = models.anatomy(FAMILIES["bart"].build())
    assert found.pick("decoder").path == "model.decoder.layers"
    with pytest.raises(StackError, match="several stacks fit"):
        found.pick("layers")
    with pytest.raises(StackError, match="no stack fits"):
        found.pick("vision")


def test_not_a_transformer() -> None:
    class Plain(PreTrainedModel):
        config_class = BertConfig

        def __init__(self, config: BertConfig) -> None:
            super().__init__(config)
            self.towers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
            self.post_init()

    with pytest.raises(StackError, match=r"towers \(2\)|towers"):
        models.pick(Plain(BertConfig()))


def test_not_a_transformers_model() -> None:
    with pytest.raises(StackError, match="Linear"):
        models.anatomy(nn.Linear(2, 2))  # type: ignore[arg-type]


def test_incomplete_checkpoint_is_named(tmp_path: Path) -> None:
    BertModel(BertConfig(**FAMILIES["bert"].config)).save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(
        text.replace('"num_hidden_layers": 5', '"num_hidden_layers": 6')
    )
    with pytest.raises(StackError, match=r"says 6 layers.*encoder\.layer\.5\."):
        anatomy(open_checkpoint(tmp_path))
