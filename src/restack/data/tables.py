"""Columns out of a parquet, JSON Lines, CSV or text file, or out of a data set of the Hub."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from restack.errors import DataError


@dataclass(frozen=True, slots=True)
class Table:
    """Named columns of equal length, each a list or an Arrow column; `where` is for messages."""

    where: str
    columns: Mapping[str, Any]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def values(self, name: str) -> list[Any]:
        """One column as Python values."""
        if name not in self.columns:
            raise DataError(
                f"{self.where} has no column {name!r}",
                hint=f"Its columns are: {', '.join(self.columns)}.",
            )
        column = self.columns[name]
        if isinstance(column, list):
            return column
        values: list[Any] = column.to_pylist()
        if str(column.type) == "float":  # 3.8 is kept as 3.799999952: seven digits are meant
            return [None if v is None else float(f"{v:.7g}") for v in values]
        return values

    def strings(self, name: str) -> list[str]:
        """One column, of which every value must be a string."""
        values = self.values(name)
        for row, value in enumerate(values):
            if not isinstance(value, str):
                raise DataError(
                    f"{self.where}, column {name!r}, row {row} (counted from 0): expected text, "
                    f"found {value!r}",
                    hint=f"Columns of text here: {', '.join(self.text_columns()) or 'none'}.",
                )
        return values

    def text_columns(self) -> list[str]:
        """The names of the columns that hold strings."""
        return [name for name, column in self.columns.items() if _holds_text(column)]


def _holds_text(column: Any) -> bool:
    if isinstance(column, list):
        return isinstance(next((v for v in column if v is not None), None), str)
    return str(column.type) in ("string", "large_string", "string_view")


def read_table(path: Path) -> Table:
    """Read one file; its ending says how. A text file gives one column `text`, a row a line."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"{path}: cannot tell the format from the ending {path.suffix!r}",
            hint=f"Known endings are: {', '.join(READERS)}.",
        )
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    try:
        columns = reader(path)
    except (OSError, ValueError) as error:  # Arrow's and JSON's errors are ValueErrors
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{path} cannot be read as {path.suffix[1:].lower()}: {first}",
            hint="Check the file, or give it the ending of what it is.",
        ) from error
    table = Table(str(path), columns)
    if not len(table):
        raise DataError(f"{path} is empty: it has no row", hint="Give a file with content.")
    return table


def _parquet(path: Path) -> Mapping[str, Any]:
    import pyarrow.parquet

    return _of_arrow(pyarrow.parquet.read_table(path))


def _csv(path: Path) -> Mapping[str, Any]:
    import pyarrow.csv as csv

    # One block, since types are taken from the first block alone and must hold for the rest.
    block = min(max(path.stat().st_size, 1), 2**31 - 1)
    table = csv.read_csv(
        path,
        read_options=csv.ReadOptions(block_size=block),
        parse_options=csv.ParseOptions(newlines_in_values=True),
    )
    return _of_arrow(table)


def _json(path: Path) -> Mapping[str, Any]:
    """Read with Python's json: Arrow's reader turns strings that look like dates into dates."""
    text = path.read_text(encoding="utf-8-sig")
    if text.lstrip().startswith("["):
        rows = json.loads(text)
    else:  # not splitlines(), which also cuts at U+2028 inside a string
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    names: dict[str, None] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(f"row {number} is {row!r}, not an object with named values")
        names.update(dict.fromkeys(row))
    return {name: [row.get(name) for row in rows] for name in names}


def _text(path: Path) -> Mapping[str, Any]:
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    return {"text": [line for line in lines if line.strip()]}


READERS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    ".parquet": _parquet,
    ".jsonl": _json,
    ".json": _json,
    ".csv": _csv,
    ".txt": _text,
}


def _of_arrow(table: Any) -> Mapping[str, Any]:
    names = table.column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"the column names {', '.join(twice)} stand there twice")
    return dict(zip(names, table.columns, strict=True))


def split_files(directory: Path) -> dict[str, Path]:
    """The data files of a directory by split, which is the name without the ending."""
    files = [p for p in sorted(directory.iterdir()) if p.is_file() and p.suffix.lower() in READERS]
    # beside tables, a .txt is a licence or a note and no split
    files = [p for p in files if p.suffix.lower() != ".txt"] or files
    if not files:
        raise DataError(
            f"{directory} holds no data files",
            hint=f"Expected files such as train.parquet; endings: {', '.join(READERS)}.",
        )
    found: dict[str, Path] = {}
    for path in files:
        if path.stem in found:
            raise DataError(
                f"{directory} has two files for the split {path.stem!r}: "
                f"{found[path.stem].name} and {path.name}",
                hint="Leave one, or name a file instead of the directory.",
            )
        found[path.stem] = path
    return found


def read_hub(name: str, config: str | None, split: str) -> Table:
    """Read one split of a data set of the Hub, from the network or from the local cache of it."""
    import datasets

    try:
        loaded = datasets.load_dataset(name, config, split=split)
    except Exception as error:  # offline, unknown name, config or split: many kinds of errors
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"the data set {hub_name(name, config)}, split {split!r}, cannot be loaded from the "
            f"Hub: {first}",
            hint="Check name, config and split; or give local files, which need no network.",
        ) from error
    return Table(f"{hub_name(name, config)}/{split}", _of_arrow(loaded.with_format("arrow")[:]))


def made_table(name: str, split: str) -> Table:
    """One split of texts of the demo language, made on the spot."""
    from restack.data import language

    if split not in language.SIZES:
        raise DataError(
            f"demo/{name} has no split {split!r}",
            hint=f"Its splits are: {', '.join(language.SIZES)}.",
        )
    return Table(f"demo/{name}/{split}", language.columns(name, split))


def hub_name(name: str, config: str | None) -> str:
    """`name` or `name:config`, as it is written and shown."""
    return f"{name}:{config}" if config else name
