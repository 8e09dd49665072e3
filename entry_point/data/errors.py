"""Errors in datasets, and errors on their way from one process to another."""

from __future__ import annotations

import traceback

from entry_point.contract import exit_codes
from entry_point.contract.program import UserError


class DataError(UserError, RuntimeError):
    """A dataset that cannot be used; the message names the path and what to do."""


class ReadError(UserError):
    """A file that could not be read although it may be whole: its disk or network failed.

    No OSError and no DataError, so that nobody takes it for damage.
    """

    exit_code = exit_codes.FAILED


def picklable(error: Exception) -> Exception:
    """The error, or a RuntimeError with its reason and traceback: not every exception survives
    pickling."""
    if isinstance(error, (DataError, ReadError)):
        return error
    reason = "".join(traceback.format_exception_only(error))
    return RuntimeError(f"{reason}{''.join(traceback.format_exception(error))}".rstrip())
