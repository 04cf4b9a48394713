"""transformers without its warnings and bars: what they tell is said by us, or not of interest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging

from restack.anatomy.live import quiet


@contextmanager
def silence() -> Iterator[None]:
    """No warning and no progress bar of transformers within."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with quiet():
            yield
    finally:
        if shown:
            logging.enable_progress_bar()
