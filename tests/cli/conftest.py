"""The command line in this process, and tiny models that lie on disk with their tokenizers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from restack.cli import main
from tests.families import BERT, FAMILIES, Family
from tests.observe.reviews import tokenizer


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended, and what it said where."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code < 2, self.err
        return json.loads(self.out)


Command = Callable[..., Ran]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs `restack` with arguments; a traceback would be an error of the test."""
    monkeypatch.setenv("RESTACK_DEBUG", "1")

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["restack", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        code = ended.value.code
        return Ran(code if isinstance(code, int) else 0, said.out, said.err)

    return run


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A masked and a causal model, a body without a head, and one of a smaller vocabulary."""
    where = tmp_path_factory.mktemp("models")
    made = {
        "bert": FAMILIES["bert"],
        "llama": FAMILIES["llama"],
        "body": Family("bert", "BertModel", BERT, ()),
        "short": Family("bert", "BertForMaskedLM", {**BERT, "vocab_size": 20}, ()),
    }
    for name, family in made.items():
        family.build().save_pretrained(where / name)
        tokenizer().save_pretrained(where / name)
    return {name: where / name for name in made}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESTACK_CACHE", str(tmp_path_factory.mktemp("cache")))
