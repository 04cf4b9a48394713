"""The `restack` command: its sub-commands, and what errors look like.

Exit codes: 0 done, 1 a check found a difference, 2 bad input, 130 interrupted. Heavy libraries are
imported by the commands that need them.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from restack.errors import RestackError


class _Interrupted(Exception):
    """Ctrl-C, by a name that typer does not know."""


class _Commands(TyperGroup):
    """Sub-commands out of which Ctrl-C comes; typer would end the program without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _Interrupted from error


app = typer.Typer(
    name="restack",
    cls=_Commands,
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
    try:
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

        app(prog_name="restack")  # also where it is started as `python -m restack`
    except RestackError as error:
        _fail(error.message, error.hint)
    except (_Interrupted, KeyboardInterrupt):  # the latter before a command begins
        # a terminal shows ^C where the cursor stands
        print("\ninterrupted" if sys.stderr.isatty() else "interrupted", file=sys.stderr)
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
