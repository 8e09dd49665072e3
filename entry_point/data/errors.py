"""Errors in datasets, and errors on their way from one process to another."""

from __future__ import annotations

import traceback

from entry_point.contract.program import UserError


class DataError(UserError, RuntimeError):
    """A dataset that cannot be used; the message names the path and what to do."""


def picklable(error: Exception) -> Exception:
    """The error, or a RuntimeError with its reason and traceback: not every exception survives
    pickling."""
    if isinstance(error, DataError):
        return error
    reason = "".join(traceback.format_exception_only(error))
    return RuntimeError(f"{reason}{''.join(traceback.format_exception(error))}".rstrip())
