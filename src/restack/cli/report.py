"""The command that shows what a store holds: report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from restack.cli import output
from restack.cli.main import app
from restack.cli.surgery import Json
from restack.errors import RestackError

if TYPE_CHECKING:
    from restack.studies.findings import Findings


@app.command()
def report(
    stores: Annotated[
        list[Path],
        typer.Argument(
            metavar="STORE...",
            help="Directories of stores, or copied store files; several are told as one.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="The page to write.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="html|md", help="By default as the name of FILE ends."),
    ] = None,
    study: Annotated[
        list[str] | None,
        typer.Option("--study", metavar="NAME", help="Only this study; may be repeated."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write each figure there: SVG, PNG and HTML."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="A title for the page.")] = None,
    json: Json = False,
) -> None:
    """Show what the trials of stores have found: verdicts, figures and tables in one page.

    The page is one file that needs no network. Markdown has its figures as SVG beside it.
    """
    from restack.report import files
    from restack.report.gather import gather

    if out is None and figures is None and not json:
        raise RestackError("there is nowhere to put the report", hint="say -o page.html, or --json")
    chosen = _form(form, out)
    if out is not None:
        files.check_output(out)
    findings = gather(stores, study)
    if out is not None and chosen == "html":
        files.write_page(findings, out, title)
    elif out is not None:
        files.write_markdown(findings, out, title)
    written = [] if figures is None else files.write_figures(findings, figures)
    if json:
        output.as_json({"findings": [found.to_json() for found in findings]})
        return
    for found in findings:
        output.show(*_words(found))
    if out is not None:
        print(f"written to {out}")
    if figures is not None:
        print(f"{len(written)} files of figures in {figures}")


def _form(form: str | None, out: Path | None) -> str:
    from restack.report.files import FORMATS

    if form is None:
        return "md" if out is not None and out.suffix.lower() in (".md", ".markdown") else "html"
    if form not in FORMATS:
        raise RestackError(f"--format {form!r}", hint="say html or md")
    return form


def _words(found: Findings) -> list[str]:
    """The summary and the verdicts, a line each."""
    from rich.markup import escape

    lines = [f"[bold]{escape(found.title)}[/bold]"]
    lines += [escape(" ".join(filter(None, (line.value, line.text)))) for line in found.summary]
    lines += [
        escape(
            f"{verdict.status}: {verdict.statement}"
            + (f" ({verdict.subject})" if verdict.subject else "")
        )
        for verdict in found.verdicts
    ]
    return [*lines, *(escape(note) for note in found.notes)]
