"""The command line: thin, and silent about everything but what was asked for."""

from __future__ import annotations

from restack.cli.main import app, main

__all__ = ["app", "main"]
