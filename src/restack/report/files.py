"""Reports as files: each appears complete or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from restack.errors import RestackError
from restack.report.markdown import markdown
from restack.report.page import SIGN, figure_page, page
from restack.report.render import png, svg
from restack.studies.findings import Figure, Findings

FORMATS = ("html", "md")
_OURS = re.compile(
    r"<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-eq"
)


def write_page(findings: Sequence[Findings], out: Path, title: str | None = None) -> None:
    """The page as one file."""
    write(out, page(findings, title).encode())


def write_markdown(findings: Sequence[Findings], out: Path, title: str | None = None) -> list[Path]:
    """The text, and before it the figures as SVG in `NAME.figures` beside it."""
    beside = out.with_name(f"{out.stem}.figures")
    names = file_names(findings)
    for found in findings:
        for figure in found.figures:
            write(beside / f"{names[found.key, figure.key]}.svg", svg(figure).encode())

    def place(figure: Figure, found: Findings) -> str:
        return quote(f"{beside.name}/{names[found.key, figure.key]}.svg")

    write(out, f"{SIGN}\n{markdown(findings, place, title or 'Findings')}".encode())
    return [beside / f"{name}.svg" for name in names.values()]


def write_figures(findings: Sequence[Findings], directory: Path) -> list[Path]:
    """Every figure as SVG, as PNG and as an interactive page of its own."""
    written = []
    names = file_names(findings)
    for found in findings:
        for figure in found.figures:
            stem = directory / names[found.key, figure.key]
            forms = {
                ".svg": svg(figure).encode(),
                ".png": png(figure),
                ".html": figure_page(figure).encode(),
            }
            for end, content in forms.items():
                written.append(stem.with_name(stem.name + end))
                write(written[-1], content)
    return written


def file_names(findings: Sequence[Findings]) -> dict[tuple[str, str], str]:
    """A name for each figure, by the keys of findings and figure: safe, and each only once."""
    names: dict[tuple[str, str], str] = {}
    for found in findings:
        for figure in found.figures:
            plain = re.sub(r"[^a-z0-9]+", "-", f"{found.key}-{figure.key}".lower()).strip("-")[:80]
            name = plain = plain or "figure"
            count = 1
            while name in names.values():
                count += 1
                name = f"{plain}-{count}"
            names[found.key, figure.key] = name
    return names


def check_output(out: Path) -> None:
    """Refuse to replace what is no report, before any work is done."""
    if out.is_dir():
        raise RestackError(f"{out} is a directory", hint=f"Give a file: {out / 'report.html'}")
    if not out.exists():
        return
    with out.open("rb") as file:
        first = file.read(100)
    if first and SIGN.encode() not in first:
        raise RestackError(
            f"{out} exists and is no report, so it is not replaced", hint="Give another name."
        )


def write(path: Path, content: bytes) -> None:
    """A file that appears, or is replaced, at once."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise RestackError(
            f"{path}: {error.strerror or error}",
            hint="It was not written. Check the space, the quota and the rights there.",
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
