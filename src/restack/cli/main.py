"""The `restack` command: its sub-commands, and what errors look like.

Exit codes: 0 done, 1 a check found a difference, 2 bad input. Heavy libraries are imported by the
commands that need them.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from restack.errors import RestackError

app = typer.Typer(
    name="restack",
    help="Re-stack the layers of pretrained transformers: drop, repeat, reorder, re-initialise, "
    "expand them, and see what that does.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from restack import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the command itself."""


def main() -> None:
    """Run the command line; errors are one message on standard error, never a traceback."""
    from restack.cli import (  # noqa: F401  (they register their commands)
        compare,
        cost,
        demo,
        ensemble,
        lens,
        probe,
        report,
        score,
        store,
        study,
        surgery,
        sweep,
        tune,
    )

    try:
        app(prog_name="restack")  # also where it is started as `python -m restack`
    except RestackError as error:
        _fail(error.message, error.hint)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe went away: nothing to say to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except MemoryError:
        _fail("out of memory", "close other programs, or choose smaller batches")
    except OSError as error:
        _fail(str(error), None)
    except Exception as error:
        if os.environ.get("RESTACK_DEBUG"):
            raise
        _fail(
            f"{type(error).__name__}: {error}",
            "this is not a message we foresaw; set RESTACK_DEBUG=1 to see where it comes from",
        )


def _fail(message: str, hint: str | None) -> None:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"  {hint}", file=sys.stderr)
    sys.exit(2)
