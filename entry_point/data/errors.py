"""Errors in datasets."""

from __future__ import annotations

from entry_point.contract.user_error import UserError


class DataError(UserError, RuntimeError):
    """A dataset that cannot be used; the message names the path and what to do."""
