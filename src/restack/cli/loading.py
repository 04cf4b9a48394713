"""Models, tokenizers, texts and batches for commands, from what stands on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from restack.errors import CheckpointError, DataError, RestackError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from restack.data import Split, Texts
    from restack.data.tokens import Tokens

Data = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="SOURCE", help="A file, a directory with splits, or a Hub data set."
    ),
]
Texted = Annotated[list[str] | None, typer.Option("--text", help="A text; may be repeated.")]
Column = Annotated[
    str | None, typer.Option(help="The column of the texts; two names with a comma for pairs.")
]
SplitName = Annotated[str | None, typer.Option("--split", help="Which split (validation).")]
Limit = Annotated[int | None, typer.Option(min=1, help="Take the first so many texts.")]
MaxLength = Annotated[int | None, typer.Option(min=1, help="Cut texts to so many tokens.")]
BatchTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens in a batch, padding included (2048 on a CPU, else 16384)."),
]
Memory = Annotated[
    int | None,
    typer.Option(
        metavar="MB",
        min=1,
        help="Of plans: hold states of so many MB at once; larger batches run in pieces.",
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16, or auto (as stored).")]
Model = Annotated[str, typer.Argument(help="A directory, or the id of a model on the Hub.")]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
]

# Of a CPU the caches hold the states of some thousand tokens; beyond, it gets slower again.
_BATCH_TOKENS = {"cpu": 2048}
_BATCH_TOKENS_ELSEWHERE = 16384
_DTYPES = ("float32", "bfloat16", "float16", "auto")


@dataclass(frozen=True, slots=True)
class Inputs:
    """Texts as a model reads them, and what is to be said about them."""

    found: Texts | Split
    tokens: Tokens
    batches: list[Any]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def real(self) -> int:
        """The tokens that are not special."""
        return int((~self.tokens.special.astype(bool)).sum())

    def to_json(self) -> dict[str, Any]:
        """What was read, as plain data."""
        found = self.found
        return {
            "data": _name(found),
            "texts": len(found),
            "partial": found.partial,
            "cut": self.tokens.cut,
        }

    def __str__(self) -> str:
        found = self.found
        parts = [f"{_name(found)}: {len(found):,} {'text' if len(found) == 1 else 'texts'}"]
        parts += [found.partial] if found.partial else []
        if self.tokens.cut:
            parts.append(f"{self.tokens.cut:,} cut at {self.tokens.max_length:,} tokens")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Loading:
    """How models are loaded."""

    device: str = "auto"
    dtype: str = "float32"
    revision: str | None = None
    trust_remote_code: bool = False

    def model(self, location: str, kind: str | None = None) -> PreTrainedModel:
        """The model, in the class that its config names, or as `AutoModel...` of a kind."""
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        cls = _class_of(location, self, kind)
        common = {"revision": self.revision, "trust_remote_code": self.trust_remote_code}
        model = _loaded(
            location, lambda place: cls.from_pretrained(place, dtype=self._dtype, **common)
        )
        return model.to(self.place()).eval()

    def batch_tokens(self, wanted: int | None) -> int:
        """How many tokens a batch has: the wanted number, or what suits the device."""
        return wanted or _BATCH_TOKENS.get(self.place().type, _BATCH_TOKENS_ELSEWHERE)

    def inputs(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        found: Texts | Split,
        *,
        length: int | None,
        tokens: int | None,
    ) -> Inputs:
        """Texts in batches, as token ids that the model has embeddings for."""
        from restack.data.batches import batches
        from restack.data.tokens import length_limit, tokenize
        from restack.observe.heads import vocabulary

        limit = length_limit(model.config, tokenizer, length)
        ids = tokenize(tokenizer, found.texts, max_length=limit, vocab_size=vocabulary(model))
        # a tokenizer without padding gets token 0 behind the mask
        pad = 0 if ids.pad_id is None else None
        return Inputs(found, ids, list(batches(ids, self.batch_tokens(tokens), pad_id=pad)))

    def tokenizer(self, location: str) -> Any:
        """The tokenizer that lies beside the model."""
        from transformers import AutoTokenizer

        common = {"revision": self.revision, "trust_remote_code": self.trust_remote_code}
        found = _loaded(location, lambda place: AutoTokenizer.from_pretrained(place, **common))
        if _knows_no_word(found):
            raise CheckpointError(
                f"{location} has no tokenizer: its files lack a vocabulary",
                hint="save the tokenizer that the model was trained with beside it",
            )
        return found

    @property
    def _dtype(self) -> Any:
        import torch

        if self.dtype not in _DTYPES:
            raise RestackError(f"--dtype {self.dtype!r}", hint=f"say one of {', '.join(_DTYPES)}")
        return "auto" if self.dtype == "auto" else getattr(torch, self.dtype)

    def place(self) -> torch.device:
        """The device; the best one there is for `auto`."""
        import torch

        if self.device == "auto":
            has_mps = torch.backends.mps.is_available()
            return torch.device(
                "cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu"
            )
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise RestackError(
                f"--device {self.device!r} cannot be used: {str(error).partition('. ')[0]}",
                hint="leave it out, or say cpu",
            ) from error
        return torch.device(self.device)


def _name(found: Texts | Split) -> str:
    task = getattr(found, "task", None)
    if task is not None:
        return f"{task.name}/{found.name}"
    split = getattr(found, "split", None)
    return f"{found.name}/{split}" if split else found.name


def _class_of(location: str, loading: Loading, kind: str | None) -> Any:
    import transformers

    if kind is not None:
        return getattr(transformers, kind)
    config = _loaded(
        location,
        lambda place: transformers.AutoConfig.from_pretrained(
            place, revision=loading.revision, trust_remote_code=loading.trust_remote_code
        ),
    )
    names = getattr(config, "architectures", None) or []
    # code that comes with a model says as which of the Auto classes it is to be loaded
    for auto, place in (getattr(config, "auto_map", None) or {}).items():
        if loading.trust_remote_code and str(place).rpartition(".")[2] in names:
            return getattr(transformers, auto)
    found = (getattr(transformers, name, None) for name in names)
    return next((cls for cls in found if cls is not None), transformers.AutoModel)


def _knows_no_word(tokenizer: Any) -> bool:
    """Whether transformers made a tokenizer of nothing, which it does for BERT and many others.

    It has special tokens only, of T5 also its sentinels and the sign for a blank.
    """
    known = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
    return not [token for token in known if len(token) > 1 and "extra_id_" not in token]


def _loaded(location: str, load: Any) -> Any:
    """What transformers loads; what it raises becomes an error of ours."""
    from restack.anatomy.checkpoint import open_checkpoint
    from restack.anatomy.shipped import local

    try:
        return load(local(location))
    except RestackError:
        raise
    except Exception as error:
        open_checkpoint(location)  # says better what is wrong with the files, if they are wrong
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{location} cannot be loaded: {reason[:300]}") from error


def texts(
    text: list[str] | None,
    data: str | None,
    column: str | None = None,
    split: str | None = None,
    limit: int | None = None,
) -> Texts:
    """The texts of the command line."""
    from restack.data import load_texts

    if bool(text) == bool(data):
        raise DataError(
            "no texts are given" if not text else "--text and --data are both given",
            hint='say --text "..." (repeatable), or --data with a file, a directory or a data set',
        )
    return load_texts(text or str(data), column=column, split=split, limit=limit)


def in_bytes(memory: int | None) -> int | None:
    """What --memory says, in bytes."""
    return None if memory is None else memory * 10**6


def numbers(option: str, text: str) -> list[int]:
    """Whole numbers with commas between."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise RestackError(
            f"{option} {text!r} cannot be read", hint="write whole numbers: 1,2,4"
        ) from None
