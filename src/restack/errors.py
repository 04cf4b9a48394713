"""The one error family: what was found where, what was expected, what to do next."""

from __future__ import annotations


class RestackError(Exception):
    """Base of all errors that a user can cause and mend.

    `message` says what was found and where, `hint` what to do next.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class PlanError(RestackError):
    """A plan that cannot be parsed, composed or applied to this depth."""


class CheckpointError(RestackError):
    """Files that are not a sound checkpoint, or cannot be read or written."""


class StackError(RestackError):
    """No stack, several stacks, or layers that cannot stand where the plan puts them."""


class DataError(RestackError):
    """Texts, labels or a tokenizer that do not fit the model or the task."""
