"""Texts to run through a model, from the command line, a file, a directory or the Hub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from restack.data import language
from restack.data.cache import fingerprint
from restack.data.tables import (
    READERS,
    Table,
    hub_name,
    made_table,
    read_hub,
    read_table,
    split_files,
)
from restack.errors import DataError

Text = str | tuple[str, str]

MADE = {f"demo/{name}": name for name in language.MADE}
"""Texts of the demo language, by the names under which they are asked for."""
_HUB_NAME = re.compile(r"([\w.-]+(?:/[\w.-]+)?)(?::([\w.-]+))?")


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts or pairs of texts, with where they are from and a hash of what they are."""

    texts: Sequence[Text]
    name: str
    split: str | None
    fingerprint: str
    partial: str | None = None
    """What part of the source these are, where they are not all of it."""

    def __len__(self) -> int:
        return len(self.texts)


def load_texts(
    source: str | Path | Sequence[str],
    *,
    column: str | tuple[str, str] | None = None,
    split: str | None = None,
    limit: int | None = None,
) -> Texts:
    """Load texts from `source`, which is one of

    - a list of texts, as given on a command line,
    - a file (parquet, JSON Lines, CSV, or plain text with a text a line),
    - a directory with `<split>.parquet` or the like,
    - a data set of the Hub: `name` or `name:config`,
    - the demo language: `demo/text`, or `demo/sentiment` and the other demo tasks.

    `column` may be left out where there is one column of text or one named `text`; two names,
    as a tuple or with a comma between them, give pairs. `split` is `validation` if not given.
    Texts without a visible character are left out. `limit` takes the first so many.
    """
    if not isinstance(source, str | Path):
        if column is not None or split is not None:
            raise DataError("texts that are given directly have no column and no split")
        table, name, split = Table("the given texts", {"text": list(source)}), "texts", None
        if not len(table):
            raise DataError("no text was given")
    else:
        table, name, split = _find(source, split)
    columns = choose_columns(table, column)
    values = [table.strings(name) for name in columns]
    texts: list[Text] = list(values[0] if len(columns) == 1 else zip(*values, strict=True))
    return _texts(texts, table.where, name, split, limit)


def _texts(texts: list[Text], where: str, name: str, split: str | None, limit: int | None) -> Texts:
    kept = [text for text in texts if "".join(text).strip()]
    if not kept:
        raise DataError(f"{where}: all {len(texts):,} texts are empty")
    notes = []
    if len(kept) < len(texts):
        notes.append(f"{len(texts) - len(kept):,} empty texts left out")
    if limit is not None and limit < 1:
        raise DataError(f"a limit of {limit} leaves no text", hint="Give a limit of 1 or more.")
    if limit is not None and limit < len(kept):
        notes.append(f"the first {limit:,} of {len(kept):,} texts")
        kept = kept[:limit]
    return Texts(tuple(kept), name, split, fingerprint(kept), ", ".join(notes) or None)


def choose_columns(table: Table, wanted: str | Sequence[str] | None) -> tuple[str, ...]:
    """The one or two columns that hold the texts: the wanted ones, or the only possible one."""
    if wanted is None:
        found = table.text_columns()
        if "text" in found:
            return ("text",)
        if len(found) == 1:
            return (found[0],)
        raise DataError(
            f"{table.where}: which column holds the texts? "
            f"Columns of text: {', '.join(found) or 'none'}; all: {', '.join(table.columns)}",
            hint="Name one column, or two for pairs.",
        )
    if isinstance(wanted, str):
        wanted = (wanted,) if wanted in table.columns else tuple(wanted.split(","))
    if not 1 <= len(wanted) <= 2:
        raise DataError(f"one or two columns of text are expected, not {len(wanted)}")
    return tuple(wanted)


def _find(source: str | Path, split: str | None) -> tuple[Table, str, str | None]:
    """Find out what `source` is; give its table, name and split."""
    path = Path(source).expanduser()
    if path.is_dir():
        name, file = pick_split(path, split)
        return read_table(file), path.resolve().name, name
    if path.is_file() or path.suffix.lower() in READERS:
        if split is not None and split != path.stem:
            raise DataError(
                f"{path} is one file; it has no split {split!r}",
                hint="Leave the split out, or name the directory.",
            )
        return read_table(path), path.name, None
    named = _HUB_NAME.fullmatch(str(source))
    if named is None:
        raise DataError(
            f"{source}: there is no such file or directory, and it is no name of a data set",
            hint="Expected a file, a directory with <split>.parquet, or a Hub name[:config].",
        )
    split = split or "validation"
    if named[1] in MADE:
        return made_table(MADE[named[1]], split), str(source), split
    return read_hub(named[1], named[2], split), hub_name(named[1], named[2]), split


def pick_split(directory: Path, split: str | None) -> tuple[str, Path]:
    """The wanted split of a directory and its file; `validation`, or the only one, if None."""
    files = split_files(directory)
    wanted = split or (next(iter(files)) if len(files) == 1 else "validation")
    if wanted not in files:
        raise DataError(
            f"{directory} has no split {wanted!r}", hint=f"Its splits are: {', '.join(files)}."
        )
    return wanted, files[wanted]
